"""Payloads in Redis: each in pieces, for a limited time, and never more of one member's than it may have there.

A payload is put there when somebody asks for it, and only once for all who ask while it is there. Its reader compares it with its
hash; a piece that is missing or has another size means that it is not there any more.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

import anyio
from redis.asyncio import Redis

from psyche_p2p_redis.frames import Names
from psyche_p2p_redis.server import Server
from psyche_p2p_redis.settings import RedisSettings

PART_BYTES = 2**20
"""Of one key: Redis does nothing else while it handles one, and cannot have one of more than 512 MiB."""


@dataclass(slots=True)
class Traffic:
    """Bytes that we sent and received."""

    sent: int = 0
    received: int = 0


@dataclass(slots=True)
class _There:
    size: int
    until: float  # time.monotonic() at which Redis has dropped it for certain
    complete: bool = False  # otherwise it counts, and is written anew


class Uploads:
    """own: our key. All calls of Redis may raise RedisLost."""

    def __init__(self, server: Server, names: Names, settings: RedisSettings, *, own: bytes, traffic: Traffic) -> None:
        self._server, self._names, self._settings, self._own, self._traffic = server, names, settings, own, traffic
        self._there: OrderedDict[bytes, _There] = OrderedDict()  # the oldest first
        self._writing = anyio.Lock()

    @property
    def total_bytes(self) -> int:
        """Of our payloads in Redis, at most."""
        return sum(there.size for there in self._there.values())

    async def put(self, blob_hash: bytes, blob: bytes | memoryview) -> None:
        """Have a blob in Redis for the next seconds, at most `redis_max_payload_bytes` long."""
        async with self._writing:  # one after the other: the limit of bytes holds, and a blob is put there once
            if await self._prolong(blob_hash):
                return

            now = time.monotonic()
            for old in [name for name, there in self._there.items() if there.until < now]:
                del self._there[old]
            self._there.pop(blob_hash, None)  # its pieces are written over
            while self._there and self.total_bytes + len(blob) > self._settings.redis_memory_bytes:
                await self._remove(next(iter(self._there)))
            seconds = self._settings.redis_payload_seconds
            there = self._there[blob_hash] = _There(len(blob), float("inf"))  # what an interrupted call leaves counts too
            try:
                for number, start in enumerate(range(0, len(blob), PART_BYTES)):
                    name, data = self._names.part(self._own, blob_hash, number), bytes(blob[start : start + PART_BYTES])
                    await self._server.run(lambda redis, name=name, data=data: redis.set(name, data, ex=seconds))
                    self._traffic.sent += len(data)
                there.complete = True
            finally:
                there.until = time.monotonic() + seconds + 1.0

    async def get(self, owner: bytes, blob_hash: bytes, size: int) -> bytes | None:
        """What a member has put there; None if it is gone. size: as the member said, which the caller has found acceptable."""
        blob = bytearray()
        for number in range(_parts(size)):
            name = self._names.part(owner, blob_hash, number)
            # GETRANGE never gives more than this, whatever somebody has written there.
            data: bytes = await self._server.run(lambda redis, name=name: redis.getrange(name, 0, PART_BYTES - 1))
            if len(data) != min(PART_BYTES, size - number * PART_BYTES):
                return None
            self._traffic.received += len(data)
            blob += data
        return bytes(blob)

    async def keep_only(self, wanted: Callable[[bytes], bool]) -> None:
        """Remove all but those whose hash is wanted."""
        async with self._writing:
            for blob_hash in [name for name in self._there if not wanted(name)]:
                await self._remove(blob_hash)

    def forget(self) -> None:
        """Redis was lost, and perhaps what it had: nothing is said to be there, and it counts until it would have expired."""
        for there in self._there.values():
            there.complete = False

    async def _prolong(self, blob_hash: bytes) -> bool:
        """Whether it is there, and for the whole time again."""
        there = self._there.get(blob_hash)
        if there is None or not there.complete:
            return False

        names = [self._names.part(self._own, blob_hash, number) for number in range(_parts(there.size))]
        if not all(await self._all(names, lambda pipe, name: pipe.expire(name, self._settings.redis_payload_seconds))):
            return False

        there.until = time.monotonic() + self._settings.redis_payload_seconds + 1.0
        self._there.move_to_end(blob_hash)
        return True

    async def _remove(self, blob_hash: bytes) -> None:
        names = [self._names.part(self._own, blob_hash, number) for number in range(_parts(self._there[blob_hash].size))]
        await self._all(names, lambda pipe, name: pipe.unlink(name))
        del self._there[blob_hash]

    async def _all(self, names: Collection[str], add: Callable[..., object]) -> list[object]:
        def work(redis: Redis) -> Awaitable[list[object]]:
            pipe = redis.pipeline(transaction=False)
            for name in names:
                add(pipe, name)
            return pipe.execute()

        return await self._server.run(work) if names else []


def _parts(size: int) -> int:
    return -(-size // PART_BYTES)
