"""The transport `quic`: implements psyche-core's transport contract with message log, blob store, mesh and blob exchange.

Everything runs in one background task that `__aenter__` starts and `aclose` ends, so both may be called from different tasks.
Before it is entered, methods raise TransportError.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import anyio

from psyche_core.errors import BlobRejected, TransportError
from psyche_core.hookspecs import TransportContext
from psyche_core.interfaces.transport import Incoming, Opened, PeerPath, Transport, TransportStats
from psyche_core.p2p.blob_store import BlobStore
from psyche_core.p2p.message_log import MessageLog
from psyche_core.p2p.offers import Offer, OfferBook
from psyche_core.rate_limit import TokenBucket
from psyche_core.wire.frames import FrameDecoder
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.addresses.peer_address import INSTANCE_BYTES, PeerAddress
from psyche_p2p_quic.addresses.relay_urls import RelayChoice
from psyche_p2p_quic.blobs.exchange import BlobExchange
from psyche_p2p_quic.connections.control_frames import Hello
from psyche_p2p_quic.connections.control_protocol import ControlProtocol
from psyche_p2p_quic.connections.gossip import Gossip
from psyche_p2p_quic.connections.mesh import Mesh
from psyche_p2p_quic.connections.per_peer import Remembered
from psyche_p2p_quic.connections.session import Session
from psyche_p2p_quic.endpoint.endpoint import Endpoint
from psyche_p2p_quic.endpoint.links import Link, Stream
from psyche_p2p_quic.endpoint.own_address import OwnAddress
from psyche_p2p_quic.endpoint.relay_refusals import RelayRefusals
from psyche_p2p_quic.options import QuicOptions, check_advertised_ports, parse_advertised
from psyche_p2p_quic.settings import QuicSettings

_POLL_SECONDS = 0.05


class QuicTransport(Transport):
    """An endpoint. run_id: peers of other runs are refused.

    interface, port: what to bind: an address or the name of an interface; port 0 picks a free one. whole_interface: an address
    stands for its interface, see `addresses.interfaces`. options: the member's decisions about relays and its own address; the
    default uses the relays of `use_relays` and their observers, and nothing else.
    """

    def __init__(
        self,
        run_id: str,
        key: SecretKey,
        *,
        interface: str = "127.0.0.1",
        port: int = 0,
        whole_interface: bool = False,
        options: QuicOptions | None = None,
        settings: QuicSettings | None = None,
    ) -> None:
        self._run_id = run_id
        self._key = key
        self._interface = interface
        self._port = port
        self._whole_interface = whole_interface
        self._options = options or QuicOptions.model_construct()
        self._choice = RelayChoice.parse(self._options.iroh_relay)
        self._settings = settings or QuicSettings()
        self._instance = secrets.token_bytes(INSTANCE_BYTES)
        self._log = MessageLog(own=key.public, limits=self._settings.log)
        self._store = BlobStore(max_blobs=self._settings.store_blobs, max_bytes=self._settings.store_bytes)
        self._offers = OfferBook(max_offers=self._settings.offers)
        self._readable = anyio.Event()
        self._sent = 0
        self._received = 0
        self._address = b""
        self._relays_chosen = 0
        rate, burst = self._settings.requests_per_second, self._settings.request_burst
        self._requests = Remembered(lambda: TokenBucket(rate, burst=burst))
        self._refusals = RelayRefusals(key, token=self._options.iroh_relay_token, seconds=self._settings.relay_check_seconds)
        self._member = False  # whether we are among the peers passed to set_peers
        self._endpoint: Endpoint | None = None
        self._own_address: OwnAddress | None = None
        self._mesh: Mesh | None = None
        self._gossip: Gossip | None = None
        self._blobs: BlobExchange | None = None
        self._running: asyncio.Task[None] | None = None

    @classmethod
    def from_context(cls, context: TransportContext) -> QuicTransport:
        """Return the transport for a context of the hook. Raises ConfigError for options that contradict each other."""
        options = context.settings
        assert options is None or isinstance(options, QuicOptions)
        check_advertised_ports(None if options is None else options.advertise_address, port=context.port)
        return cls(
            context.run_id,
            context.key,
            interface=context.interface,
            port=context.port,
            whole_interface=context.whole_interface,
            options=options,
        )

    async def __aenter__(self) -> Self:
        """Bind. Raises TransportError when that is not possible."""
        endpoint = await Endpoint.bind(
            self._key.seed,
            interface=self._interface,
            port=self._port,
            whole=self._whole_interface,
            relays=self._choice.urls != (),
            discovery=self._options.iroh_discovery == "n0",
        )
        advertised = [
            f"[{ip}]:{port or endpoint.port}" if ":" in ip else f"{ip}:{port or endpoint.port}"
            for ip, port in parse_advertised(self._options.advertise_address)
        ]
        observe = self._options.iroh_discovery in (None, "observer")
        self._own_address = OwnAddress(endpoint, advertised=advertised, observe=observe)
        await endpoint.use_external(advertised)
        if self._choice.urls:
            await endpoint.use_relays(self._choice.urls, token=self._options.iroh_relay_token)
        self._endpoint = endpoint
        self._address = self._record(endpoint)
        ready = asyncio.get_running_loop().create_future()
        self._running = asyncio.create_task(self._run(endpoint, ready))
        await ready
        return self

    async def aclose(self) -> None:
        """Close all connections; peers see it at once. Idempotent."""
        running = self._running
        if running is None:
            return

        if not running.done():
            running.cancel()
        await asyncio.wait({running})

    async def _run(self, endpoint: Endpoint, ready: asyncio.Future[None]) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                hello = Hello(self._run_id, self._instance)
                self._mesh = Mesh(
                    endpoint, own=self.peer_id, hello=hello, furnish=self._furnish, settings=self._settings, tasks=tasks
                )
                rate = self._options.max_upload_rate
                self._blobs = BlobExchange(
                    self._store,
                    self._offers,
                    self._mesh,
                    settings=self._settings,
                    upload_rate=None if rate is None else rate * 1e6,
                )
                self._gossip = Gossip(self._log, self._mesh, own=self.peer_id, settings=self._settings)
                tasks.start_soon(self._gossip.run)
                tasks.start_soon(self._mesh.hang_up)
                self._mesh.gone = self._blobs.results.gone
                tasks.start_soon(self._follow_address, endpoint)
                if self._choice.urls != ():
                    tasks.start_soon(self._refusals.watch, endpoint, lambda: self._member)
                if self._own_address is not None:
                    tasks.start_soon(self._own_address.run)
                    tasks.start_soon(self._own_address.follow_interface, self._moved, self._settings)
                ready.set_result(None)
                await self._mesh.listen()
        finally:
            if self._blobs is not None:
                with anyio.CancelScope(shield=True):
                    await self._blobs.aclose()
            await endpoint.aclose(timeout=self._settings.close_seconds)

    async def _follow_address(self, endpoint: Endpoint) -> None:
        while True:
            await anyio.sleep(self._settings.address_seconds)
            self._address = self._record(endpoint)

    def _moved(self) -> None:
        """Continue after our endpoint was bound elsewhere."""
        self._instance = secrets.token_bytes(INSTANCE_BYTES)
        if self._mesh is not None:
            self._mesh.start_over(Hello(self._run_id, self._instance))

    def _record(self, endpoint: Endpoint) -> bytes:
        """Return our address as others get it. A relay stays in it while it is unreachable, so that it need not be published
        again.
        """
        relays = endpoint.relays
        home = endpoint.home_relay
        if home is None and self._address:
            home = PeerAddress.decode(self._address).relay
        if home not in relays:
            home = next(iter(relays), None)
        return PeerAddress(endpoint.sockets, home, self._instance).encode()

    # ------------------------------------------------------------------------------------------------ the contract

    @property
    def peer_id(self) -> bytes:
        """Our p2p key."""
        return self._key.public

    @property
    def address(self) -> bytes:
        """Our sockets and our relay, see `addresses.peer_address`; available once entered."""
        self._entered()
        return self._address

    @property
    def stats(self) -> TransportStats:
        """Bytes of frames and blobs, the connected peers, and our neighbours."""
        if self._mesh is None:
            return TransportStats(self._sent, self._received)

        near = self._mesh.guests.neighbours
        neighbours = None if near is None else tuple(sorted(near))
        return TransportStats(self._sent, self._received, tuple(self._mesh.sessions), neighbours)

    @property
    def paths(self) -> tuple[PeerPath, ...]:
        """The present path to each connected peer."""
        sessions = () if self._mesh is None else tuple(self._mesh.sessions.values())
        return tuple(
            PeerPath(session.peer, relayed=path.relayed, rtt=path.rtt, bytes_sent=session.sent, bytes_received=session.received)
            for session in sessions
            if (path := session.path) is not None
        )

    @property
    def problems(self) -> tuple[str, ...]:
        """Why no relay admits us, while none does."""
        return self._refusals.problems

    async def use_relays(self, relays: Sequence[str]) -> None:
        """Use the run's relays, unless the member chose others.

        Return once we can be reached through one, or after some seconds.
        """
        self._entered()
        endpoint, own_address = self._endpoint, self._own_address
        if endpoint is None or own_address is None:
            return

        chosen = self._choice.of(relays)
        self._relays_chosen += 1
        call, before = self._relays_chosen, endpoint.relays
        await endpoint.use_relays(chosen, token=self._options.iroh_relay_token)
        if call != self._relays_chosen:
            return  # a newer call has replaced this one
        if endpoint.relays != before:
            own_address.ask_again()
        if chosen:
            with anyio.move_on_after(self._settings.relay_seconds):
                await own_address.asked.wait()
                while endpoint.home_relay is None and call == self._relays_chosen:  # noqa: ASYNC110 - the library has no event
                    await anyio.sleep(_POLL_SECONDS)
        self._address = self._record(endpoint)

    def check_messages(self, check: Callable[[bytes], Opened]) -> None:
        """Check messages that others pass on; see the contract."""
        self._log.check_with(check)

    async def set_peers(self, peers: Mapping[bytes, bytes], *, seed: int | None = None) -> None:
        """Replace the members. With a seed, more members than `overlay_above` are not connected between all."""
        mesh, blobs = self._entered()
        assert self._gossip is not None
        before = mesh.guests.neighbours
        self._member = self._key.public in peers
        mesh.set_members(peers, neighbours=self._gossip.neighbours(peers, seed))
        self._log.set_members(peers)
        blobs.results.begin_epoch(seed)
        self._gossip.arrived()
        if before is None:
            blobs.results.announce(self._store.hashes)  # those that are connected already were told nothing

    async def broadcast(self, message: bytes, *, tag: int) -> None:
        """Queue a message for all connected peers and keep it for the others. Raises ValueError when it is too long."""
        mesh, _ = self._entered()
        entry = self._log.add_own(message, tag=tag)
        if entry is not None:
            for session in tuple(mesh.sessions.values()):
                session.send(session.conversation.announce(entry))

    async def receive(self) -> Incoming:
        """Return the next message from another peer."""
        while True:
            entry = self._log.read()
            if entry is not None and entry.via is not None:
                return Incoming(entry.via, entry.message, entry.opened)

            if self._readable.is_set():
                self._readable = anyio.Event()
            await self._readable.wait()

    async def publish(self, blob: bytes, *, tag: int) -> bytes:
        """Offer a blob. Raises TransportError when it does not fit the store."""
        blob_hash = await self._store.publish(blob, tag=tag)
        if self._blobs is not None:
            self._blobs.results.announce([blob_hash])
        return blob_hash

    async def offer(
        self,
        blob_hash: bytes,
        *,
        size: int,
        read: Callable[[], bytes | memoryview],
        tag: int,
        stamp: Callable[[], object | None] = lambda: None,
    ) -> None:
        """Offer a blob kept elsewhere. Raises TransportError when its tag has expired or there are too many offers."""
        self._offers.add(Offer(blob_hash, size, read, tag, stamp))

    async def fetch(
        self,
        blob_hash: bytes,
        *,
        sources: Sequence[bytes],
        max_bytes: int,
        timeout: float,
        tag: int,
        keep: bool = True,
        wanted_by_all: bool = False,
    ) -> bytes:
        """Get a blob, see the contract."""
        _, blobs = self._entered()
        blob = await blobs.own(blob_hash)
        if blob is None:
            fetch = blobs.fetch_result if wanted_by_all else blobs.fetch
            blob = await fetch(blob_hash, sources=sources, max_bytes=max_bytes, timeout=timeout)
            if keep and self._store.put(blob_hash, blob, tag=tag, own=False):
                blobs.results.announce([blob_hash])
        elif len(blob) > max_bytes:
            message = f"blob {blob_hash.hex()} has {len(blob)} bytes, over the limit of {max_bytes}"
            raise BlobRejected(message)

        self._store.touch(blob_hash, tag=tag)
        return blob

    async def expire(self, before: int) -> None:
        """Drop everything with an older tag."""
        self._log.expire(before)
        self._store.expire(before)
        self._offers.expire(before)
        if self._blobs is not None:
            self._blobs.expire()

    def _entered(self) -> tuple[Mesh, BlobExchange]:
        if self._mesh is None or self._blobs is None or self._running is None or self._running.done():
            message = "the transport is not open: use it inside `async with`"
            raise TransportError(message)

        return self._mesh, self._blobs

    # ------------------------------------------------------------------------------------------ for the sessions

    def _furnish(self, link: Link, stream: Stream, decoder: FrameDecoder, dialled: bool, instance: bytes) -> Session:
        assert self._blobs is not None
        results = self._blobs.results
        conversation = ControlProtocol(link.peer, self._log, settings=self._settings, blobs=results)
        return Session(
            link,
            stream,
            decoder,
            conversation=conversation,
            owner=self,
            requests=self._requests.of(link.peer),
            settings=self._settings,
            dialled=dialled,
            instance=instance,
        )

    def count(self, *, sent: int = 0, received: int = 0) -> None:
        """Count bytes that a session sent or received."""
        self._sent += sent
        self._received += received

    def messages_arrived(self) -> None:
        """Note that a session put messages into the log."""
        if self._log.has_unread:
            self._readable.set()
            if self._gossip is not None:
                self._gossip.arrived()

    def offended(self, session: Session, reason: str) -> None:
        """Handle a session whose peer broke the rules."""
        if self._mesh is not None:
            self._mesh.offended(session.peer, reason)

    async def serve(self, session: Session, stream: Stream) -> int:
        """Answer a stream that a session's peer opened."""
        if self._blobs is None:
            return 0

        sent = await self._blobs.serve(session, stream)
        session.sent += sent
        self.count(sent=sent)
        return sent
