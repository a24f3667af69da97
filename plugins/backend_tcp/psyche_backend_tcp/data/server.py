"""The run's data server: sends each member of the epoch the samples of its own shares.

A connection may have many requests in flight; one is read while another is sent. Reads of the provider never overlap, because a
provider need not support that; connections take turns. Sending is limited by how fast the receiver reads. A client that waits
long gets keepalives. Samples are sent with all their columns: labels, positions and lengths too. An error of the provider
becomes a refusal and never stops the server.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection

import anyio

from psyche_backend_tcp.connections.listener import CONNECTION_LOST, AcceptedConnection, Listener
from psyche_backend_tcp.connections.login import DATA
from psyche_backend_tcp.data.body import largest_sample, pack
from psyche_backend_tcp.data.protocol import (
    DATA_VERSION,
    Cancel,
    RequestRefused,
    SamplesRequest,
    check_request,
    decode_client,
)
from psyche_backend_tcp.data.server_state import DataServerState
from psyche_backend_tcp.limits import Limits
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import WireError
from psyche_core.interfaces.data import DataProvider, Samples
from psyche_core.rate_limit import TokenBucket
from psyche_core.types import BatchId, NodeIdentity, total_samples
from psyche_core.wire.signing import SecretKey

logger: logging.Logger = logging.getLogger("psyche.backend.tcp")

READ_SECONDS = 60.0
"""Timeout of one read from the provider."""


class DataServer:
    """Serves a provider's samples. Made by `bind`; the caller enters and closes the provider."""

    def __init__(
        self,
        provider: DataProvider,
        listener: Listener,
        *,
        limits: Limits,
        state: Callable[[], CoordinatorState],
        request_samples: int,
    ) -> None:
        self._provider = provider
        self._listener = listener
        self._limits = limits
        self._state = state
        self._request_samples = request_samples
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
        members: Callable[[], Collection[bytes]] = frozenset,
    ) -> DataServer:
        """Start listening. Reads one sample to learn the token size. Raises UserError (host, port), DataError, TimeoutError.

        key: proves our identity to clients; the coordinator's key. allowed: returns whether a key may log in; None allows all.
        members: returns the keys that always get a place.
        """
        first = await provider.read([BatchId(0, 0)], timeout=READ_SECONDS)
        listener = await Listener.bind(
            host, port, service=DATA, run_id=run_id, key=key, limits=limits, allowed=allowed, members=members
        )
        request_samples = max(1, limits.data_bytes // largest_sample(provider.sequence_length))
        listener.facts = {
            "version": DATA_VERSION,
            "sequence_length": provider.sequence_length,
            "num_sequences": provider.num_sequences,
            "token_size": first.token_size,
            "request_samples": request_samples,
            "requests": limits.data_requests,
        }
        return cls(provider, listener, limits=limits, state=state, request_samples=request_samples)

    @property
    def address(self) -> str:
        """The address for clients."""
        return self._listener.address

    async def serve(self) -> None:
        """Answer requests until cancelled or closed."""
        await self._listener.serve(lambda accepted: _Visit(accepted, self._limits, self._read).run())

    def expel(self, may: Callable[[bytes], bool]) -> None:
        """Close the connections of keys that are no longer allowed."""
        self._listener.expel(may)

    async def aclose(self) -> None:
        """Stop listening; idempotent."""
        await self._listener.aclose()

    async def _read(self, identity: NodeIdentity, request: SamplesRequest) -> Samples:
        """Return the samples of a request. Raises RequestRefused."""
        check_request(self._state(), identity, request.batches, at_most=self._request_samples)
        try:
            async with self._reading:
                samples = await self._provider.read(request.batches, timeout=READ_SECONDS)
        except TimeoutError as error:
            raise RequestRefused("DataSlow", f"the samples were not read within {READ_SECONDS:.0f} s") from error
        except Exception as error:
            logger.exception("samples could not be read")
            raise RequestRefused("DataUnreadable", "the server cannot read these samples; its log says why") from error

        wanted = total_samples(request.batches), self._provider.sequence_length
        if (samples.count, samples.sequence_length) != wanted:
            given = samples.count, samples.sequence_length
            logger.error("the provider gave %d samples of %d tokens, not %d of %d", *given, *wanted)
            raise RequestRefused("DataUnreadable", "the server cannot read these samples; its log says why")

        return samples


class _Visit:
    """One connection: receives requests, reads their samples one after the other, and sends what is ready, all concurrently."""

    def __init__(
        self, accepted: AcceptedConnection, limits: Limits, read: Callable[[NodeIdentity, SamplesRequest], Awaitable[Samples]]
    ) -> None:
        self._frames = accepted.frames
        self._identity = NodeIdentity(accepted.public, accepted.public)
        self._limits = limits
        self._read = read
        self._answers = DataServerState(
            requests=limits.data_requests, buffer=limits.data_bytes, chunk=limits.data_chunk, write=limits.data_write
        )
        self._reading = anyio.CancelScope()
        self._changed = anyio.Event()

    async def run(self) -> None:
        """Run until the peer has disconnected, was idle for long, or broke the protocol."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._supply)
            group.start_soon(self._read_requests)
            await self._send()
            group.cancel_scope.cancel()

    async def _read_requests(self) -> None:
        limits, now = self._limits, anyio.current_time()
        requests = TokenBucket(limits.data_requests_per_second, burst=limits.data_burst)
        sizes = TokenBucket(limits.bytes_per_second, burst=limits.burst_bytes)
        while True:
            if self._answers.full:  # receive nothing from a peer with too many requests
                await self._changed.wait()
                continue

            try:
                payload = await self._next_frame()
                self._take(payload)
            except TimeoutError:  # before the next clause, because it is an OSError too
                return self._part("Idle", "there was no request for a while; connect again when you need samples")
            except CONNECTION_LOST:
                return self._part("Closed", "you have closed the connection")
            except WireError as error:
                logger.info("closed a data connection: %s", error)
                return self._part("BadMessage", str(error))
            except RequestRefused as error:
                return self._part(error.code, error.message)

            now = anyio.current_time()
            await anyio.sleep(max(requests.take(now), sizes.take(now, len(payload))))

    async def _next_frame(self) -> bytes:
        """Return the next frame. Raises TimeoutError when the peer is idle, WireError, and the errors of a lost connection."""
        while True:
            with anyio.move_on_after(self._limits.data_idle_seconds):
                return await self._frames.receive()
            if not self._answers.under_way:
                raise TimeoutError

    def _take(self, payload: bytes) -> None:
        match decode_client(payload):
            case SamplesRequest() as request:
                self._answers.ask(request)
            case Cancel(number):
                if self._answers.cancel(number):
                    self._reading.cancel()
        self._notify()

    def _part(self, code: str, sentence: str) -> None:
        self._answers.part(code, sentence)
        self._notify()

    async def _supply(self) -> None:
        """Read the requested samples from the provider, one request after the other."""
        answers = self._answers
        while True:
            request = answers.next_to_read()
            if request is None:
                await self._changed.wait()
                continue

            with anyio.CancelScope() as self._reading:
                try:
                    samples = await self._read(self._identity, request)
                except RequestRefused as error:
                    answers.refuse(request.number, error.code, error.message)
                else:
                    answers.answer(*pack(request.number, samples))
            if self._reading.cancelled_caught:
                answers.give_up()
            self._notify()

    async def _send(self) -> None:
        """Send what is ready, or a keepalive; return when the connection should be closed."""
        sent_at = anyio.current_time()
        while not self._answers.parted:
            changed, frames = self._changed, self._answers.outgoing()
            if not frames:
                due = sent_at + self._limits.data_alive_seconds if self._answers.under_way else math.inf
                with anyio.CancelScope(deadline=due) as scope:
                    await changed.wait()
                if not scope.cancelled_caught:
                    sent_at = sent_at if due < math.inf else anyio.current_time()
                    continue
                frames = self._answers.sign_of_life()
                if not frames:
                    continue

            try:
                with anyio.fail_after(self._limits.send_seconds):
                    await self._frames.send(*frames)
            except (*CONNECTION_LOST, TimeoutError):
                return

            sent_at = anyio.current_time()
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
