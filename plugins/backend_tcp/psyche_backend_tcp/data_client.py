"""The `Server` data location: samples from the run's data server.

Decided here: a request carries a number, so an answer to a request that was given up is skipped, not taken for the next one; a
lost connection is opened again within the caller's time-out; large reads are asked for in pieces the server allows. Refuses a
server whose sequence length is not the run's, and samples of another size than asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import anyio
from pydantic import BaseModel, ConfigDict

from psyche_backend_tcp.addresses import parse_address, reason
from psyche_backend_tcp.data_protocol import (
    MAX_INTERVALS,
    DataBye,
    SamplesChunk,
    SamplesHead,
    SamplesRefusal,
    SamplesRequest,
    decode_data,
    encode_request,
)
from psyche_backend_tcp.dialer import Link, dial
from psyche_backend_tcp.limits import Limits
from psyche_backend_tcp.listener import CONNECTION_LOST
from psyche_backend_tcp.login import DATA
from psyche_core.errors import BackendError, CommandRefused, DataError, WireError
from psyche_core.hookspecs import DataContext
from psyche_core.interfaces.data import DataProvider, Samples
from psyche_core.types import BatchId, total_samples

CONNECT_SECONDS = 10.0
RETRY_SECONDS = 0.2
MAX_RETRY_SECONDS = 2.0
SILENCE_SECONDS = 10.0


class ServerSettings(BaseModel):
    """`data_location.Server = "host:port"`. location: the data server's address; the run's server adds its own `#KEY`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    location: str


class ServerData(DataProvider):
    """Reads samples from a data server, which gives each member the samples of its own shares. Entering connects."""

    def __init__(self, context: DataContext) -> None:
        """Raises DataError without a key or with a malformed location."""
        if context.key is None:
            message = "the data server asks who we are; give the client an identity key"
            raise DataError(message)

        settings = context.settings
        location = settings.location if isinstance(settings, ServerSettings) else settings["location"]
        self._address = parse_address(location)
        self._location = str(self._address)
        self._key = context.key
        self._sequence_length = context.sequence_length
        self._num_sequences = 0
        self._token_size = 0
        self._link: Link | None = None
        self._number = 0
        self._closed = False

    @classmethod
    def from_context(cls, context: DataContext) -> ServerData:
        """The provider for a context with `ServerSettings`."""
        return cls(context)

    async def __aenter__(self) -> Self:
        """Connect. Raises DataError."""
        try:
            await self._connect(CONNECT_SECONDS)
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
        """Distinct samples of the server."""
        return self._num_sequences

    async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
        """The samples in order. Raises DataError (refused, or no connection until the time-out), TimeoutError."""
        pieces: list[bytes] = []
        lost: BaseException | None = None
        try:
            with anyio.fail_after(timeout):
                for piece in self._pieces(batches):
                    pause = RETRY_SECONDS
                    while True:
                        try:
                            pieces.append(await self._ask(piece, timeout))
                            break
                        except (*CONNECTION_LOST, WireError, BackendError) as error:
                            if isinstance(error, CommandRefused) and error.code not in ("Busy", "RateLimited"):
                                raise DataError(f"the data server at {self._location} refuses us: {error}") from error
                            lost = error
                            await self._drop()
                            await anyio.sleep(pause)
                            pause = min(2 * pause, MAX_RETRY_SECONDS)
        except TimeoutError as error:
            if lost is None:
                raise
            message = f"no samples from the data server at {self._location} within {timeout:g} s: {reason(lost)}"
            raise DataError(message) from error

        return Samples(b"".join(pieces), total_samples(tuple(batches)), self._sequence_length, self._token_size)

    async def aclose(self) -> None:
        """Close the connection; idempotent."""
        self._closed = True
        await self._drop()

    def _pieces(self, batches: Sequence[BatchId]) -> Iterator[tuple[BatchId, ...]]:
        """The batches cut and gathered into requests the server allows."""
        room = at_most = max(1, Limits().data_bytes // (self._sequence_length * self._token_size))
        piece: list[BatchId] = []
        for batch in batches:
            first = batch.first
            while first <= batch.last:
                last = min(batch.last, first + room - 1)
                piece.append(BatchId(first, last))
                room -= last - first + 1
                first = last + 1
                if room == 0 or len(piece) == MAX_INTERVALS:
                    yield tuple(piece)
                    room, piece = at_most, []

        if piece:
            yield tuple(piece)

    async def _connect(self, timeout: float) -> Link:
        if self._closed:
            message = "the data provider is closed"
            raise DataError(message)

        link = await dial(self._address, service=DATA, key=self._key, run_id=None, timeout=timeout)
        facts = link.hello.facts
        try:
            self._check(facts.get("sequence_length"), facts.get("num_sequences"), facts.get("token_size"))
        except DataError:
            await link.frames.aclose()
            raise

        self._link = link
        return link

    def _check(self, sequence_length: int | None, num_sequences: int | None, token_size: int | None) -> None:
        if sequence_length != self._sequence_length:
            message = (
                f"the data server at {self._location} has sequences of {sequence_length} tokens, the run trains on "
                f"{self._sequence_length} (model.LLM.max_seq_len); start the server with data of that seq_len"
            )
            raise DataError(message)

        if num_sequences is None or num_sequences < 1 or token_size not in (2, 4):
            message = f"the data server at {self._location} says it has {num_sequences} sequences of {token_size}-byte tokens"
            raise DataError(message)

        if self._token_size not in (0, token_size):
            message = f"the data server at {self._location} changed its token size from {self._token_size} to {token_size}"
            raise DataError(message)

        self._num_sequences = num_sequences
        self._token_size = token_size

    async def _ask(self, batches: tuple[BatchId, ...], timeout: float) -> bytes:
        link = self._link or await self._connect(min(timeout, CONNECT_SECONDS))
        self._number += 1
        try:
            await link.frames.send(encode_request(SamplesRequest(self._number, batches)))
        except anyio.get_cancelled_exc_class():
            self._link = None  # half a request may be out: this connection cannot be used again
            with anyio.CancelScope(shield=True):
                await link.frames.aclose()
            raise

        wanted = f"{total_samples(batches)} samples from {batches[0]} on"
        expected = total_samples(batches) * self._sequence_length * self._token_size
        tokens = bytearray()
        announced = False
        while not announced or len(tokens) < expected:
            message = decode_data(await self._frame(link))
            if isinstance(message, DataBye):
                text = f"the data server at {self._location} closed the connection: {message.code}: {message.sentence}"
                raise DataError(text)

            if message.number != self._number:
                continue  # of a request that was given up

            match message:
                case SamplesHead(_, count, size):
                    if (count, size) != (total_samples(batches), expected) or announced:
                        text = (
                            f"the data server announced {count} samples of {size} bytes for {wanted}, expected {expected} bytes"
                        )
                        raise DataError(text)
                    announced = True
                case SamplesChunk(_, chunk):
                    if not announced or len(tokens) + len(chunk) > expected or not chunk:
                        text = f"the data server sent more than the {expected} bytes of {wanted}"
                        raise DataError(text)
                    tokens += chunk
                case SamplesRefusal(_, code, sentence):
                    text = f"the data server at {self._location} refuses {wanted}: {code}: {sentence}"
                    raise DataError(text)

        return bytes(tokens)

    async def _frame(self, link: Link) -> bytes:
        """The next frame. A link that was cut for a while may stay half open: silence is a lost connection, not patience."""
        try:
            with anyio.fail_after(SILENCE_SECONDS):
                return await link.frames.receive()
        except TimeoutError as error:
            message = f"the data server said nothing for {SILENCE_SECONDS:g} s"
            raise ConnectionError(message) from error

    async def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.frames.aclose()
