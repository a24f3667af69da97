"""One endpoint of `benchmarks.growth.mesh`: a QUIC transport and nothing else, no torch; see `benchmarks.children`.

{"members": [[key, address], …]}        connect to all, or to our neighbours; answers with the seconds it took
{"idle": seconds}                       answers with CPU seconds
{"talk": seconds, "per_second": n}      send so many messages; answers with what came, how late, and CPU seconds
{"publish": bytes, "round": n}          publish our result of a round
{"results": bytes, "round": n}          fetch those of all others, which have published; answers with the seconds it took
{"end": true}                           answers with resident memory

With a number as its argument, it uses an overlay in which nobody has more neighbours than that.
"""

from __future__ import annotations

import hashlib
import json
import resource
import struct
import sys
import time
from collections import defaultdict
from typing import Any

import anyio
import anyio.to_thread

from benchmarks.children import say
from benchmarks.memory import resident
from psyche_core.interfaces.transport import Opened
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.settings import QuicSettings
from psyche_p2p_quic.transport import QuicTransport

MESSAGE_BYTES = 400
"""About a commitment with its signature."""

SEED = 1
"""Of the overlay, if there is one."""

SECONDS = 300.0
"""Longest wait for anything."""

AT_ONCE = 8
"""Downloads at once, as a client's `--max-concurrent-downloads` has it; in an overlay the transport is told of all."""

MB = 10**6

_HEAD = struct.Struct(">dI")
"""When a message was sent, and its tag."""


def cpu_seconds() -> float:
    """User and system time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def result_of(key: bytes, number: int, size: int) -> bytes:
    """A member's result of a round: bytes that everybody can compute, so that all know its hash."""
    return hashlib.shake_128(key + number.to_bytes(8, "big")).digest(size)


class Member:
    """What the orders are carried out with."""

    def __init__(self, transport: QuicTransport) -> None:
        self._transport = transport
        self._members: dict[bytes, bytes] = {}
        self._late: defaultdict[int, list[float]] = defaultdict(list)  # seconds, by tag: others may begin before us
        self._tag = 1

    async def listen(self) -> None:
        """Note how late each message is: all processes of a machine have one clock."""
        while True:
            incoming = await self._transport.receive()
            sent, tag = _HEAD.unpack_from(incoming.message)
            self._late[tag].append(time.monotonic() - sent)

    async def connect(self, members: list[list[str]]) -> dict[str, Any]:
        """Connect to all other members."""
        self._members = {bytes.fromhex(key): bytes.fromhex(address) for key, address in members}
        began, used = time.monotonic(), cpu_seconds()
        await self._transport.set_peers(self._members, seed=SEED)
        near = self._transport.stats.neighbours
        awaited = (self._members.keys() if near is None else set(near)) - {self._transport.peer_id}
        while not awaited <= set(self._transport.stats.peers):  # noqa: ASYNC110 - a snapshot, there is no event
            await anyio.sleep(0.02)
        seconds, connections = time.monotonic() - began, len(self._transport.stats.peers)
        return {"seconds": seconds, "connections": connections, "cpu_seconds": cpu_seconds() - used}

    async def idle(self, seconds: float) -> dict[str, Any]:
        """Do nothing."""
        began = cpu_seconds()
        await anyio.sleep(seconds)
        return {"cpu_seconds": cpu_seconds() - began}

    async def talk(self, seconds: float, per_second: float) -> dict[str, Any]:
        """Send messages evenly, and wait until those of all others are here."""
        self._tag += 1
        came = self._late[self._tag]
        began, used, before = time.monotonic(), cpu_seconds(), self._transport.stats
        count, begin = round(seconds * per_second), anyio.current_time()
        for number in range(count):
            await anyio.sleep_until(begin + number / per_second)
            head = _HEAD.pack(time.monotonic(), self._tag) + self._transport.peer_id
            await self._transport.broadcast(head.ljust(MESSAGE_BYTES, b"."), tag=self._tag)
        while len(came) < count * (len(self._members) - 1):  # noqa: ASYNC110 - they come without an event
            await anyio.sleep(0.02)
        after, late = self._transport.stats, sorted(came)
        return {
            "seconds": time.monotonic() - began,
            "received": len(late),
            "p50_ms": 1e3 * late[len(late) // 2],
            "p99_ms": 1e3 * late[len(late) * 99 // 100],
            "cpu_seconds": cpu_seconds() - used,
            "bytes_sent": after.bytes_sent - before.bytes_sent,
        }

    async def publish(self, size: int, number: int) -> dict[str, Any]:
        """Publish our result of a round. A fetch of what its owner does not have yet fails."""
        self._tag += 1
        await self._transport.publish(result_of(self._transport.peer_id, number, size), tag=self._tag)
        return {}

    async def results(self, size: int, number: int) -> dict[str, Any]:
        """Fetch the results of all others, each from its owner first."""
        tag, own = self._tag, self._transport.peer_id
        began, used = time.monotonic(), cpu_seconds()
        limit = anyio.CapacityLimiter(AT_ONCE if self._transport.stats.neighbours is None else len(self._members))

        async def fetch(key: bytes) -> None:
            blob_hash = hashlib.sha256(result_of(key, number, size)).digest()
            async with limit:
                await self._transport.fetch(
                    blob_hash, sources=(key,), max_bytes=size, timeout=SECONDS, tag=tag, wanted_by_all=True
                )

        others = sorted(self._members.keys() - {own})
        first = next((place for place, key in enumerate(others) if key > own), 0)
        async with anyio.create_task_group() as tasks:
            for key in (*others[first:], *others[:first]):  # so that not all begin with the same member
                tasks.start_soon(fetch, key)
        return {"seconds": time.monotonic() - began, "cpu_seconds": cpu_seconds() - used}

    async def carry_out(self, order: dict[str, Any]) -> dict[str, Any]:
        """One order."""
        match order:
            case {"members": members}:
                return await self.connect(members)
            case {"idle": seconds}:
                return await self.idle(seconds)
            case {"talk": seconds, "per_second": per_second}:
                return await self.talk(seconds, per_second)
            case {"publish": size, "round": number}:
                return await self.publish(size, number)
            case {"results": size, "round": number}:
                return await self.results(size, number)
            case _:
                return {"resident_mb": resident() / MB, "bytes_sent": self._transport.stats.bytes_sent}


def opened(message: bytes) -> Opened:
    """Whose message it is; nobody checks a signature here."""
    return Opened(message[_HEAD.size : _HEAD.size + 32])


async def run(degree: int | None) -> None:
    """Take orders until the input ends. degree: most neighbours; None connects all."""
    settings = QuicSettings() if degree is None else QuicSettings(overlay_above=1, overlay_degree=degree)
    async with (
        QuicTransport("benchmark", SecretKey.generate(), settings=settings) as transport,
        anyio.create_task_group() as tasks,
    ):
        transport.check_messages(opened)
        member = Member(transport)
        tasks.start_soon(member.listen)
        say(key=transport.peer_id.hex(), address=transport.address.hex(), resident_mb=resident() / MB)
        while line := await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            with anyio.fail_after(SECONDS):
                say(**await member.carry_out(json.loads(line)))
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(run, int(sys.argv[1]) if sys.argv[1:] else None)
