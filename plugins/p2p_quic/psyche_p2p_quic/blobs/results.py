"""Fetches results where they reach members in several hops: from neighbours that have announced that they have them.

`psyche_core.p2p.downloads` chooses which result is asked for next, and where; this module sends the requests, notices who is too
slow, and tells neighbours what we have. A request may wait long for its turn (`upload_turns`). The first holder that begins to
send is the source, and the others' requests are withdrawn. A source that stalls, or sends too slowly, is given up; what is too
slow, and for how long a result is waited for, says `psyche_core.p2p.patience`. A source that lags is not waited for: another
holder may send the same result beside it. When both were measured in the same time, the one that needs longer for its rest is
stopped. Where our own line is full, nothing is asked for twice: its rate, and not the number of slow sources, says so. How many
results come at once, and how many requests wait, follows what the line carries (`psyche_core.p2p.demand`).

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
from psyche_core.p2p.demand import Demand
from psyche_core.p2p.downloads import Downloads
from psyche_core.p2p.fetch_plan import Answer
from psyche_core.p2p.holders import HolderBook
from psyche_core.p2p.message_log import PREFIX_BYTES
from psyche_core.p2p.patience import Course, Line, Pace, Patience
from psyche_p2p_quic.blobs.frames import BlobHead, BlobRequest
from psyche_p2p_quic.blobs.reading import read_body, read_head, verified
from psyche_p2p_quic.connections import session
from psyche_p2p_quic.connections.mesh import Mesh
from psyche_p2p_quic.connections.session import Session
from psyche_p2p_quic.endpoint.links import LinkLost
from psyche_p2p_quic.settings import QuicSettings

MOST_IN_VAIN = 3
"""After so many sources of a result that were slower than the slow one, others are tried after pauses only."""


@dataclass(slots=True, eq=False)
class _Wanted:
    """A result that a caller waits for.

    since: when it was wanted, or when its last source ended. sending: the sources that send now, two at most. compared_from: when
    another source is tried again beside a slow one; pause: seconds until then. in_vain: how many were slower still.
    """

    blob_hash: bytes
    max_bytes: int
    since: float
    answered: set[bytes] = field(default_factory=set)
    sending: dict[bytes, Course] = field(default_factory=dict)
    compared_from: float = -math.inf
    pause: float = 0.0
    in_vain: int = 0
    waiters: int = 0
    blob: bytes | None = None
    changed: anyio.Event = field(default_factory=anyio.Event)


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
        self._line = Line(over=settings.hedge_rest_seconds)
        self._demand = Demand(self._line)
        self._counted = 0
        self._seed: int | None = None

    @property
    def active(self) -> bool:
        """Whether some members are no neighbours, so that results come in several hops."""
        return self._mesh.guests.neighbours is not None

    def begin_epoch(self, seed: int | None) -> None:
        """Note the seed of an epoch. With another one, peers that were slow, or did not give what they had, are forgiven."""
        if seed != self._seed:
            self._seed = seed
            self._downloads.forgive()
            self._pace.begin_epoch()

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
            if prefix in self._wanted and self._downloads.may_have(prefix, peer):
                self._wanted[prefix].answered.discard(peer)
        self._pump(among=prefixes)

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
        self._demand.expect_size(max_bytes)
        self._downloads.want(name)
        self._line.look(self._received, now())
        seen = self._received
        try:
            self._pump()
            while wanted.blob is None and patience.left(now()) > 0 and not self._is_hopeless(name, wanted, now()):
                wanted.changed = anyio.Event()
                with anyio.move_on_after(min(self._settings.hedge_seconds, patience.left(now()))):
                    await wanted.changed.wait()
                patience.note(self._received - seen, now())
                seen = self._received
                self._look(name, wanted, now(), patience.timeout)
            return wanted.blob
        finally:
            wanted.waiters -= 1
            if wanted.waiters == 0:
                del self._wanted[name]
                if wanted.blob is None and patience.left(now()) <= 0:
                    self._downloads.ran_out(name)
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
        if wanted.sending:
            return False

        waited = now - max(wanted.since, self._received_at)  # while others arrive, our line is busy and all is well
        asked = any(request[0] == name for request in self._requests)
        left = any(peer in self._mesh.sessions and peer not in wanted.answered for peer in self._holders.of(name))
        if asked or left:
            return waited > self._settings.holder_seconds

        # Who says that it has it not after all counts as if it had announced nothing: others may announce it still.
        longest = self._settings.announcement_seconds
        return waited > (min(longest, self._settings.holder_seconds) if wanted.answered else longest)

    def _look(self, name: bytes, wanted: _Wanted, now: float, timeout: float) -> None:
        """Let another source send beside one that lags, and stop the slower of two. timeout: of the fetch, seconds."""
        every, courses = self._settings.hedge_rest_seconds, wanted.sending
        self._measure(now)
        for course in courses.values():
            course.look(now, every=every)
        if not courses or not all(course.looks for course in courses.values()):
            return

        peer = max(courses, key=lambda peer: courses[peer].rest)
        share = self._line.share(self._sources())
        behind = share is None or courses[peer].is_behind(share, now)  # else it may be our own line that makes it slow
        room = behind and self._line.room and wanted.in_vain < MOST_IN_VAIN
        lags = self._pace.lags(courses[peer], now=now, timeout=timeout, least=every)
        if len(courses) > 1:
            tried = next(reversed(courses)) == peer
            wanted.in_vain += tried
            if behind and (not tried or (lags and room)):
                self._downloads.give_up(peer)
            elif tried and not room:
                wanted.pause = min(2 * max(wanted.pause, every), 4 * every)
                wanted.compared_from = now + wanted.pause
            self._stop(name, peer, room=room)
        elif not lags or now < wanted.compared_from or not (behind or self._line.may_try):
            return

        elif self._downloads.lags(name, room=self._line.room, excused=not behind):
            self._bound()
        else:
            return

        self._line.tried()
        self._pump()

    def _measure(self, now: float) -> None:
        """Measure our own line. Enough bytes count as progress like a result; not if sources send much less than it carries."""
        self._line.look(self._received, now)
        enough = self._settings.hedge_bytes / self._settings.hedge_seconds * self._settings.holder_seconds
        if self._received - self._counted >= enough:
            self._counted = self._received
            if not self._line.idle:
                self._received_at = now
        if self._downloads.starved and self._demand.widen(now, busy=bool(self._sources()) and not self._line.idle):
            self._pump()

    def _sources(self) -> int:
        return sum(len(wanted.sending) for wanted in self._wanted.values())

    def _least(self) -> float:
        sources = self._sources()
        return self._pace.least_of(sources, self._line.share(sources))

    def _bound(self) -> None:
        """Stop the slowest of the sources that lag if these are too many."""

        def rest(request: tuple[bytes, bytes]) -> float:
            course = self._wanted[request[0]].sending.get(request[1])
            return math.inf if course is None else course.rest

        lagging = self._downloads.surplus()
        if lagging:
            self._stop(*max(lagging, key=rest), room=True)
            self._line.stopped()

    def _stop(self, name: bytes, peer: bytes, *, room: bool) -> None:
        self._wanted[name].sending.pop(peer, None)
        self._cancel([(name, peer)])
        self._downloads.drop(name, peer, room=room)

    def _pump(self, among: Sequence[bytes] | None = None) -> None:
        """Send all requests that may be sent now. among: only those for these results."""
        mesh = self._mesh
        if not self._wanted or not self.active:
            return

        doubted, slow, room = mesh.reputation.doubted, mesh.relayed, self._line.room
        self._downloads.limit(places=self._demand.places, spare=self._demand.spare)
        while (chosen := self._downloads.begin(mesh.sessions, doubted=doubted, slow=slow, among=among, room=room)) is not None:
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
        if isinstance(answer, bytes):
            wanted.blob = answer
            self._received_at = asyncio.get_running_loop().time()
            self._cancel((name, other) for other in self._downloads.finished(name, giver=peer))
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

            complete, course = False, None
            try:
                settings, now = self._settings, asyncio.get_running_loop().time
                request = BlobRequest(wanted.blob_hash, wanted.max_bytes)
                head = await read_head(stream, request, seconds=settings.holder_seconds, count=count)
                if not isinstance(head, BlobHead):
                    complete = head is Answer.ABSENT
                    return head

                self._demand.answered(now(), needed=not self._downloads.full)
                others = self._downloads.started(name, peer)
                if others is None:
                    return Answer.RELEASED

                began = now()
                for other in wanted.sending.values():
                    other.start_over(began)
                course = wanted.sending[peer] = Course(began)
                self._cancel((name, other) for other in others)
                self._pump()
                body = await read_body(
                    stream,
                    head.length,
                    seconds=settings.stall_seconds,
                    least=self._least,
                    progress=course,
                    count=count,
                )
                complete, took = isinstance(body, BytesIO), now() - began
            except (LinkLost, WireError, TimeoutError) as error:
                if course is not None and isinstance(error, TimeoutError):
                    self._downloads.give_up(peer)
                return Answer.LOST
            finally:
                if course is not None and wanted.sending.get(peer) is course:
                    del wanted.sending[peer]
                    wanted.since = now()
                if not complete:
                    await stream.abandon()

        if not isinstance(body, BytesIO):
            return body

        blob = await verified(body, wanted.blob_hash)
        if blob is None:
            blame(self._mesh, source)
            return Answer.FALSE

        self._pace.completed(peer, len(blob), took)
        self._demand.completed(took, now())
        return blob


def blame(mesh: Mesh, source: Session) -> None:
    """Note that a peer served wrong bytes; one that does it again and again is refused for a while."""
    if mesh.reputation.served_false(source.peer, now=asyncio.get_running_loop().time()):
        source.close(session.BROKE_RULES, "you served blobs that do not match their hashes")
