"""What is particular to it: Redis that is missing, dies, forgets or is full of other people's bytes; and what stays in it."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Any

import anyio
import pytest
from psyche_p2p_redis.frames import MAX_FRAME_BYTES, LinkKeys, hello, read_hello
from psyche_p2p_redis.settings import MIB, RedisSettings
from psyche_p2p_redis.transport import RedisTransport
from psyche_p2p_redis.uploads import PART_BYTES
from pydantic import ValidationError
from redis.asyncio import Redis
from redis_process import RedisProcess

from psyche_core.errors import BlobNotFound, BlobRejected, TransportError, WireError
from psyche_core.hookspecs import TransportContext
from psyche_core.testing.transport import connected, until
from psyche_core.wire.signing import SecretKey

KEYS = [SecretKey(bytes([number]) * 32) for number in (1, 2, 3)]
RUNS = count()

pytestmark = pytest.mark.anyio


@pytest.fixture
async def redis(redis_server: RedisProcess) -> AsyncIterator[Redis]:
    """Somebody else who can use the same Redis."""
    async with Redis.from_url(redis_server.url) as client:
        await client.flushall()
        yield client


@asynccontextmanager
async def mesh(redis_server: RedisProcess, number: int = 2, **settings: Any) -> AsyncIterator[list[RedisTransport]]:
    run_id = f"particular {next(RUNS)}"
    async with AsyncExitStack() as stack:
        all_settings = RedisSettings(redis_url=redis_server.url, **settings)
        endpoints = [
            await stack.enter_async_context(RedisTransport(TransportContext(run_id=run_id, key=key, settings=all_settings)))
            for key in KEYS[:number]
        ]
        for endpoint in endpoints:
            await endpoint.set_peers({each.peer_id: each.address for each in endpoints})
        yield endpoints


async def next_message(endpoint: RedisTransport) -> bytes:
    with anyio.fail_after(30):
        return (await endpoint.receive()).message


async def fetched(endpoint: RedisTransport, blob_hash: bytes, source: RedisTransport, *, timeout: float = 30) -> bytes:
    return await endpoint.fetch(blob_hash, sources=[source.peer_id], max_bytes=8 * MIB, timeout=timeout, tag=1, keep=False)


# ---------------------------------------------------------------------------------------------------- Redis comes and goes


async def test_a_redis_that_is_not_there_is_a_sentence_without_its_password() -> None:
    settings = RedisSettings(redis_url="redis://user:secret@127.0.0.1:1/0?password=secret")
    with pytest.raises(TransportError) as raised:
        await RedisTransport(TransportContext(run_id="r", key=KEYS[0], settings=settings)).__aenter__()
    assert str(raised.value).startswith("Redis at redis://127.0.0.1:1/0 cannot be used: ")
    assert str(raised.value).endswith("; see that it runs and takes writes, or give another --redis-url")
    assert "secret" not in str(raised.value) + repr(settings)


async def test_a_redis_that_dies_and_comes_back_empty_loses_nothing(redis_server: RedisProcess, redis: Redis) -> None:
    async with mesh(redis_server) as (one, other):
        await connected((one, other))
        blob_hash = await one.publish(b"b" * (PART_BYTES + 1), tag=1)
        await fetched(other, blob_hash, one)
        redis_server.kill()
        try:
            await until(lambda: bool(one.problems and other.problems))
            assert one.stats.peers == other.stats.peers == ()
            assert one.problems[0].startswith(f"Redis at {redis_server.url} cannot be used: ")
            await one.broadcast(b"said meanwhile", tag=1)
            with pytest.raises(BlobNotFound):
                await fetched(other, blob_hash, one, timeout=0.2)
        finally:
            redis_server.start()
        await connected((one, other))
        assert one.problems == other.problems == ()
        assert await next_message(other) == b"said meanwhile"
        assert await fetched(other, blob_hash, one) == b"b" * (PART_BYTES + 1)


async def test_a_fetch_that_waits_when_redis_dies_ends_well_when_it_is_back(redis_server: RedisProcess, redis: Redis) -> None:
    async with mesh(redis_server) as (one, other), anyio.create_task_group() as tasks:
        await connected((one, other))
        blob_hash = await one.publish(b"b" * 100, tag=1)
        redis_server.kill()
        found = []

        async def fetch() -> None:
            found.append(await fetched(other, blob_hash, one))

        tasks.start_soon(fetch)
        await until(lambda: bool(other.problems))
        redis_server.start()
        with anyio.fail_after(30):
            while not found:
                await anyio.sleep(0.01)
        assert found == [b"b" * 100]


async def test_a_redis_that_hangs_counts_as_lost_until_it_answers(redis_server: RedisProcess, redis: Redis) -> None:
    async with mesh(redis_server, redis_answer_seconds=0.3, redis_connect_seconds=0.3) as (one, other):
        await connected((one, other))
        os.kill(redis_server.pid, signal.SIGSTOP)
        try:
            await one.broadcast(b"is anybody there", tag=1)
            await until(lambda: bool(one.problems))
        finally:
            os.kill(redis_server.pid, signal.SIGCONT)
        await connected((one, other))
        assert await next_message(other) == b"is anybody there"


async def test_a_redis_that_takes_no_writes_is_a_problem_until_it_does(redis_server: RedisProcess, redis: Redis) -> None:
    async with mesh(redis_server) as (one, other):
        await connected((one, other))
        await redis.config_set("maxmemory", 1)
        try:
            await one.broadcast(b"full", tag=1)
            await until(lambda: bool(one.problems))
            assert " cannot be used: command not allowed when used memory > 'maxmemory'; see that " in one.problems[0]
        finally:
            await redis.config_set("maxmemory", 0)
        await connected((one, other))
        assert await next_message(other) == b"full"


async def test_keys_that_somebody_deletes_are_no_lost_messages(redis_server: RedisProcess, redis: Redis) -> None:
    async with mesh(redis_server, redis_silence_seconds=1.5) as (one, other):
        await connected((one, other))
        links = dict(one._meeting.links)
        # As a server does that evicts keys: a frame of this link is gone, and the next one does not follow the last one.
        await redis.lpush(other._meeting.links[one.peer_id].inbox, b"not a frame")
        await until(lambda: bool(one.stats.peers) and one._meeting.links != links)
        await one.broadcast(b"afterwards", tag=1)
        assert await next_message(other) == b"afterwards"


# ---------------------------------------------------------------------------------------------------- what is in Redis


async def test_every_key_expires_and_nothing_stays_of_who_leaves(redis_server: RedisProcess, redis: Redis) -> None:
    async with mesh(redis_server) as (one, other):
        await connected((one, other))
        blob_hash = await one.publish(b"b" * (2 * PART_BYTES + 1), tag=1)
        assert len(await fetched(other, blob_hash, one)) == 2 * PART_BYTES + 1
        parts = await redis.keys("*:blob:*")
        assert len(parts) == 3
        assert len(await redis.keys("psyche:*")) == len(await redis.keys("*"))
        assert min([await redis.ttl(key) for key in await redis.keys("*")]) >= 0  # -1: never, -2: gone meanwhile
    assert await redis.keys("*:blob:*") == []


async def test_an_expired_payload_leaves_redis(redis_server: RedisProcess, redis: Redis) -> None:
    async with mesh(redis_server) as (one, other):
        blob_hash = await one.publish(b"b", tag=1)
        await fetched(other, blob_hash, one)
        assert len(await redis.keys("*:blob:*")) == 1
        await one.expire(2)
        with anyio.fail_after(30):
            while await redis.keys("*:blob:*"):
                await anyio.sleep(0.01)


async def test_a_payload_is_put_there_once_for_all_and_again_when_it_is_gone(redis_server: RedisProcess, redis: Redis) -> None:
    async with mesh(redis_server, 3) as (one, other, third):
        blob_hash = await one.publish(b"b" * PART_BYTES, tag=1)
        await fetched(other, blob_hash, one)
        sent = one.stats.bytes_sent
        await fetched(third, blob_hash, one)
        assert one.stats.bytes_sent - sent < PART_BYTES
        await redis.delete(*await redis.keys("*:blob:*"))
        assert await fetched(other, blob_hash, one) == b"b" * PART_BYTES


async def test_a_member_has_no_more_there_than_it_may(redis_server: RedisProcess, redis: Redis) -> None:
    async with mesh(redis_server, redis_max_payload_bytes=MIB, redis_memory_bytes=2 * MIB) as (one, other):
        for content in (b"1", b"2", b"3"):
            blob_hash = await one.publish(content * MIB, tag=1)
            assert await fetched(other, blob_hash, one) == content * MIB
            sizes = [await redis.strlen(key) for key in await redis.keys("*:blob:*")]
            assert sum(sizes) <= 2 * MIB
        assert sum(sizes) == 2 * MIB
        with pytest.raises(TransportError, match="over the 1048576 that go into Redis; raise --redis-max-payload-bytes"):
            await one.publish(b"4" * (MIB + 1), tag=1)


# ---------------------------------------------------------------------------------------------------- other people's bytes


async def test_a_payload_that_somebody_changed_is_refused(redis_server: RedisProcess, redis: Redis) -> None:
    async with mesh(redis_server, 3) as (one, other, third):
        blob_hash = await one.publish(b"b" * 100, tag=1)
        await fetched(other, blob_hash, one)
        (key,) = await redis.keys("*:blob:*")
        await redis.set(key, b"c" * 100, keepttl=True)
        with pytest.raises(BlobRejected):
            await fetched(third, blob_hash, one)
        await redis.set(key, b"c" * (PART_BYTES + 100), keepttl=True)
        with pytest.raises(BlobNotFound):  # of another size: as if it was gone
            await fetched(third, blob_hash, one)


async def test_junk_and_hellos_of_before_bring_nobody_in_and_keep_nobody_out(redis_server: RedisProcess, redis: Redis) -> None:
    async with mesh(redis_server) as (one, other):
        await connected((one, other))
        stranger = SecretKey(bytes([9]) * 32)
        door, run = one.names.door(one.peer_id), one.names.run
        replayed = hello(KEYS[1], run, to=one.peer_id, nonce=bytes(16))
        forged = bytearray(replayed)
        forged[-1] ^= 1
        of_nobody = hello(stranger, run, to=one.peer_id, nonce=bytes(16))
        await redis.rpush(door, b"junk", b"\xa1" * 1000, bytes(forged), of_nobody, replayed)
        await other.broadcast(b"still here", tag=1)
        assert await next_message(one) == b"still here"
        with anyio.fail_after(30):
            while await redis.llen(door):
                await anyio.sleep(0.01)
        await connected((one, other))  # the hello of before asks for another link: one with who is really there
        await other.broadcast(b"and here", tag=1)
        assert await next_message(one) == b"and here"
        assert one.stats.peers == (other.peer_id,)


async def test_members_of_two_runs_or_prefixes_do_not_meet(redis_server: RedisProcess, redis: Redis) -> None:
    contexts = [
        TransportContext(run_id=run_id, key=key, settings=RedisSettings(redis_url=redis_server.url, redis_prefix=prefix))
        for key, run_id, prefix in zip(KEYS, ("a", "b", "a"), ("p", "p", "q"), strict=True)
    ]
    async with RedisTransport(contexts[0]) as one, RedisTransport(contexts[1]) as two, RedisTransport(contexts[2]) as three:
        for endpoint in (one, two, three):
            await endpoint.set_peers({key.public: b"" for key in KEYS})
        doors = {endpoint.names.door(one.peer_id) for endpoint in (one, two, three)}
        assert len(doors) == 3
        with anyio.fail_after(30):
            while len(await redis.keys("*:door:*")) < 6:  # everybody has left hellos for both others, of whom nobody reads them
                await anyio.sleep(0.01)
        assert {endpoint.stats.peers for endpoint in (one, two, three)} == {()}


def test_a_frame_counts_only_in_its_link_at_its_place_and_of_its_author() -> None:
    run = bytes(32)
    ours = LinkKeys(run, KEYS[0], KEYS[1].public, bytes(16), bytes([1]) * 16)
    theirs = LinkKeys(run, KEYS[1], KEYS[0].public, bytes([1]) * 16, bytes(16))
    frame = ours.seal(3, b"body")
    assert theirs.open(3, frame) == b"body"
    elsewhere = LinkKeys(run, KEYS[1], KEYS[0].public, bytes([2]) * 16, bytes(16))
    for keys, number, data in (
        (theirs, 4, frame),
        (theirs, 3, frame[:-1] + b"x"),
        (elsewhere, 3, frame),
        (ours, 3, frame),
        (theirs, 3, LinkKeys(run, KEYS[2], KEYS[1].public, bytes(16), bytes([1]) * 16).seal(3, b"body")),
    ):
        with pytest.raises(WireError, match="not the one that the peer signed"):
            keys.open(number, data)
    for data in (b"", frame[:64], bytes(MAX_FRAME_BYTES + 1)):
        with pytest.raises(WireError, match=f"a frame has 65 to {MAX_FRAME_BYTES} bytes, got {len(data)}"):
            theirs.open(3, data)


def test_a_hello_is_for_one_member_of_one_run() -> None:
    run, other = bytes(32), bytes([1]) * 32
    data = hello(KEYS[0], run, to=KEYS[1].public, nonce=bytes(16))
    assert read_hello(data, run, own=KEYS[1].public) == (KEYS[0].public, bytes(16))
    for where, own in ((other, KEYS[1].public), (run, KEYS[2].public)):
        with pytest.raises(WireError, match="not for us and this run"):
            read_hello(data, where, own=own)
    for junk in (b"", b"junk", data + b"x", bytes(257)):
        with pytest.raises(WireError):
            read_hello(junk, run, own=KEYS[1].public)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"redis_url": "http://here"}, "redis_url"),
        ({"redis_prefix": "a:b"}, "redis_prefix"),
        ({"redis_max_payload_bytes": 2 * MIB, "redis_memory_bytes": MIB}, "raise the second or lower the first"),
        ({"redis_payload_secs": 3}, "redis_payload_secs"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RedisSettings(**settings)
