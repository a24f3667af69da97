"""The contract of a transport, over one Redis server. Messages go through lists, one for each direction of a link between two
members; a payload is put into Redis once for all who ask for it.

What is hard about a transport is in psyche_core.p2p and used here: which messages are live and may be passed on (MessageLog),
which blobs are kept (BlobStore, OfferBook), and whom to ask for one next (FetchPlan).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import anyio
import anyio.to_thread

from psyche_core.errors import BlobNotFound, BlobRejected, TransportError, WireError
from psyche_core.hookspecs import TransportContext
from psyche_core.interfaces.transport import Incoming, Opened, Transport, TransportStats
from psyche_core.p2p.blob_store import BlobStore, sha256
from psyche_core.p2p.fetch_plan import Answer, FetchPlan
from psyche_core.p2p.message_log import MessageLog, Verdict
from psyche_core.p2p.offers import Offer, OfferBook
from psyche_p2p_redis.frames import Names
from psyche_p2p_redis.meeting import Meeting
from psyche_p2p_redis.server import RedisLost, Server
from psyche_p2p_redis.settings import RedisSettings
from psyche_p2p_redis.uploads import Traffic, Uploads

BLOBS_AT_ONCE = 8
"""Blobs that are read for members at the same time, which bounds the memory."""

LEAVING_SECONDS = 3.0


class RedisTransport(Transport):
    """One endpoint."""

    def __init__(self, context: TransportContext) -> None:
        self._settings = settings = context.settings if isinstance(context.settings, RedisSettings) else RedisSettings()
        self._key = context.key
        self.names = Names(settings.redis_prefix, context.run_id)
        self.silence_seconds = settings.redis_silence_seconds
        self.log = MessageLog(own=context.key.public)
        self.traffic = Traffic()
        self.server = Server(settings, probe=self.names.probe(self.peer_id), lost=self._redis_is_lost, back=self._changed)
        self._uploads = Uploads(self.server, self.names, settings, own=self.peer_id, traffic=self.traffic)
        self._meeting = Meeting(self, context.key, changed=self._changed, start=self._start)
        self._blobs = BlobStore()
        self._offers = OfferBook()
        self._tasks: dict[asyncio.Task[None], anyio.CancelScope] = {}
        self._reads = anyio.CapacityLimiter(BLOBS_AT_ONCE)
        self._serving = anyio.CapacityLimiter(BLOBS_AT_ONCE)
        self._readable = anyio.Event()
        self._change = anyio.Event()  # links or members have changed
        self._fetching: dict[bytes, anyio.Lock] = {}
        self._waiting: Counter[bytes] = Counter()
        self._arrived: dict[bytes, bytes] = {}  # blobs for which others wait
        self._doubted: set[bytes] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        """Connect to Redis. Raises TransportError."""
        await self.server.open()
        for work in (self.server.keep(), self._meeting.greet(), self._meeting.read()):
            self._start(work)
        return self

    @property
    def peer_id(self) -> bytes:
        """Our public key."""
        return self._key.public

    @property
    def address(self) -> bytes:
        """Nobody needs one: members find each other by their keys."""
        return b"redis"

    @property
    def stats(self) -> TransportStats:
        """Bytes of frames and payloads, and the linked members."""
        return TransportStats(self.traffic.sent, self.traffic.received, tuple(self._meeting.links))

    @property
    def problems(self) -> tuple[str, ...]:
        """That Redis cannot be used, while it cannot."""
        return () if self.server.problem is None else (self.server.problem,)

    def check_messages(self, check: Callable[[bytes], Opened]) -> None:
        """The log does it."""
        self.log.check_with(check)

    async def set_peers(self, peers: Mapping[bytes, bytes], *, seed: int | None = None) -> None:  # noqa: ARG002 - all are connected
        """Replace the members."""
        self.log.set_members(peers)
        self._meeting.set_members(peers)
        self._doubted &= self._meeting.members
        self._changed()

    async def broadcast(self, message: bytes, *, tag: int) -> None:
        """Put it into the log, from where each link takes what its member lacks."""
        if self.log.add_own(message, tag=tag) is not None:
            self._wake_links()

    async def receive(self) -> Incoming:
        """The next message of another member."""
        while True:
            entry = self.log.read()
            if entry is not None and entry.via is not None:
                return Incoming(entry.via, entry.message, entry.opened)
            if entry is None:
                self._readable = anyio.Event()
                await self._readable.wait()

    async def publish(self, blob: bytes, *, tag: int) -> bytes:
        """Keep a blob for others. Raises TransportError."""
        most = self._settings.redis_max_payload_bytes
        if len(blob) > most:
            message = f"a blob of {len(blob)} bytes is over the {most} that go into Redis; raise --redis-max-payload-bytes"
            raise TransportError(message)
        return await self._blobs.publish(blob, tag=tag)

    async def offer(
        self,
        blob_hash: bytes,
        *,
        size: int,
        read: Callable[[], bytes | memoryview],
        tag: int,
        stamp: Callable[[], object | None] = lambda: None,
    ) -> None:
        """Offer a blob that is stored elsewhere; one that is too large for Redis is answered so. Raises TransportError."""
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
        wanted_by_all: bool = False,  # noqa: ARG002 - all are connected
    ) -> bytes:
        """Get a blob. Fetches of one hash take turns; those that waited get what the first one got."""
        own = await self._own_blob(blob_hash, max_bytes)
        if own is Answer.TOO_LARGE:
            message = f"our own blob {blob_hash.hex()} has over {max_bytes} bytes"
            raise BlobRejected(message)
        if isinstance(own, Answer):
            blob = await self._fetch_in_turn(blob_hash, FetchPlan(sources), max_bytes, timeout)
            if keep:
                self._blobs.put(blob_hash, blob, tag=tag, own=False)
        else:
            blob = bytes(own)
        self._blobs.touch(blob_hash, tag=tag)
        return blob

    async def expire(self, before: int) -> None:
        """Forget what is older."""
        self.log.expire(before)
        self._blobs.expire(before)
        self._offers.expire(before)
        if not self._closed:
            self._start(self._tidy())

    async def aclose(self) -> None:
        """Say goodbye to all members, and leave nothing of ours in Redis."""
        if self._closed:
            return
        self._closed = True
        self._meeting.set_members(())
        with anyio.move_on_after(LEAVING_SECONDS, shield=True):
            try:
                await self._meeting.leave()
                await self._uploads.keep_only(lambda _: False)
            except RedisLost:
                pass  # it drops all of that after a while
        for scope in self._tasks.values():
            scope.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.server.aclose()

    # ------------------------------------------------------------------------------------------ for links

    def take(self, peer: bytes, message: bytes, *, tag: int, relayed: bool) -> None:
        """A message has come. Raises WireError if the peer must be disconnected."""
        verdict, message_id = self.log.add_from(peer, message, tag=tag, relayed=relayed)
        if verdict is Verdict.OFFENCE:
            raise WireError(self.log.offence)
        if verdict is Verdict.NEW:
            self._readable.set()
            if self.log.may_pass_on(message_id):
                self._wake_links()

    async def serve(self, blob_hash: bytes, limit: int) -> int | Answer:
        """Put a blob that we keep or offer into Redis and return its size; or why there is none."""
        async with self._serving:
            blob = await self._own_blob(blob_hash, min(limit, self._settings.redis_max_payload_bytes))
            if isinstance(blob, Answer):
                return blob
            await self._uploads.put(blob_hash, blob)
            return len(blob)

    # ------------------------------------------------------------------------------------------ blobs

    async def _own_blob(self, blob_hash: bytes, limit: int) -> bytes | memoryview | Answer:
        """A blob that we keep or offer, read only if it is not too large; or why there is none."""
        blob, offer = self._blobs.get(blob_hash), self._offers.get(blob_hash)
        size = len(blob) if blob is not None else offer.size if offer is not None else None
        if size is None:
            return Answer.ABSENT
        if size > limit:
            return Answer.TOO_LARGE
        if blob is not None:
            return blob
        assert offer is not None, "there is one of the two"
        read = await anyio.to_thread.run_sync(offer.checked, limiter=self._reads)
        if read is None:
            self._offers.withdraw(offer)
        return Answer.ABSENT if read is None else read

    async def _fetch_in_turn(self, blob_hash: bytes, plan: FetchPlan, max_bytes: int, timeout: float) -> bytes:
        self._waiting[blob_hash] += 1
        try:
            with anyio.fail_after(timeout):
                async with self._fetching.setdefault(blob_hash, anyio.Lock()):
                    blob = self._arrived.get(blob_hash)
                    if blob is None or len(blob) > max_bytes:
                        blob = await self._ask_around(blob_hash, plan, max_bytes)
                    self._arrived[blob_hash] = blob
                    return blob
        except TimeoutError:
            message = f"nobody reachable had blob {blob_hash.hex()} within {timeout:g} s"
            raise BlobNotFound(message) from None
        finally:
            self._waiting[blob_hash] -= 1
            if not self._waiting[blob_hash]:
                del self._waiting[blob_hash]
                self._fetching.pop(blob_hash, None)
                self._arrived.pop(blob_hash, None)

    async def _ask_around(self, blob_hash: bytes, plan: FetchPlan, max_bytes: int) -> bytes:
        while True:
            change, members, links = self._change, self._meeting.members, self._meeting.links
            peer = plan.begin(members=members, reachable=links, doubted=self._doubted)
            if peer is None:
                plan.raise_if_over(blob_hash, members)
                await change.wait()
                continue

            answer = await links[peer].want(blob_hash, max_bytes)
            if isinstance(answer, Answer):
                plan.settle(peer, answer)
                continue
            try:
                blob = await self._uploads.get(peer, blob_hash, answer)
            except RedisLost:
                blob = None
            if blob is None:
                plan.settle(peer, Answer.LOST)
            elif await sha256(blob) == blob_hash:
                return blob
            else:
                self._doubted.add(peer)
                plan.settle(peer, Answer.FALSE)

    async def _tidy(self) -> None:
        """Remove from Redis what has expired here."""
        with suppress(RedisLost):  # which drops that after a while
            await self._uploads.keep_only(lambda name: name in self._blobs or self._offers.get(name) is not None)

    # ------------------------------------------------------------------------------------------ tasks

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """A task that `aclose` ends, whoever calls it."""
        scope = anyio.CancelScope()  # cancels as often as needed: redis-py loses a cancellation that comes while it connects

        async def within() -> None:
            with scope:
                await work

        task = asyncio.create_task(within())
        self._tasks[task] = scope
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def _redis_is_lost(self) -> None:
        self._uploads.forget()
        self._meeting.drop_all()

    def _changed(self) -> None:
        self._change.set()
        self._change = anyio.Event()
        self._wake_links()

    def _wake_links(self) -> None:
        for link in self._meeting.links.values():
            link.wake()
