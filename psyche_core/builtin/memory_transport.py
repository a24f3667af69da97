"""A transport inside one process: endpoints attached to one `MemoryNetwork` hand each other messages and blobs directly.

It keeps the guarantees of `psyche_core.interfaces.transport`, with the same message log, blob store and fetch plan as a network
transport, and can cut links on request. A network is an object that the embedding program makes and passes to each endpoint,
never something global. So a client started alone through the hook `transport.memory` has its own network without peers: this
transport is for tests, simulations and several clients embedded in one process. Everything of one network belongs to one event
loop. Delay and bandwidth are not modelled.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import anyio
import anyio.lowlevel
import anyio.to_thread

from psyche_core.errors import BlobNotFound, BlobRejected, TransportError
from psyche_core.hookspecs import TransportContext
from psyche_core.interfaces.transport import Incoming, Opened, Transport, TransportStats
from psyche_core.p2p.blob_store import BlobStore, sha256
from psyche_core.p2p.fetch_plan import Answer, FetchPlan
from psyche_core.p2p.message_log import LogEntry, LogLimits, MessageLog, Verdict
from psyche_core.p2p.offers import Offer, OfferBook

ADDRESS = b"memory"
READS_AT_ONCE = 8
"""Maximum number of offered blobs that all endpoints of a network together read, and so hold in memory, at the same time."""


class MemoryNetwork:
    """Connects the endpoints attached to it, and knows which links are cut."""

    def __init__(self) -> None:
        self.reads: anyio.CapacityLimiter = anyio.CapacityLimiter(READS_AT_ONCE)
        self._endpoints: dict[bytes, MemoryTransport] = {}
        self._cut: set[frozenset[bytes]] = set()

    def disconnect(self, one: bytes, other: bytes) -> None:
        """Cut the link between two peers (p2p keys), now and for endpoints that attach later."""
        self._cut.add(frozenset((one, other)))
        self._changed()

    def reconnect(self, one: bytes, other: bytes) -> None:
        """Restore the link between two peers, and deliver the unexpired messages that either lacks."""
        self._cut.discard(frozenset((one, other)))
        self._changed()

    def attach(self, endpoint: MemoryTransport) -> None:
        """Make an endpoint reachable. Raises TransportError if its key is attached already."""
        if endpoint.peer_id in self._endpoints:
            message = (
                f"the peer {endpoint.peer_id.hex()} is attached to this memory network already; give each client its own key"
            )
            raise TransportError(message)

        self._endpoints[endpoint.peer_id] = endpoint
        self._changed()

    def detach(self, endpoint: MemoryTransport) -> None:
        """Make an endpoint unreachable."""
        if self._endpoints.get(endpoint.peer_id) is endpoint:
            del self._endpoints[endpoint.peer_id]
            self._changed()

    def neighbours(self, endpoint: MemoryTransport) -> dict[bytes, MemoryTransport]:
        """Endpoints connected to this one: both are attached, each is a member for the other, and the link is not cut."""
        if self._endpoints.get(endpoint.peer_id) is not endpoint:
            return {}

        return {
            peer: other
            for peer, other in self._endpoints.items()
            if peer in endpoint.members
            and endpoint.peer_id in other.members
            and frozenset((peer, endpoint.peer_id)) not in self._cut
        }

    def forward(self, start: MemoryTransport, entry: LogEntry) -> None:
        """Deliver a message of `start` to all connected endpoints that lack it, and from them onwards."""
        waiting = deque([start])
        while waiting:
            giver = waiting.popleft()
            relayed = giver is not start or entry.via is not None
            waiting.extend(taker for taker in self.neighbours(giver).values() if taker.take(giver, entry, relayed=relayed))

    def members_changed(self, endpoint: MemoryTransport) -> None:
        """Report that the members of an endpoint changed."""
        if self._endpoints.get(endpoint.peer_id) is endpoint:
            self._changed()

    def blobs_changed(self, endpoint: MemoryTransport) -> None:
        """Report that the blobs of an endpoint changed. This makes no message deliverable."""
        if self._endpoints.get(endpoint.peer_id) is endpoint:
            self._wake()

    def _changed(self) -> None:
        for endpoint in self._endpoints.values():
            for entry in endpoint.live_messages():
                self.forward(endpoint, entry)
        self._wake()

    def _wake(self) -> None:
        for endpoint in self._endpoints.values():
            endpoint.notice_change()


class MemoryTransport(Transport):
    """One endpoint of a `MemoryNetwork`.

    network: shared by all endpoints that should connect. peer_id: our p2p key, 32 bytes. limits: limits of a peer's messages in
    the message log.
    """

    def __init__(self, network: MemoryNetwork, peer_id: bytes, *, limits: LogLimits | None = None) -> None:
        self._network = network
        self._peer_id = peer_id
        self._members: dict[bytes, bytes] = {}
        self._log = MessageLog(own=peer_id, limits=limits)
        self._blobs = BlobStore()
        self._offers = OfferBook()
        self._doubted: set[bytes] = set()
        self._fetching: Counter[bytes] = Counter()
        self._arrived: dict[bytes, bytes] = {}  # blobs for which several fetches wait
        self._readable = anyio.Event()
        self._change = anyio.Event()
        self._closed = False
        self._sent = 0
        self._received = 0

    @classmethod
    def from_context(cls, context: TransportContext, *, network: MemoryNetwork | None = None) -> MemoryTransport:
        """An endpoint for the hook. Without a shared `network` it gets its own network without peers.

        Embedding programs register `functools.partial(MemoryTransport.from_context, network=network)`.
        """
        return cls(network or MemoryNetwork(), context.key.public)

    async def __aenter__(self) -> Self:
        self._network.attach(self)
        return self

    @property
    def peer_id(self) -> bytes:
        """Our p2p key."""
        return self._peer_id

    @property
    def address(self) -> bytes:
        """A constant, equal for all endpoints: a network finds endpoints by their key."""
        return ADDRESS

    @property
    def stats(self) -> TransportStats:
        """Bytes of messages and blobs sent and received, and the connected peers."""
        return TransportStats(self._sent, self._received, tuple(self._network.neighbours(self)))

    @property
    def members(self) -> Mapping[bytes, bytes]:
        """The peers set by `set_peers`."""
        return self._members

    def check_messages(self, check: Callable[[bytes], Opened]) -> None:
        """Check received messages; see the contract. This transport disconnects no peer."""
        self._log.check_with(check)

    async def set_peers(self, peers: Mapping[bytes, bytes], *, seed: int | None = None) -> None:  # noqa: ARG002 - all are connected
        """Replace the members."""
        self._log.set_members(peers)
        self._members = {peer: address for peer, address in peers.items() if peer != self._peer_id}
        self._doubted &= self._members.keys()
        self._network.members_changed(self)

    async def broadcast(self, message: bytes, *, tag: int) -> None:
        """Deliver a message to all connected peers and keep it for later ones."""
        entry = self._log.add_own(message, tag=tag)
        if entry is not None:
            self._network.forward(self, entry)

    async def receive(self) -> Incoming:
        """The next message from another endpoint."""
        await anyio.lowlevel.checkpoint()
        while True:
            entry = self._log.read()
            if entry is not None and entry.via is not None:
                return Incoming(entry.via, entry.message, entry.opened)

            if self._readable.is_set():
                self._readable = anyio.Event()
            await self._readable.wait()

    async def publish(self, blob: bytes, *, tag: int) -> bytes:
        """Offer a blob."""
        blob_hash = await self._blobs.publish(blob, tag=tag)
        self._network.blobs_changed(self)
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
        """Offer a blob that is stored elsewhere; see the contract."""
        self._offers.add(Offer(blob_hash, size, read, tag, stamp))

        self._network.blobs_changed(self)

    async def fetch(
        self,
        blob_hash: bytes,
        *,
        sources: Sequence[bytes],
        max_bytes: int,
        timeout: float,
        tag: int,
        keep: bool = True,
        wanted_by_all: bool = False,  # noqa: ARG002 - all are connected
    ) -> bytes:
        """Get a blob from our store, the sources or other members; see the contract."""
        await anyio.lowlevel.checkpoint()
        blob = await self._own_blob(blob_hash)
        if blob is None:
            self._fetching[blob_hash] += 1
            try:
                with anyio.fail_after(timeout):
                    blob = await self._ask_around(blob_hash, FetchPlan(sources), max_bytes=max_bytes)
            except TimeoutError:
                message = f"nobody reachable had blob {blob_hash.hex()} within {timeout:g} s"
                raise BlobNotFound(message) from None
            finally:
                self._fetching[blob_hash] -= 1
                if not self._fetching[blob_hash]:
                    del self._fetching[blob_hash]
                    self._arrived.pop(blob_hash, None)

            if keep:
                self._blobs.put(blob_hash, blob, tag=tag, own=False)
                self._network.blobs_changed(self)
        elif len(blob) > max_bytes:
            message = f"blob {blob_hash.hex()} has {len(blob)} bytes, over the limit of {max_bytes}"
            raise BlobRejected(message)

        self._blobs.touch(blob_hash, tag=tag)
        return blob

    async def expire(self, before: int) -> None:
        """Drop messages, blobs and offers with a lower tag."""
        self._log.expire(before)
        self._blobs.expire(before)
        self._offers.expire(before)

    async def aclose(self) -> None:
        """Detach from the network."""
        if not self._closed:
            self._closed = True
            self._network.detach(self)

    # ------------------------------------------------------------------------------------- called by the network

    def take(self, giver: MemoryTransport, entry: LogEntry, *, relayed: bool) -> bool:
        """Accept a message from a neighbour, its own or a relayed one. Returns whether it was new here and may be passed on."""
        verdict, message_id = self._log.add_from(giver.peer_id, entry.message, tag=entry.tag, relayed=relayed)
        if verdict is not Verdict.NEW:
            return False

        giver.count_sent(len(entry.message))
        self._received += len(entry.message)
        self._readable.set()
        return self._log.may_pass_on(message_id)

    def count_sent(self, count: int) -> None:
        """Count bytes that a neighbour received from us."""
        self._sent += count

    def live_messages(self) -> list[LogEntry]:
        """All messages that may be passed on and whose tag has not expired."""
        return self._log.lacking(())

    def notice_change(self) -> None:
        """Wake fetches that wait for a blob, because links or blobs changed."""
        self._change.set()
        self._change = anyio.Event()

    def size_of(self, blob_hash: bytes) -> int | None:
        """The size in bytes of a blob that we stored or offer; None if we do not have it."""
        blob, offer = self._blobs.get(blob_hash), self._offers.get(blob_hash)
        if blob is not None:
            return len(blob)

        return None if offer is None else offer.size

    async def blob(self, blob_hash: bytes) -> bytes | None:
        """A blob that we stored or offer, for a neighbour; None if we do not have it."""
        return await self._own_blob(blob_hash)

    async def _own_blob(self, blob_hash: bytes) -> bytes | None:
        blob = self._blobs.get(blob_hash)
        offer = self._offers.get(blob_hash)
        if blob is not None or offer is None:
            return blob

        read = await anyio.to_thread.run_sync(offer.checked, limiter=self._network.reads)
        if read is None:
            self._offers.withdraw(offer)
        return None if read is None else bytes(read)

    async def _ask_around(self, blob_hash: bytes, plan: FetchPlan, *, max_bytes: int) -> bytes:
        while True:
            neighbours = self._network.neighbours(self)
            change = self._change
            peer = plan.begin(members=self._members, reachable=neighbours, doubted=self._doubted)
            if peer is None:
                plan.raise_if_over(blob_hash, self._members)
                await change.wait()
                continue

            size = neighbours[peer].size_of(blob_hash)
            if size is not None and size > max_bytes:
                plan.settle(peer, Answer.TOO_LARGE)
                continue

            blob = await neighbours[peer].blob(blob_hash)
            if blob_hash in self._arrived:  # a concurrent fetch got it first: one transfer for both
                blob = self._arrived[blob_hash]
                if len(blob) <= max_bytes:
                    return blob

            if blob is None:
                plan.settle(peer, Answer.ABSENT)
            elif len(blob) > max_bytes:
                plan.settle(peer, Answer.TOO_LARGE)
            elif await sha256(blob) != blob_hash:
                self._doubted.add(peer)
                plan.settle(peer, Answer.FALSE)
            else:
                if blob_hash not in self._arrived:
                    neighbours[peer].count_sent(len(blob))
                    self._received += len(blob)
                    self._arrived[blob_hash] = blob
                return blob
