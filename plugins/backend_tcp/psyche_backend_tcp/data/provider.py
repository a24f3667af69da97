"""The `Server` data location: samples from the run's data server.

A read is cut into pieces of about one MiB; several are requested at once. Concurrent reads share one connection. A lost
connection is opened again within the caller's timeout, and only missing pieces are requested again. A server with another
sequence length than the run's, or another protocol version, is rejected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Self

import anyio
from pydantic import BaseModel, ConfigDict, Field

from psyche_backend_tcp.connections.addresses import parse_address, reason
from psyche_backend_tcp.connections.dialer import dial
from psyche_backend_tcp.connections.listener import CONNECTION_LOST
from psyche_backend_tcp.connections.login import DATA
from psyche_backend_tcp.data.body import join
from psyche_backend_tcp.data.protocol import DATA_VERSION, MAX_INTERVALS, NOT_IN_EPOCH, NOT_YOURS, RequestRefused
from psyche_backend_tcp.data.shared_connection import ReadRequest, SharedConnection
from psyche_core.errors import BackendError, CommandRefused, DataError, NothingForUs, WireError
from psyche_core.hookspecs import DataContext
from psyche_core.interfaces.data import DataProvider, Samples
from psyche_core.types import BatchId

CONNECT_SECONDS = 10.0
RETRY_SECONDS = 0.2
MAX_RETRY_SECONDS = 2.0

PIECE_BYTES = 1024 * 1024
"""Bytes of samples per request: enough to make the overhead small, and few enough that the server reads while it sends."""

WINDOW_BYTES = 8 * 1024 * 1024
"""Most bytes of requested samples in flight on a connection."""


class ServerSettings(BaseModel):
    """`data_location.Server = "host:port"`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    location: str = Field(description="The data server's address, host:port; the run's server adds its own #KEY.")


class ServerData(DataProvider):
    """Reads samples from a data server, which sends each member only the samples of its own shares. Entering connects."""

    def __init__(self, context: DataContext) -> None:
        """Raises DataError without a key or with a malformed location."""
        if context.key is None:
            message = "the data server requires a login; give the client an identity key"
            raise DataError(message)

        settings = context.settings
        location = settings.location if isinstance(settings, ServerSettings) else settings["location"]
        self._address = parse_address(location)
        self._location = str(self._address)
        self._key = context.key
        self._sequence_length = context.sequence_length
        self._num_sequences = 0
        self._token_size = 0
        self._piece_samples = 1
        self._connection: SharedConnection | None = None
        self._connecting = anyio.Lock()
        self._closed = False

    @classmethod
    def from_context(cls, context: DataContext) -> ServerData:
        """Return the provider for a context with `ServerSettings`."""
        return cls(context)

    async def __aenter__(self) -> Self:
        """Connect. Raises DataError."""
        try:
            await self._connected(CONNECT_SECONDS)
        except BackendError as error:
            message = f"the data server at {self._location} cannot be used: {error}"
            raise DataError(message) from error

        return self

    @property
    def sequence_length(self) -> int:
        """Tokens per sample."""
        return self._sequence_length

    @property
    def num_sequences(self) -> int:
        """Number of distinct samples on the server."""
        return self._num_sequences

    async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
        """Return the samples in order. Raises DataError (refused, or no connection within the timeout), TimeoutError."""
        request = ReadRequest(self._pieces(batches))
        lost: BaseException | None = None
        try:
            with anyio.fail_after(timeout):
                pause = 0.0  # the first retry comes at once, because a long idle connection is often closed
                while batches:
                    try:
                        connection = await self._connected(timeout)
                        await connection.fetch(request)
                        break
                    except (*CONNECTION_LOST, WireError, BackendError, RequestRefused) as error:
                        if _is_final(error):
                            passing = isinstance(error, RequestRefused) and error.code in (NOT_IN_EPOCH, NOT_YOURS)
                            kind = NothingForUs if passing else DataError
                            raise kind(f"the data server at {self._location} {_in_words(error)}") from error
                        lost = error
                        await anyio.sleep(pause)
                        pause = min(2 * pause or RETRY_SECONDS, MAX_RETRY_SECONDS)
        except TimeoutError as error:
            if lost is None:
                raise
            message = f"no samples from the data server at {self._location} within {timeout:g} s: {reason(lost)}"
            raise DataError(message) from error

        if not batches:
            return Samples(b"", 0, self._sequence_length, self._token_size)

        try:
            parts = [(arrival.head, arrival.chunks) for _, arrival in sorted(request.arrived.items())]
            return join(parts, sequence_length=self._sequence_length)
        except WireError as error:
            message = f"the data server at {self._location} sent invalid data: {error}"
            raise DataError(message) from error

    async def aclose(self) -> None:
        """Close the connection; idempotent."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.aclose()

    def _pieces(self, batches: Sequence[BatchId]) -> Iterator[tuple[BatchId, ...]]:
        """Yield the batches, split and grouped into requests that the server allows."""
        left, piece = self._piece_samples, list[BatchId]()
        for batch in batches:
            first = batch.first
            while first <= batch.last:
                last = min(batch.last, first + left - 1)
                piece.append(BatchId(first, last))
                left -= last - first + 1
                first = last + 1
                if left == 0 or len(piece) == MAX_INTERVALS:
                    yield tuple(piece)
                    left, piece = self._piece_samples, []

        if piece:
            yield tuple(piece)

    async def _connected(self, timeout: float) -> SharedConnection:
        """Return the connection; a new one if there is none that works."""
        async with self._connecting:
            if self._connection is not None and self._connection.lost is not None:
                connection, self._connection = self._connection, None
                await connection.aclose()
            if self._connection is None:
                self._connection = await self._connect(min(timeout, CONNECT_SECONDS))
            return self._connection

    async def _connect(self, timeout: float) -> SharedConnection:
        if self._closed:
            message = "the data provider is closed"
            raise DataError(message)

        connection = await dial(self._address, service=DATA, key=self._key, run_id=None, timeout=timeout)
        try:
            window = self._learn(connection.hello.facts)
        except DataError:
            await connection.frames.aclose()
            raise

        return SharedConnection(connection.frames, sequence_length=self._sequence_length, window=window)

    def _learn(self, facts: Mapping[str, int]) -> int:
        """Check and store a server's facts; return the window, in requests. Raises DataError if we cannot use the server."""
        version = facts.get("version", 1)
        if version != DATA_VERSION:
            message = (
                f"the data server at {self._location} speaks version {version} of the data protocol, we speak {DATA_VERSION}; "
                "install matching releases"
            )
            raise DataError(message)

        length, sequences, size = facts.get("sequence_length"), facts.get("num_sequences", 0), facts.get("token_size", 0)
        if length != self._sequence_length:
            message = (
                f"the data server at {self._location} has sequences of {length} tokens, the run trains on "
                f"{self._sequence_length} (model.LLM.max_seq_len); start the server with data of that seq_len"
            )
            raise DataError(message)

        samples, requests = facts.get("request_samples", 0), facts.get("requests", 0)
        if sequences < 1 or size not in (2, 4) or samples < 1 or requests < 1:
            message = (
                f"the data server at {self._location} says it has {sequences} sequences of {size}-byte tokens and gives "
                f"{samples} at once to {requests} requests; it is no data server we know"
            )
            raise DataError(message)

        if self._token_size not in (0, size):
            message = f"the data server at {self._location} changed its token size from {self._token_size} to {size}"
            raise DataError(message)

        self._num_sequences = sequences
        self._token_size = size
        sample_bytes = length * size
        self._piece_samples = min(samples, max(1, PIECE_BYTES // sample_bytes))
        return min(requests, max(1, WINDOW_BYTES // (self._piece_samples * sample_bytes)))


def _in_words(error: BaseException) -> str:
    """Return what a refusal means for a member, as the end of a sentence."""
    if isinstance(error, RequestRefused) and error.code == NOT_IN_EPOCH:
        return (
            f"has nothing for us now ({error.code}): the coordinator does not count us among the healthy members of this epoch, "
            "as after a connection that was lost for too long. Nothing has to be done: these samples are trained by others, and "
            "we ask again with our next share, in this epoch or the next"
        )
    if isinstance(error, RequestRefused) and error.code == NOT_YOURS:
        return (
            f"has nothing for us now ({error.code}): the coordinator has given this share to others, or forgotten its "
            "round, as after it was restored from an older state. Nothing has to be done: we ask again with our next share"
        )
    return f"refuses us: {error}"


def _is_final(error: BaseException) -> bool:
    """Return whether retrying is useless."""
    return isinstance(error, CommandRefused | RequestRefused) and error.code not in ("Busy", "RateLimited", "Idle")
