"""The only module that uses iroh: typed endpoints, links and streams, which work around the library's pitfalls.

No socket is bound beyond the requested ones and loopback (by a custom preset; the library would add `[::]`). Errors become
`LinkLost` with a message (`str(IrohError)` is empty). A stream that is given up is stopped and reset, because one that is only
dropped looks finished to the peer. A finished stream waits until the peer has received it.

The library contacts every relay that it is handed, also one in the address of a peer. So `dial` takes a relay only if it is one
of those of `use_relays`. It also tries the addresses that a peer names on an existing connection, to find a direct path.

Callers must know: cancelling a read loses data, so the stream is unusable after it. Every stream's content must carry its own
length and hash. Decisions about peers belong in `mesh`, which relays to use in `relays` and `transport`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import iroh
from iroh.iroh_ffi import InternalError

from psyche_core.config.sentences import printable
from psyche_core.errors import CannotBind, TransportError
from psyche_p2p_quic.addresses.interfaces import addresses_of
from psyche_p2p_quic.addresses.relay_urls import N0_RELAYS, canonical_relay
from psyche_p2p_quic.endpoint.ffi_copy import mend
from psyche_p2p_quic.observer.protocol import ALPN as OBSERVER_ALPN
from psyche_p2p_quic.observer.protocol import MAX_OBSERVATION_BYTES, Observation, ObserverLocation

ALPN = b"psyche/p2p/1"
_GIVE_UP_SECONDS = 1.0
_CONTROL_PRIORITY = 10
_N0_DISCOVERY_PORT = 7842
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


class ObserverRefused(LinkLost):
    """An observer was reached, and did not tell our address."""


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


@dataclass(frozen=True, slots=True)
class Path:
    """How the packets of a link travel now. relayed: through a relay. rtt: seconds there and back, 0 before it is measured."""

    relayed: bool
    rtt: float


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

    @property
    def path(self) -> Path | None:
        """The path in use; None once the link is closed, and while the library has chosen none."""
        for path in self._connection.paths():
            if path.is_selected:
                return Path(not path.is_ip, path.rtt_ms / 1000)

        return None

    async def read_one_way(self, most: int) -> bytes:
        """All of the next one-way stream that the peer opens, at most so many bytes."""
        with _as_link_lost("read a one-way stream"):
            stream = await self._connection.accept_uni()
            return bytes(await stream.read_to_end(most))

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

    async def closed(self) -> None:
        """Wait until the link has ended."""
        with _as_link_lost("wait for the end"):
            await self._connection.closed()

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


class _Sockets(iroh.Preset):
    """Binds only the given socket addresses."""

    def __init__(self, sockets: Sequence[str], *, discovery: bool) -> None:
        self._sockets = sockets
        self._discovery = discovery

    def apply(self, builder: Any) -> None:
        if self._discovery:
            builder.apply_n0_disable_relay()
        else:
            builder.apply_minimal()
        for socket in self._sockets:
            builder.bind_addr(socket)


class Endpoint:
    """Our sockets and key. discovery: whether n0's public service publishes and finds addresses of endpoints."""

    def __init__(self, endpoint: Any, *, families: Collection[int], relays: bool, discovery: bool) -> None:
        self.discovery = discovery
        self._endpoint = endpoint
        self._families = families
        self._can_relay = relays
        self._relays: tuple[str, ...] = ()
        self._wanted_relays: tuple[tuple[str, ...], str | None] = ((), None)
        self._choosing = anyio.Lock()
        self._external: dict[str, None] = {}

    @classmethod
    async def bind(
        cls,
        seed: bytes,
        *,
        interface: str,
        port: int,
        whole: bool = False,
        relays: bool = False,
        discovery: bool = False,
    ) -> Endpoint:
        """Bind an address, or the name of an interface, at `port` (0: any) with the Ed25519 seed. Raises TransportError.

        whole: see `interfaces.addresses_of`. The library always binds both families; one without an address gets loopback
        only. relays: whether `use_relays` may be called. discovery: see the class.
        """
        hosts = [ipaddress.ip_address(ip) for ip in addresses_of(interface, whole=whole)]
        families = frozenset(host.version for host in hosts)
        wanted = [f"{ip}:{port}" if ip.version == 4 else f"[{ip}]:{port}" for ip in hosts]
        others = [loopback for version, loopback in ((4, "127.0.0.1:0"), (6, "[::1]:0")) if version not in families]
        mode = iroh.RelayMode.custom(iroh.RelayMap.empty()) if relays else iroh.RelayMode.disabled()
        options = iroh.EndpointOptions(
            preset=_Sockets([*wanted, *others], discovery=discovery), relay_mode=mode, secret_key=seed, alpns=[ALPN]
        )
        shown = " and ".join(wanted)
        try:
            with _as_link_lost(f"cannot bind {shown}"):
                endpoint = await iroh.Endpoint.bind(options)
        except LinkLost as error:
            message = f"cannot bind {shown}: no interface of this machine has that address, or the port is taken; choose another"
            raise CannotBind(message) from error

        return cls(endpoint, families=families, relays=relays, discovery=discovery)

    @property
    def sockets(self) -> tuple[tuple[str, int], ...]:
        """(ip, port) pairs at which we may be reached now: external addresses first, loopback only where there is nothing else.

        In a fixed order, so that equal addresses look equal.
        """
        found = set()
        for text in {*self._endpoint.addr().direct_addresses(), *self._external}:
            host, _, port = text.rpartition(":")
            ip = ipaddress.ip_address(host.strip("[]"))
            if text in self._external or ip.version in self._families:
                found.add((text not in self._external, ip.version, ip, int(port)))

        others = [each for each in found if not each[2].is_loopback or not each[0]]
        return tuple((str(ip), port) for _, _, ip, port in sorted(others or found)[:8])

    def is_bound(self, address: str) -> bool:
        """Whether an `ip:port` is one of our sockets' own."""
        return address not in self._external and address in self._endpoint.addr().direct_addresses()

    @property
    def own_ips(self) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, ...]:
        """The IP addresses of `sockets` that are not external."""
        external = {text.rpartition(":")[0].strip("[]") for text in self._external}
        own = [ip for ip, _ in self.sockets if ip not in external]
        return tuple(ipaddress.ip_address(ip) for ip in own or [ip for ip, _ in self.sockets])

    @property
    def port(self) -> int:
        """The UDP port of the first of our sockets that is not loopback only."""
        for text in self._endpoint.bound_sockets():
            host, _, port = text.rpartition(":")
            if ipaddress.ip_address(host.strip("[]")).version in self._families:
                return int(port)

        return 0

    @property
    def relays(self) -> tuple[str, ...]:
        """The relays in use, see `use_relays`."""
        return self._relays

    @property
    def home_relay(self) -> str | None:
        """The relay through which we can be reached now; None while there is none."""
        url = self._endpoint.addr().relay_url()
        home = None if url is None else canonical_relay(url)
        return home if home in self._relays else None

    async def use_relays(self, urls: Sequence[str], *, token: str | None = None) -> None:
        """Use these relays (see `relays.canonical_relay`) and no others. token: shown to each of them.

        Calls may overlap: whichever ends last, the relays are those of the newest call.
        """
        if not self._can_relay:
            return

        self._wanted_relays = tuple(urls), token
        async with self._choosing:
            with _as_link_lost("choose relays"):
                while self._relays != self._wanted_relays[0]:
                    await self._change_relays(*self._wanted_relays)  # of the newest call, which may have come meanwhile

    async def _change_relays(self, wanted: tuple[str, ...], token: str | None) -> None:
        """What was done is noted at once, so that a failure or cancellation leaves a true list."""
        for url in [url for url in self._relays if url not in wanted]:
            self._relays = tuple(each for each in self._relays if each != url)
            await self._endpoint.remove_relay(url)
        for url in wanted:
            if url not in self._relays:
                port = _N0_DISCOVERY_PORT if url in N0_RELAYS else None
                await self._endpoint.insert_relay(iroh.RelayConfig(url=url, quic_port=port, auth_token=token))
                self._relays = (*self._relays, url)
        self._relays = wanted

    async def is_online(self, *, seconds: float) -> bool:
        """Whether a relay has let us in, or does within some seconds. `home_relay` only says which one answers requests."""
        with anyio.move_on_after(seconds):
            await self._endpoint.online()
            return True

        return False

    async def use_external(self, addresses: Collection[str]) -> None:
        """Offer peers these `ip:port` addresses beside those of our sockets; they replace the earlier ones."""
        with _as_link_lost("note an external address"):
            for address in [address for address in self._external if address not in addresses]:
                await self._endpoint.remove_external_addr(address)
                del self._external[address]
            for address in addresses:
                if address not in self._external:
                    self._external[address] = None
                    await self._endpoint.add_external_addr(address)

    async def arrival(self) -> Arrival | None:
        """The next connection attempt, None once the endpoint is closed."""
        with _as_link_lost("accept a connection"):
            incoming = await self._endpoint.accept_next()

        return None if incoming is None else Arrival(incoming)

    async def dial(self, peer: bytes, addresses: Sequence[str], *, relay: str | None = None) -> Link:
        """Connect to the peer with that key at any of the `ip:port` addresses. May take long; use a timeout.

        relay: also through this relay, if it is one of ours; another one is never contacted.
        """
        with _as_link_lost("dial"):
            through = relay if relay in self._relays else None
            target = iroh.EndpointAddr(iroh.EndpointId.from_bytes(peer), through, list(addresses))
            return Link(await self._endpoint.connect(target, ALPN))

    async def call_observer(self, location: ObserverLocation, hosts: Sequence[str]) -> tuple[Link, Observation]:
        """Ask an observer at its host's IP addresses for our address; see `observer_protocol`. May take long; use a timeout.

        Raises LinkLost, ObserverRefused or WireError. The caller keeps the link open, and closes it.
        """
        at = [f"[{host}]:{location.port}" if ":" in host else f"{host}:{location.port}" for host in hosts]
        with _as_link_lost("call the observer"):
            target = iroh.EndpointAddr(iroh.EndpointId.from_bytes(location.key), None, at)
            link = Link(await self._endpoint.connect(target, OBSERVER_ALPN))
        try:
            return link, Observation.decode(await link.read_one_way(MAX_OBSERVATION_BYTES))
        except LinkLost as error:
            message = f"the observer refused: {link.close_reason or error}"
            raise ObserverRefused(message) from error
        except BaseException:
            link.close(0, "")
            raise

    async def aclose(self, *, timeout: float) -> None:
        """Close all connections; the peers see it at once. Waits until the last packets are sent, at most `timeout` seconds."""
        with anyio.move_on_after(timeout, shield=True), _as_link_lost("close"):
            await self._endpoint.close()
