"""How members find each other in Redis: everybody has a door, a list where others leave their hello.

A hello offers a nonce for one link. Who gets the hello of a member that it is not linked with answers with its own; the two
nonces name the link. Nobody can pretend to be somebody by repeating what was said before: a link takes the place
of another only when a frame has come that is signed over our nonce.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

import anyio
from redis.asyncio import Redis

from psyche_core.errors import WireError
from psyche_core.wire.signing import SecretKey
from psyche_p2p_redis.frames import MAX_HELLO_BYTES, NONCE_BYTES, LinkKeys, hello, read_hello
from psyche_p2p_redis.link import FRAMES_AT_ONCE, Link, Owner
from psyche_p2p_redis.server import WAIT_SECONDS, RedisLost

DOOR_SECONDS = 30
MAX_AT_THE_DOOR = 1024
REFUSED_SECONDS = 1.0
FIRST_GREETING_SECONDS, LAST_GREETING_SECONDS = 0.1, 5.0
_WAKE = b"!"


class Meeting:
    """The members, and the links with them. changed: called when links have changed. start: starts a task that `aclose` ends."""

    def __init__(
        self,
        owner: Owner,
        key: SecretKey,
        *,
        changed: Callable[[], None],
        start: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.members: frozenset[bytes] = frozenset()
        self.links: dict[bytes, Link] = {}
        self._candidates: dict[bytes, Link] = {}  # links that are not proven yet
        self._running: set[Link] = set()
        self._nonces: dict[bytes, bytes] = {}  # ours, for the next link
        self._refused_until: dict[bytes, float] = {}  # whose last link ended because it broke the rules
        self._owner, self._key, self._changed, self._start = owner, key, changed, start
        self._run = owner.names.run
        self._door = owner.names.door(key.public)
        self._greet_now = anyio.Event()
        self._turn = 0

    def set_members(self, members: Collection[bytes]) -> None:
        """Replace them: end links with who is left out, and look for who is new."""
        self.members = frozenset(members) - {self._key.public}
        self._end([link for link in self._all() if link.peer not in self.members])
        self._nonces = {peer: nonce for peer, nonce in self._nonces.items() if peer in self.members}
        self._refused_until = {peer: until for peer, until in self._refused_until.items() if peer in self.members}
        self._greet_now.set()

    def drop_all(self) -> None:
        """Redis was lost, and with it perhaps what was on the way."""
        self._nonces.clear()
        self._end(self._all())

    async def greet(self) -> None:
        """Leave hellos at the doors of members that are not linked, less and less often; ends only when it is cancelled."""
        delay = FIRST_GREETING_SECONDS
        while True:
            await self._owner.server.up.wait()
            self._greet_now = anyio.Event()
            lonely = [peer for peer in self.members if peer not in self.links and not self._refused(peer)]
            try:
                await self._leave_hellos(lonely)
            except RedisLost:
                continue
            with anyio.move_on_after(delay if lonely else LAST_GREETING_SECONDS) as waited:
                await self._greet_now.wait()
            delay = min(2 * delay, LAST_GREETING_SECONDS) if waited.cancelled_caught and lonely else FIRST_GREETING_SECONDS

    async def read(self) -> None:
        """Take what comes at the door and in the queues of all links; ends only when it is cancelled."""
        while True:
            await self._owner.server.up.wait()
            links = self._all()
            self._turn = (self._turn + 1) % (len(links) + 1)  # the first that has something is served: everybody is first once
            inboxes = {link.inbox: link for link in (*links[self._turn :], *links[: self._turn])}
            try:
                await self._read_one([self._door, *inboxes], inboxes)
            except RedisLost:
                continue

    async def leave(self) -> None:
        """Wait until the links that were ended have said goodbye. Nobody needs to leave a hello here any more."""
        for link in list(self._running):
            await link.ended.wait()
        await self._owner.server.run(lambda redis: redis.unlink(self._door, self._owner.names.probe(self._key.public)))

    async def _read_one(self, names: Sequence[str], inboxes: dict[str, Link]) -> None:
        server = self._owner.server
        found = await server.run(lambda redis: redis.blpop(list(names), timeout=WAIT_SECONDS), waits=True)
        if found is None:
            return
        name, first = found[0].decode(), found[1]
        more = await server.run(lambda redis: redis.lpop(name, FRAMES_AT_ONCE))
        for data in (first, *(more or ())):
            if name == self._door:
                await self._take_hello(data)
            else:
                self._feed(inboxes[name], data)

    def _feed(self, link: Link, frame: bytes) -> None:
        if link.closed:
            return
        try:
            link.feed(frame)
        except WireError:  # the peer broke the rules, or frames are lost; both end this link and nothing else
            self._refused_until[link.peer] = time.monotonic() + REFUSED_SECONDS
            self._end([link])
            return
        if link.closed:  # the peer has ended it
            self._end([link])
        elif self._candidates.get(link.peer) is link:
            del self._candidates[link.peer]
            replaced, self.links[link.peer] = self.links.get(link.peer), link
            self._nonces.pop(link.peer, None)
            if replaced is not None:
                replaced.close()
            self._changed()

    async def _take_hello(self, data: bytes) -> None:
        if len(data) > MAX_HELLO_BYTES:
            return
        try:
            peer, nonce = read_hello(data, self._run, own=self._key.public)
        except WireError:
            return  # one of ours that woke us, or of nobody that we could answer
        link, candidate = self.links.get(peer), self._candidates.get(peer)
        if peer not in self.members or self._refused(peer) or nonce in (link and link.theirs, candidate and candidate.theirs):
            return
        if candidate is not None:
            candidate.close()
        keys = LinkKeys(self._run, self._key, peer, self._nonce(peer), nonce)
        self._candidates[peer] = new = Link(self._owner, keys)
        self._start(self._run_link(new))
        await self._leave_hellos([peer])

    async def _run_link(self, link: Link) -> None:
        self._running.add(link)
        try:
            await link.run()
        finally:
            self._running.discard(link)
            self._end([link])

    def _end(self, links: Collection[Link]) -> None:
        """From here on they are no links of ours; their tasks say goodbye."""
        for link in links:
            link.close()
            if self._candidates.get(link.peer) is link:
                del self._candidates[link.peer]
                self._nonces.pop(link.peer, None)
            if self.links.get(link.peer) is link:
                del self.links[link.peer]
                self._greet_now.set()
        self._changed()

    def _all(self) -> list[Link]:
        return [*self.links.values(), *self._candidates.values()]

    def _refused(self, peer: bytes) -> bool:
        return time.monotonic() < self._refused_until.get(peer, 0.0)

    def _nonce(self, peer: bytes) -> bytes:
        return self._nonces.setdefault(peer, secrets.token_bytes(NONCE_BYTES))

    async def _leave_hellos(self, peers: Collection[bytes]) -> None:
        """At the doors of these members; and one thing at our own, so that `read` looks at the links that there are now."""

        async def work(redis: Redis) -> None:
            pipe = redis.pipeline(transaction=False)
            for peer in peers:
                self._leave(pipe, self._owner.names.door(peer), hello(self._key, self._run, to=peer, nonce=self._nonce(peer)))
            self._leave(pipe, self._door, _WAKE)
            await pipe.execute()

        if peers:
            await self._owner.server.run(work)

    @staticmethod
    def _leave(pipe: Any, door: str, data: bytes) -> None:
        pipe.rpush(door, data)
        pipe.ltrim(door, -MAX_AT_THE_DOOR, -1)
        pipe.expire(door, DOOR_SECONDS)
