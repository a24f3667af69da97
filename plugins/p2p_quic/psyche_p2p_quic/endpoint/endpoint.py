"""Our sockets and our key: binds them, makes connections, uses relays.

Only the requested sockets and loopback are bound (by a custom preset; the library would add `[::]`). The library contacts every
relay that it is given, even one in the address of a peer. So `dial` takes a relay only if it is one of those of `use_relays`. The
library also tries the addresses that a peer names on an existing connection, to find a direct path.

`connections` makes decisions about peers; `addresses.relay_urls` and `transport` decide which relays to use.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Sequence
from typing import Any

import anyio
import anyio.to_thread
import iroh

from psyche_core.errors import CannotBind
from psyche_p2p_quic.address_observer.protocol import ALPN as OBSERVER_ALPN
from psyche_p2p_quic.address_observer.protocol import MAX_OBSERVATION_BYTES, Observation, ObserverLocation
from psyche_p2p_quic.addresses.interfaces import addresses_of, addresses_there, followed
from psyche_p2p_quic.addresses.relay_urls import N0_RELAYS, canonical_relay
from psyche_p2p_quic.endpoint.links import Arrival, Link, LinkLost, ObserverRefused, as_link_lost

ALPN = b"psyche/p2p/1"
_N0_DISCOVERY_PORT = 7842


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

    def __init__(self, seed: bytes, *, port: int, follows: str | None, relays: bool, discovery: bool) -> None:
        """Made by `bind`. follows: name of the interface whose addresses are bound, None for an address that was chosen."""
        self.discovery = discovery
        self._seed = seed
        self._wanted_port = port
        self._follows = follows
        self._endpoint: Any = None
        self._bound: tuple[str, ...] = ()
        self._families: Collection[int] = ()
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

        whole: see `addresses.interfaces`. The library always binds both families; one without an address gets loopback
        only. relays: whether `use_relays` may be called. discovery: see the class.
        """
        found = addresses_of(interface, whole=whole)
        made = cls(seed, port=port, follows=followed(interface, whole=whole), relays=relays, discovery=discovery)
        await made._bind(found)
        return made

    async def _bind(self, ips: Sequence[str]) -> None:
        """Bind these addresses instead of those that are bound, which stay open."""
        hosts = [ipaddress.ip_address(ip) for ip in ips]
        families = frozenset(host.version for host in hosts)
        port = self._wanted_port
        wanted = [f"{ip}:{port}" if ip.version == 4 else f"[{ip}]:{port}" for ip in hosts]
        others = [loopback for version, loopback in ((4, "127.0.0.1:0"), (6, "[::1]:0")) if version not in families]
        mode = iroh.RelayMode.custom(iroh.RelayMap.empty()) if self._can_relay else iroh.RelayMode.disabled()
        preset = _Sockets([*wanted, *others], discovery=self.discovery)
        options = iroh.EndpointOptions(preset=preset, relay_mode=mode, secret_key=self._seed, alpns=[ALPN])
        shown = " and ".join(wanted)
        try:
            with as_link_lost(f"cannot bind {shown}"):
                self._endpoint = await iroh.Endpoint.bind(options)
        except LinkLost as error:
            message = f"cannot bind {shown}: no interface of this machine has that address, or the port is taken; choose another"
            raise CannotBind(message) from error

        self._bound, self._families = tuple(ips), families

    async def follow_interface(self, moved: Callable[[], None], *, timeout: float) -> bool:
        """Bind our interface's new addresses if it no longer has the bound ones. Return whether that was done.

        All links end then. The relays stay the same, and external addresses are dropped. moved: called before anything arrives at
        the new addresses. timeout: seconds for closing what was bound before. Raises TransportError if they cannot be bound.
        """
        if self._follows is None:
            return False

        there = await anyio.to_thread.run_sync(addresses_there, self._follows)
        if not there or not set(self._bound).isdisjoint(there):
            return False

        async with self._choosing:
            old = self._endpoint
            await self._bind(await anyio.to_thread.run_sync(addresses_of, self._follows))
            self._relays, self._external = (), {}
            moved()
            with as_link_lost("choose relays"):
                await self._change_relays(*self._wanted_relays)
        with anyio.move_on_after(timeout), as_link_lost("close"):
            await old.close()
        return True

    @property
    def sockets(self) -> tuple[tuple[str, int], ...]:
        """(ip, port) pairs at which we may be reached now: external addresses first, loopback only if there is nothing else.

        They are in a fixed order, so that equal sets of addresses are equal.
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
        """Return whether an `ip:port` is the address of one of our own sockets."""
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
        """Use these relays (see `relay_urls.canonical_relay`) and no others. token: shown to each of them.

        Calls may overlap: whichever ends last, the relays of the newest call are used.
        """
        if not self._can_relay:
            return

        self._wanted_relays = tuple(urls), token
        async with self._choosing:
            with as_link_lost("choose relays"):
                while self._relays != self._wanted_relays[0]:
                    await self._change_relays(*self._wanted_relays)  # those of the newest call, which may have come meanwhile

    async def _change_relays(self, wanted: tuple[str, ...], token: str | None) -> None:
        """Change the relays. Each change is recorded at once, so that the list is right even after a failure or cancellation."""
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
        """Return whether a relay has admitted us, or does within some seconds; `home_relay` only names one that answers."""
        with anyio.move_on_after(seconds):
            await self._endpoint.online()
            return True

        return False

    async def use_external(self, addresses: Collection[str]) -> None:
        """Offer peers these `ip:port` addresses beside those of our sockets; they replace the earlier ones."""
        with as_link_lost("note an external address"):
            for address in [address for address in self._external if address not in addresses]:
                await self._endpoint.remove_external_addr(address)
                del self._external[address]
            for address in addresses:
                if address not in self._external:
                    self._external[address] = None
                    await self._endpoint.add_external_addr(address)

    async def arrival(self) -> Arrival | None:
        """Return the next connection attempt, None once the endpoint is closed."""
        while True:
            asked = self._endpoint
            with as_link_lost("accept a connection"):
                incoming = await asked.accept_next()

            if incoming is not None:
                return Arrival(incoming)
            if asked is self._endpoint:
                return None

    async def dial(self, peer: bytes, addresses: Sequence[str], *, relay: str | None = None) -> Link:
        """Connect to the peer with that key at any of the `ip:port` addresses. May take long; use a timeout.

        relay: also through this relay, if it is one of ours; another one is never contacted.
        """
        with as_link_lost("dial"):
            through = relay if relay in self._relays else None
            target = iroh.EndpointAddr(iroh.EndpointId.from_bytes(peer), through, list(addresses))
            return Link(await self._endpoint.connect(target, ALPN))

    async def call_observer(self, location: ObserverLocation, hosts: Sequence[str]) -> tuple[Link, Observation]:
        """Ask an observer at its host's IP addresses for our address; see `address_observer.protocol`.

        May take long; use a timeout. Raises LinkLost, ObserverRefused or WireError. The caller keeps the link open, and closes
        it.
        """
        at = [f"[{host}]:{location.port}" if ":" in host else f"{host}:{location.port}" for host in hosts]
        with as_link_lost("call the observer"):
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
        with anyio.move_on_after(timeout, shield=True), as_link_lost("close"):
            await self._endpoint.close()
