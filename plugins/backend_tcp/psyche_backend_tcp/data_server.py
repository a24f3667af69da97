"""The run's data server: gives each member of the epoch the samples of its own shares.

Decided here: requests of a connection are answered one after the other, and a bounded number of them may wait; reads of the
provider never overlap; an answer goes out in chunks, so that it is bounded by what the reader takes in. A provider's error is an
answer, never an end of the server.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

import anyio

from psyche_backend_tcp.data_protocol import (
    CHUNK_BYTES,
    DataBye,
    RequestRefused,
    SamplesChunk,
    SamplesHead,
    SamplesRefusal,
    SamplesRequest,
    check_request,
    decode_request,
    encode_data,
)
from psyche_backend_tcp.limits import Limits, TokenBucket
from psyche_backend_tcp.listener import CONNECTION_LOST, Listener, Visitor
from psyche_backend_tcp.login import DATA
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import WireError
from psyche_core.interfaces.data import DataProvider, Samples
from psyche_core.types import BatchId, NodeIdentity
from psyche_core.wire.signing import SecretKey

logger = logging.getLogger("psyche.backend.tcp")

READ_SECONDS = 60.0
"""Most time one read of the provider may take."""


class DataServer:
    """Serves a provider's samples. Made by `bind`; the provider is entered already and stays its owner's."""

    def __init__(
        self,
        provider: DataProvider,
        listener: Listener,
        *,
        limits: Limits,
        state: Callable[[], CoordinatorState],
        token_size: int,
    ) -> None:
        self._provider = provider
        self._listener = listener
        self._limits = limits
        self._state = state
        self._sample_bytes = provider.sequence_length * token_size
        self._reading = anyio.Lock()

    @classmethod
    async def bind(
        cls,
        provider: DataProvider,
        host: str,
        port: int,
        *,
        run_id: str,
        key: SecretKey,
        limits: Limits,
        state: Callable[[], CoordinatorState],
        allowed: Callable[[bytes], bool] | None = None,
    ) -> DataServer:
        """Start listening. Reads one sample to learn the token size. Raises UserError (host, port), DataError, TimeoutError.

        key: proves to clients who we are, the coordinator's. allowed: whether a key may log in; None lets all in.
        """
        first = await provider.read([BatchId(0, 0)], timeout=READ_SECONDS)
        listener = await Listener.bind(host, port, service=DATA, run_id=run_id, key=key, limits=limits, allowed=allowed)
        listener.facts = {
            "sequence_length": provider.sequence_length,
            "num_sequences": provider.num_sequences,
            "token_size": first.token_size,
        }
        return cls(provider, listener, limits=limits, state=state, token_size=first.token_size)

    @property
    def address(self) -> str:
        """Where clients connect."""
        return self._listener.address

    async def serve(self) -> None:
        """Answer requests until cancelled or closed."""
        await self._listener.serve(self._attend)

    def expel(self, may: Callable[[bytes], bool]) -> None:
        """Close the connections of keys that may not be here any more."""
        self._listener.expel(may)

    async def aclose(self) -> None:
        """Stop listening; idempotent."""
        await self._listener.aclose()

    async def _attend(self, visitor: Visitor) -> None:
        identity = NodeIdentity(visitor.public, visitor.public)
        send, receive = anyio.create_memory_object_stream[SamplesRequest](self._limits.data_requests)
        async with send, receive, anyio.create_task_group() as group:

            async def answer() -> None:
                try:
                    async for request in receive:
                        await self._answer(visitor, identity, request)
                except (*CONNECTION_LOST, TimeoutError):
                    group.cancel_scope.cancel()

            group.start_soon(answer)
            await self._read(visitor, send)
            group.cancel_scope.cancel()

    async def _read(self, visitor: Visitor, queue: anyio.abc.ObjectSendStream[SamplesRequest]) -> None:
        """Queue requests; a full queue is waited for, so a peer that asks too much is simply not read."""
        limits, now = self._limits, anyio.current_time()
        requests = TokenBucket(rate=limits.requests_per_second, burst=limits.burst, now=now)
        sizes = TokenBucket(rate=limits.bytes_per_second, burst=limits.burst_bytes, now=now)
        while True:
            try:
                payload = await visitor.frames.receive()
                request = decode_request(payload)
            except CONNECTION_LOST:
                return
            except WireError as error:
                logger.info("closed a data connection: %s", error)
                with anyio.move_on_after(limits.send_seconds), contextlib.suppress(*CONNECTION_LOST):
                    await visitor.frames.send(encode_data(DataBye("BadMessage", str(error))))
                return

            await queue.send(request)
            now = anyio.current_time()
            await anyio.sleep(max(requests.take(now), sizes.take(now, len(payload))))

    async def _answer(self, visitor: Visitor, identity: NodeIdentity, request: SamplesRequest) -> None:
        try:
            samples = await self._samples(identity, request)
        except RequestRefused as error:
            await self._send(visitor, encode_data(SamplesRefusal(request.number, error.code, error.message)))
            return

        await self._send(visitor, encode_data(SamplesHead(request.number, samples.count, len(samples.tokens))))
        for start in range(0, len(samples.tokens), CHUNK_BYTES):
            chunk = samples.tokens[start : start + CHUNK_BYTES]
            await self._send(visitor, encode_data(SamplesChunk(request.number, chunk)))

    async def _samples(self, identity: NodeIdentity, request: SamplesRequest) -> Samples:
        check_request(
            self._state(), identity, request.batches, sample_bytes=self._sample_bytes, max_bytes=self._limits.data_bytes
        )
        try:
            async with self._reading:
                return await self._provider.read(request.batches, timeout=READ_SECONDS)
        except TimeoutError as error:
            raise RequestRefused("DataSlow", f"the samples were not read within {READ_SECONDS:.0f} s") from error
        except Exception as error:
            logger.exception("samples could not be read")
            raise RequestRefused("DataUnreadable", "the server cannot read these samples; its log says why") from error

    async def _send(self, visitor: Visitor, payload: bytes) -> None:
        with anyio.fail_after(self._limits.send_seconds):
            await visitor.frames.send(payload)
