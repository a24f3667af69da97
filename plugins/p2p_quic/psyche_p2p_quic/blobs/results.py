"""Fetches results where they reach members in several hops: from neighbours that have announced that they have them.

`psyche_core.p2p.downloads` chooses which result is asked for next, and where; this module sends the requests, notices who is too
slow, and tells neighbours what we have. A request may wait long for its turn (`upload_turns`). The first holder that begins to
send is the source, and the others' requests are withdrawn. A source that stalls, or sends too slowly, is given up; what is too
slow, and for how long a result is waited for, says `psyche_core.p2p.patience`.

Announcements may be false, and may never come. So there is an end to waiting (`fetch` returns None), and then `exchange` asks
whoever may have the result, and dials its author.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from io import BytesIO

import anyio

from psyche_core.errors import WireError
from psyche_core.p2p.blob_store import BlobStore
from psyche_core.p2p.downloads import Downloads
from psyche_core.p2p.fetch_plan import Answer
from psyche_core.p2p.holders import HolderBook
from psyche_core.p2p.message_log import PREFIX_BYTES
from psyche_core.p2p.patience import Pace, Patience
from psyche_p2p_quic.blobs.frames import BlobHead, BlobRequest
from psyche_p2p_quic.blobs.reading import read_body, read_head, verified
from psyche_p2p_quic.connections import session
from psyche_p2p_quic.connections.mesh import Mesh
from psyche_p2p_quic.connections.session import Session
from psyche_p2p_quic.endpoint.links import LinkLost
from psyche_p2p_quic.settings import QuicSettings


@dataclass(slots=True, eq=False)
class _Wanted:
    """A result that a caller waits for. since: when it was wanted, or when its last source failed. source: who sends it now."""

    blob_hash: bytes
    max_bytes: int
    since: float
    answered: set[bytes] = field(default_factory=set)
    source: bytes | None = None
    waiters: int = 0
    blob: bytes | None = None
    changed: anyio.Event = field(default_factory=anyio.Event)


@dataclass(slots=True)
class _Received:
    """Progress of one answer."""

    size: int | None = None
    received: int = 0


class Results:
    """Downloads of results over the sessions of `mesh`. store: what we have, and announce."""

    def __init__(self, store: BlobStore, mesh: Mesh, *, settings: QuicSettings) -> None:
        self._store = store
        self._mesh = mesh
        self._settings = settings
        self._holders = HolderBook()
        self._downloads = Downloads(self._holders)
        self._wanted: dict[bytes, _Wanted] = {}
        self._requests: dict[tuple[bytes, bytes], asyncio.Task[None]] = {}
        self._received = 0
        self._received_at = -math.inf
        self._pace = Pace(settings.hedge_bytes / settings.hedge_seconds)

    @property
    def active(self) -> bool:
        """Whether some members are no neighbours, so that results come in several hops."""
        return self._mesh.guests.neighbours is not None

    def announce(self, blob_hashes: Iterable[bytes]) -> None:
        """Tell all that are connected that we have these results."""
        if self.active:
            prefixes = [blob_hash[:PREFIX_BYTES] for blob_hash in blob_hashes]
            for made in tuple(self._mesh.sessions.values()):
                made.send(made.conversation.announce_blobs(prefixes))

    def held(self) -> list[bytes]:
        """Return what a new connection's peer is told that we have; nothing where all are neighbours."""
        return [blob_hash[:PREFIX_BYTES] for blob_hash in self._store.hashes] if self.active else []

    def heard(self, peer: bytes, prefixes: Sequence[bytes]) -> None:
        """Note what a peer says that it has."""
        if not self.active:
            return

        self._holders.note(peer, prefixes)
        for prefix in prefixes:
            if prefix in self._wanted:
                self._wanted[prefix].answered.discard(peer)
        self._pump()

    def gone(self, peer: bytes) -> None:
        """Note that the connection with a peer has ended."""
        self._downloads.forget_peer(peer)
        self._pump()

    async def fetch(self, blob_hash: bytes, *, sources: Sequence[bytes], max_bytes: int, patience: Patience) -> bytes | None:
        """Get a result from those that announced it; None if that takes too long, or none of them gives it.

        sources: members that say, in signed messages, that they have it. patience: until when it is waited for; it goes on while
        results come, this one or others, since a line has room for a few only.
        """
        name, now = blob_hash[:PREFIX_BYTES], asyncio.get_running_loop().time
        for source in sources:
            if source in self._mesh.sessions:
                self._holders.note(source, [name])
        wanted = self._wanted.setdefault(name, _Wanted(blob_hash, max_bytes, now()))
        wanted.max_bytes = max(wanted.max_bytes, max_bytes)
        wanted.waiters += 1
        self._downloads.expect_size(max_bytes)
        self._downloads.want(name)
        seen = self._received
        try:
            self._pump()
            while wanted.blob is None and patience.left(now()) > 0 and not self._is_hopeless(name, wanted, now()):
                wanted.changed = anyio.Event()
                with anyio.move_on_after(min(self._settings.hedge_seconds, patience.left(now()))):
                    await wanted.changed.wait()
                patience.note(self._received - seen, now())
                seen = self._received
            return wanted.blob
        finally:
            wanted.waiters -= 1
            if wanted.waiters == 0:
                del self._wanted[name]
                self._downloads.finished(name)
                self._cancel(request for request in self._requests if request[0] == name)
                self._pump()

    async def aclose(self) -> None:
        """Stop all requests."""
        tasks = tuple(self._requests.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_hopeless(self, name: bytes, wanted: _Wanted, now: float) -> bool:
        if wanted.source is not None:
            return False

        waited = now - max(wanted.since, self._received_at)  # while others arrive, our line is busy and all is well
        asked = any(request[0] == name for request in self._requests)
        left = any(peer in self._mesh.sessions and peer not in wanted.answered for peer in self._holders.of(name))
        if asked or left:
            return waited > self._settings.holder_seconds
        return bool(wanted.answered) or waited > self._settings.announcement_seconds

    def _pump(self) -> None:
        """Send all requests that may be sent now."""
        mesh = self._mesh
        if not self._wanted or not self.active:
            return

        doubted, slow = mesh.reputation.doubted, mesh.relayed
        while (chosen := self._downloads.begin(mesh.sessions, doubted=doubted, slow=slow)) is not None:
            self._requests[chosen] = asyncio.create_task(self._request(*chosen))

    def _cancel(self, requests: Iterable[tuple[bytes, bytes]]) -> None:
        for request in list(requests):
            task = self._requests.pop(request, None)
            if task is not None and task is not asyncio.current_task():
                task.cancel()

    async def _request(self, name: bytes, peer: bytes) -> None:
        """Ask one holder for a result, and note how that ended."""
        wanted = self._wanted[name]
        answer = await self._ask(name, peer, wanted)
        if self._requests.get((name, peer)) is asyncio.current_task():
            del self._requests[name, peer]
        if wanted.source == peer:
            wanted.source, wanted.since = None, asyncio.get_running_loop().time()
        if isinstance(answer, bytes):
            wanted.blob = answer
            self._received_at = asyncio.get_running_loop().time()
            self._cancel((name, other) for other in self._downloads.finished(name))
        elif answer is not Answer.RELEASED:
            wanted.answered.add(peer)
            self._downloads.failed(name, peer, answer)
        wanted.changed.set()
        self._pump()

    async def _ask(self, name: bytes, peer: bytes, wanted: _Wanted) -> bytes | Answer:
        source = self._mesh.sessions.get(peer)
        if source is None:
            return Answer.LOST

        def count(received: int) -> None:
            source.note_received(received)
            self._received += received

        async with source.asking:
            try:
                stream = await source.open()
            except LinkLost:
                return Answer.LOST

            complete = False
            try:
                settings, now = self._settings, asyncio.get_running_loop().time
                request = BlobRequest(wanted.blob_hash, wanted.max_bytes)
                head = await read_head(stream, request, seconds=settings.holder_seconds, count=count)
                if not isinstance(head, BlobHead):
                    complete = head is Answer.ABSENT
                    return head

                others = self._downloads.started(name, peer)
                if others is None:
                    return Answer.RELEASED

                wanted.source, began = peer, now()
                self._cancel((name, other) for other in others)
                body = await read_body(
                    stream,
                    head.length,
                    seconds=settings.stall_seconds,
                    least=lambda: self._pace.least,
                    progress=_Received(),
                    count=count,
                )
                complete, took = isinstance(body, BytesIO), now() - began
            except (LinkLost, WireError, TimeoutError):
                return Answer.LOST
            finally:
                if not complete:
                    await stream.abandon()

        if not isinstance(body, BytesIO):
            return body

        blob = await verified(body, wanted.blob_hash)
        if blob is None:
            blame(self._mesh, source)
            return Answer.FALSE

        self._pace.completed(len(blob), took)
        return blob


def blame(mesh: Mesh, source: Session) -> None:
    """Note that a peer served wrong bytes; one that does it again and again is refused for a while."""
    if mesh.reputation.served_false(source.peer, now=asyncio.get_running_loop().time()):
        source.close(session.BROKE_RULES, "you served blobs that do not match their hashes")
