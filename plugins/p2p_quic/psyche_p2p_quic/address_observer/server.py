"""The address observer: an iroh endpoint that sends each caller the address from which the caller's packets arrive.

See `protocol` for the messages and the reasons. iroh proves the caller's key, so no certificate is needed. Callers prove their
address, too (QUIC retry), so that nobody can make the observer send to a third party. A caller may only listen: one that opens a
stream or sends a datagram is disconnected, because the library would keep data that is never read.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import iroh

from psyche_core.errors import UserError, WireError
from psyche_core.text_safety import printable
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.address_observer.protocol import (
    ALPN,
    CLOSE_BUSY,
    CLOSE_NOT_ALLOWED,
    CLOSE_REPLACED,
    CLOSE_STOPPING,
    Observation,
    ObserverLocation,
)
from psyche_p2p_quic.relay.admission import Admission

_log = logging.getLogger("psyche.relay.observer")
_CLOSE_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverLimits:
    """Limits of an observer.

    callers: connections at once that have proved their key. handshakes: connections that have not; one more closes the oldest
    from the network with the most. callers_per_address: of both, of one IPv4 address or IPv6 /56. handshake_seconds: until the
    key is proved and the observation is sent.
    """

    callers: int = 1024
    handshakes: int = 256
    callers_per_address: int = 64
    handshake_seconds: float = 10.0


@dataclass(slots=True, eq=False)
class _Call:
    """A call from a proved address, and the task that answers it."""

    task: asyncio.Task[None] | None = None


class Observer:
    """An observer that listens. An async context manager: entering it binds, leaving it closes all connections.

    key: the observer's own; callers know its public half. hosts, port: to bind, at most one address of each family; port 0 picks
    a free one. may_call: returns whether the owner of a proved key may use it now. Raises UserError if it cannot bind.
    """

    def __init__(
        self,
        key: SecretKey,
        *,
        hosts: Sequence[str],
        port: int,
        may_call: Callable[[bytes], bool] = lambda key: True,  # noqa: ARG005  # the default admits every key
        limits: ObserverLimits | None = None,
    ) -> None:
        self._key = key
        self._hosts = hosts
        self._wanted_port = port
        self._may_call = may_call
        self._limits = limits or ObserverLimits()
        self._admission: Admission[_Call] = Admission(
            most=self._limits.callers + self._limits.handshakes,
            most_waiting=self._limits.handshakes,
            most_per_address=self._limits.callers_per_address,
        )
        self._callers: dict[bytes, Any] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._endpoint: Any = None
        self._loop: asyncio.Task[None] | None = None
        self.port: int = 0
        self.answered: int = 0
        self.crowded_out: int = 0

    @property
    def location(self) -> ObserverLocation:
        """The location for callers."""
        return ObserverLocation(self._key.public, self.port)

    @property
    def caller_count(self) -> int:
        """Number of connected callers."""
        return len(self._callers)

    async def __aenter__(self) -> Self:
        sockets = _sockets(self._hosts, self._wanted_port)
        options = iroh.EndpointOptions(
            preset=_Sockets(sockets), relay_mode=iroh.RelayMode.disabled(), secret_key=self._key.seed, alpns=[ALPN]
        )
        try:
            self._endpoint = await iroh.Endpoint.bind(options)
        except iroh.IrohError as error:
            message = f"the address observer cannot use UDP port {self._wanted_port} of {', '.join(self._hosts)}; choose another"
            raise UserError(message) from error

        first = ipaddress.ip_address(self._hosts[0])
        bound = [text.rpartition(":") for text in self._endpoint.bound_sockets()]
        self.port = next(int(port) for host, _, port in bound if ipaddress.ip_address(host.strip("[]")).version == first.version)
        self._loop = asyncio.create_task(self._accept(), name="address observer")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._loop is not None:
            self._loop.cancel()
        for task in self._tasks:
            task.cancel()
        for connection in self._callers.values():
            connection.close(CLOSE_STOPPING, b"the observer stops")
        with contextlib.suppress(TimeoutError, iroh.IrohError):
            await asyncio.wait_for(self._endpoint.close(), _CLOSE_SECONDS)
        await asyncio.gather(*self._tasks, *([self._loop] if self._loop else []), return_exceptions=True)

    def reconsider(self) -> None:
        """Close callers that `may_call` refuses now. Call it when its answers have changed."""
        for key, connection in list(self._callers.items()):
            if not self._may_call(key):
                connection.close(CLOSE_NOT_ALLOWED, b"not allowed")

    async def _accept(self) -> None:
        while True:
            try:
                incoming = await self._endpoint.accept_next()
                if incoming is None:
                    return
                seen = _seen(await incoming.remote_addr())
                if not await incoming.remote_addr_validated():
                    await incoming.retry()
                    continue
                call = None if seen is None else self._enter(seen)
                if seen is None or call is None:
                    await incoming.refuse()
                    continue
            except iroh.IrohError as error:
                _log.debug("a call was lost: %s", printable(error.message()))
                continue

            call.task = asyncio.create_task(self._serve(incoming, seen, call))
            self._tasks.add(call.task)
            call.task.add_done_callback(self._tasks.discard)

    def _enter(self, seen: Observation) -> _Call | None:
        """Count a call; return None if there is no place for it. Another call that has proved nothing may be closed for it."""
        call = _Call()
        admitted, crowded = self._admission.enter(call, seen.ip, asyncio.get_running_loop().time())
        if crowded is not None and crowded.task is not None:
            self.crowded_out += 1
            crowded.task.cancel()
        return call if admitted else None

    async def _serve(self, incoming: Any, seen: Observation, call: _Call) -> None:
        connection = None
        try:
            async with asyncio.timeout(self._limits.handshake_seconds):
                connection = await (await incoming.accept()).connect()
                key = bytes(connection.remote_id().to_bytes())
                if not self._may_call(key):
                    connection.close(CLOSE_NOT_ALLOWED, b"not allowed")
                    return
                older = self._callers.get(key)
                if older is None and len(self._callers) >= self._limits.callers:
                    connection.close(CLOSE_BUSY, b"too many callers")
                    return
                self._admission.proved(call)
                self._callers[key] = connection
                if older is not None:
                    older.close(CLOSE_REPLACED, b"the same key called again")
                stream = await connection.open_uni()
                await stream.write_all(seen.encode())
                await stream.finish()
            self.answered += 1
            await _until_closed_or_not_quiet(connection)
        except (iroh.IrohError, TimeoutError) as error:
            _log.debug("a call from %s ended: %s", seen, type(error).__name__)
        finally:
            self._admission.leave(call)
            if connection is not None:
                connection.close(0, b"")
                key = bytes(connection.remote_id().to_bytes())
                if self._callers.get(key) is connection:
                    del self._callers[key]


async def _until_closed_or_not_quiet(connection: Any) -> None:
    """Wait until a connection has ended, or the caller sends something."""
    waiting = [
        asyncio.ensure_future(wait())
        for wait in (connection.closed, connection.accept_uni, connection.accept_bi, connection.read_datagram)
    ]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def _seen(address: Any) -> Observation | None:
    if not address.is_ip():
        return None
    try:
        return Observation.from_text(str(address.addr))
    except WireError:
        return None


def _sockets(hosts: Sequence[str], port: int) -> list[str]:
    """Return what to bind: the given hosts, and loopback of a missing family, because the library always binds both."""
    found: dict[int, str] = {}
    for host in hosts:
        try:
            ip = ipaddress.ip_address(host)
        except ValueError as error:
            message = f"the address observer binds IP addresses, such as 0.0.0.0 or ::, got {host!r}"
            raise UserError(message) from error
        found.setdefault(ip.version, f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}")
    return [found.get(4, "127.0.0.1:0"), found.get(6, "[::1]:0")]


class _Sockets(iroh.Preset):
    """Binds only the given socket addresses."""

    def __init__(self, sockets: Sequence[str]) -> None:
        self._sockets = sockets

    def apply(self, builder: Any) -> None:
        builder.apply_minimal()
        for socket in self._sockets:
            builder.bind_addr(socket)
