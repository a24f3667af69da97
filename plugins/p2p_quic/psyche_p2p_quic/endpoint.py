"""The only module that uses iroh: typed endpoints, links and streams, which work around the library's pitfalls.

No socket is bound beyond the requested interface and loopback (by a custom preset; the library would add `[::]`). Errors become
`LinkLost` with a message (`str(IrohError)` is empty). A stream that is given up is stopped and reset, because one that is only
dropped looks finished to the peer. A finished stream waits until the peer has received it.

Callers must know: cancelling a read loses data, so the stream is unusable after it. Every stream's content must carry its own
length and hash. Relays and discovery are disabled for now; `Endpoint.bind` is the place for them. Decisions about peers belong
in `mesh`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import anyio
import iroh
from iroh.iroh_ffi import InternalError

from psyche_core.config.sentences import printable
from psyche_core.errors import TransportError
from psyche_p2p_quic.ffi_copy import mend

ALPN = b"psyche/p2p/1"
_GIVE_UP_SECONDS = 1.0
_CONTROL_PRIORITY = 10
_PEER_CODE = re.compile(r"closed by peer: .*\(code (\d+)\)", re.DOTALL)

mend()


class LinkLost(TransportError):
    """A connection or stream ended, or could not be made."""


@contextmanager
def _as_link_lost(doing: str) -> Iterator[None]:
    try:
        yield
    except iroh.IrohError as error:
        lines = error.message().splitlines() or [""]
        message = f"{doing}: {printable(lines[0], at_most=300)}"
        raise LinkLost(message) from error
    except InternalError as error:
        message = f"{doing}: {printable(str(error))}"
        raise LinkLost(message) from error


class Stream:
    """Both directions of a QUIC stream. Reads must not run concurrently with each other, nor writes."""

    def __init__(self, bi_stream: Any) -> None:
        self._send = bi_stream.send()
        self._receive = bi_stream.recv()

    async def read(self, most: int) -> bytes:
        """Between 1 and `most` bytes, b"" at the end. Cancelling it breaks the stream."""
        with _as_link_lost("read"):
            return bytes(await self._receive.read(most))

    async def read_exactly(self, count: int) -> bytes:
        """`count` bytes; LinkLost when the stream ends before. Cancelling it breaks the stream."""
        with _as_link_lost("read"):
            return bytes(await self._receive.read_exact(count))

    async def write(self, data: bytes | memoryview) -> None:
        """Hand over all bytes; waits while the peer does not read. Cancelling it breaks the stream."""
        with _as_link_lost("write"):
            await self._send.write_all(data)

    async def finish(self) -> None:
        """Mark the end of what we write."""
        with _as_link_lost("finish"):
            await self._send.finish()

    async def delivered(self) -> None:
        """Wait until the peer has received all of a finished stream, or has stopped reading it."""
        with _as_link_lost("wait for delivery"):
            await self._send.stopped()

    async def prefer(self) -> None:
        """Send this stream's bytes before those of others."""
        with _as_link_lost("set priority"):
            await self._send.set_priority(_CONTROL_PRIORITY)

    async def stop_reading(self) -> None:
        """Tell the peer that nothing more is read, and drop received data. No read may be pending."""
        with anyio.move_on_after(_GIVE_UP_SECONDS, shield=True):
            try:
                await self._receive.stop(0)
            except iroh.IrohError:
                return  # it has ended already

    async def abandon(self) -> None:
        """Give up both directions, so that the peer sees a broken stream, not a finished one. No read or write may be pending."""
        await self.stop_reading()
        with anyio.move_on_after(_GIVE_UP_SECONDS, shield=True):
            try:
                await self._send.reset(1)
            except iroh.IrohError:
                return  # it has ended already


class Link:
    """A connection to a peer that has proved its key."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.peer: bytes = bytes(connection.remote_id().to_bytes())

    @property
    def addresses(self) -> tuple[str, ...]:
        """The `ip:port` texts the peer has answered from on this connection, normally one; empty once it is closed."""
        paths = self._connection.paths()
        return tuple(str(path.remote_addr) for path in paths if path.is_ip and (path.is_selected or path.stats.udp_rx_datagrams))

    async def open(self) -> Stream:
        """A new stream; the peer sees it after the first write."""
        with _as_link_lost("open a stream"):
            return Stream(await self._connection.open_bi())

    async def accept(self) -> Stream:
        """The next stream the peer opened."""
        with _as_link_lost("accept a stream"):
            return Stream(await self._connection.accept_bi())

    async def accept_one_way(self) -> None:
        """Wait until the peer opens a one-way stream, and stop it."""
        with _as_link_lost("accept a stream"):
            stream = await self._connection.accept_uni()
            await stream.stop(0)

    def close(self, code: int, reason: str) -> None:
        """End the connection now; pending reads and writes of both sides fail."""
        self._connection.close(code, reason.encode()[:200])

    @property
    def close_reason(self) -> str:
        """Why it ended, "" while it is open; the peer's text, safe to show."""
        return printable(str(self._connection.close_reason() or ""))

    @property
    def peer_code(self) -> int | None:
        """The code that the peer closed it with; None while it is open or when it ended otherwise."""
        found = _PEER_CODE.fullmatch(str(self._connection.close_reason() or ""))
        return int(found[1]) if found else None


class Arrival:
    """An incoming connection attempt; nothing about it is proved yet."""

    def __init__(self, incoming: Any) -> None:
        self._incoming = incoming

    async def complete(self) -> Link:
        """Finish the handshake."""
        with _as_link_lost("accept a connection"):
            accepting = await self._incoming.accept()
            return Link(await accepting.connect())

    async def prove_source(self) -> bool:
        """Make the sender prove its address by connecting again (QUIC retry); False when it has proved it already."""
        with _as_link_lost("ask for a retry"):
            if await self._incoming.remote_addr_validated():
                return False

            await self._incoming.retry()
            return True

    async def refuse(self) -> None:
        """Refuse the connection."""
        with _as_link_lost("refuse a connection"):
            await self._incoming.refuse()


class _OneInterface(iroh.Preset):
    """Binds only the given socket addresses."""

    def __init__(self, sockets: Sequence[str]) -> None:
        self._sockets = sockets

    def apply(self, builder: Any) -> None:
        builder.apply_minimal()
        for socket in self._sockets:
            builder.bind_addr(socket)


class Endpoint:
    """Our sockets and key."""

    def __init__(self, endpoint: Any, sockets: tuple[tuple[str, int], ...]) -> None:
        self._endpoint = endpoint
        self.sockets = sockets

    @classmethod
    async def bind(cls, seed: bytes, *, interface: str, port: int) -> Endpoint:
        """Bind `interface` (an IPv4 or IPv6 address) at `port` (0: any) with the Ed25519 seed. Raises TransportError.

        The library always binds both families; the other one gets loopback only.
        """
        try:
            ip = ipaddress.ip_address(interface)
        except ValueError as error:
            message = f"cannot bind the interface {interface!r}: expected an IPv4 or IPv6 address, such as 127.0.0.1"
            raise TransportError(message) from error

        wanted = f"{ip}:{port}" if ip.version == 4 else f"[{ip}]:{port}"
        options = iroh.EndpointOptions(
            preset=_OneInterface([wanted, "[::1]:0" if ip.version == 4 else "127.0.0.1:0"]),
            relay_mode=iroh.RelayMode.disabled(),
            secret_key=seed,
            alpns=[ALPN],
        )
        try:
            with _as_link_lost(f"cannot bind {wanted}"):
                endpoint = await iroh.Endpoint.bind(options)
        except LinkLost as error:
            message = f"cannot bind {wanted}: no interface of this machine has that address, or the port is taken; choose another"
            raise TransportError(message) from error

        return cls(endpoint, _reachable(endpoint.addr().direct_addresses(), ip.version))

    async def arrival(self) -> Arrival | None:
        """The next connection attempt, None once the endpoint is closed."""
        with _as_link_lost("accept a connection"):
            incoming = await self._endpoint.accept_next()

        return None if incoming is None else Arrival(incoming)

    async def dial(self, peer: bytes, addresses: Sequence[str]) -> Link:
        """Connect to the peer with that key at any of the `ip:port` addresses. May take long; use a timeout."""
        with _as_link_lost("dial"):
            target = iroh.EndpointAddr(iroh.EndpointId.from_bytes(peer), None, list(addresses))
            return Link(await self._endpoint.connect(target, ALPN))

    async def aclose(self, *, timeout: float) -> None:
        """Close all connections; the peers see it at once. Waits until the last packets are sent, at most `timeout` seconds."""
        with anyio.move_on_after(timeout, shield=True), _as_link_lost("close"):
            await self._endpoint.close()


def _reachable(direct_addresses: Sequence[str], version: int) -> tuple[tuple[str, int], ...]:
    """(ip, port) pairs of one family; loopback ones only where there are no others."""
    found = []
    for text in direct_addresses:
        host, _, port = text.rpartition(":")
        ip = ipaddress.ip_address(host.strip("[]"))
        if ip.version == version:
            found.append((ip, int(port)))

    others = [(ip, port) for ip, port in found if not ip.is_loopback]
    return tuple((str(ip), port) for ip, port in (others or found)[:8])
