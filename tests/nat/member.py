"""A member of a small mesh in the laboratory: a transport `quic`, told of the others by files in place of a coordinator.

    python -m tests.nat.member NAME FOLDER [--relay URL[,URL…]] [--interface IP] [--port PORT] [--bytes N]

FOLDER is what a coordinator would hand out: each member writes NAME.address there whenever its address changes, and reads those
of the others. It prints one JSON object a line: when it can be reached, each change of the path to a peer, with the seconds since
the peer's address was first read, gaps in the peer's messages, and blobs fetched. It ends at the end of its input.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path

import anyio
import anyio.to_thread

from psyche_core.errors import BlobNotFound, BlobRejected
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.options import QuicOptions
from psyche_p2p_quic.transport import QuicTransport

GAP_SECONDS = 1.0
HEARTBEAT_SECONDS = 0.1


def key_of(name: str) -> SecretKey:
    """Each name has its own."""
    return SecretKey(hashlib.sha256(name.encode()).digest())


def say(**fields: object) -> None:
    """One line for whoever watches."""
    sys.stdout.write(json.dumps({"at": round(time.time(), 3), **fields}) + "\n")
    sys.stdout.flush()


class Member:
    """See the module."""

    def __init__(self, given: argparse.Namespace, transport: QuicTransport) -> None:
        self._given = given
        self._transport = transport
        self._names: dict[bytes, str] = {}
        self._known_at: dict[bytes, float] = {}
        self._heard_at: dict[bytes, float] = {}
        self._paths: dict[bytes, str] = {}

    async def publish(self) -> None:
        """Write our address whenever it changes."""
        written = b""
        file = self._given.folder / f"{self._given.name}.address"
        while True:
            if self._transport.address != written:
                written = self._transport.address
                partial = file.with_suffix(".partial")
                partial.write_bytes(self._transport.peer_id + written)
                partial.rename(file)
            await anyio.sleep(0.05)

    async def follow(self) -> None:
        """Read the others' addresses."""
        known: dict[bytes, bytes] = {}
        while True:
            peers = {}
            for file in self._given.folder.glob("*.address"):
                content = file.read_bytes()
                if file.stem != self._given.name:
                    peers[content[:32]] = content[32:]
                    self._names[content[:32]] = file.stem
                    self._known_at.setdefault(content[:32], time.monotonic())
            if peers != known:
                known = peers
                await self._transport.set_peers(peers)
            await anyio.sleep(0.05)

    async def watch_paths(self) -> None:
        """Tell of each change."""
        while True:
            now = {path.peer: "relayed" if path.relayed else "direct" for path in self._transport.paths}
            for peer in self._names:
                kind = now.get(peer, "none")
                if self._paths.get(peer, "none") != kind:
                    self._paths[peer] = kind
                    seconds = time.monotonic() - self._known_at[peer]
                    say(event="path", peer=self._names[peer], path=kind, seconds=round(seconds, 3))
            await anyio.sleep(0.01)

    async def beat(self) -> None:
        """Broadcast a number ten times a second."""
        number = 0
        while True:
            number += 1
            await self._transport.broadcast(f"{self._given.name} {number}".encode(), tag=number // 100)
            if number % 100 == 0:
                await self._transport.expire(number // 100 - 1)
            await anyio.sleep(HEARTBEAT_SECONDS)

    async def listen(self) -> None:
        """Tell of each peer's first message, and of gaps."""
        while True:
            incoming = await self._transport.receive()
            now, peer = time.monotonic(), incoming.via
            before = self._heard_at.get(peer)
            self._heard_at[peer] = now
            if before is None:
                say(event="heard", peer=self._names.get(peer, "?"))
            elif now - before > GAP_SECONDS:
                say(event="gap", peer=self._names.get(peer, "?"), seconds=round(now - before, 2))

    async def offer_and_fetch(self) -> None:
        """Offer a blob that the others know the hash of, and fetch theirs."""
        size = self._given.bytes
        await self._transport.publish(blob_of(self._given.name, size), tag=2**40)
        done: set[bytes] = set()
        while size:
            for peer, name in tuple(self._names.items()):
                if peer in done or peer not in self._paths or self._paths[peer] == "none":
                    continue
                digest = hashlib.sha256(blob_of(name, size)).digest()
                began = time.monotonic()
                try:
                    await self._transport.fetch(digest, sources=[peer], max_bytes=size, timeout=60, tag=2**40)
                except (BlobNotFound, BlobRejected) as error:
                    say(event="not fetched", peer=name, why=str(error))
                else:
                    done.add(peer)
                    seconds = time.monotonic() - began
                    say(event="fetched", peer=name, path=self._paths[peer], seconds=round(seconds, 3), bytes=size)
            await anyio.sleep(0.1)


def blob_of(name: str, size: int) -> bytes:
    """Bytes that everybody can make."""
    return (hashlib.sha256(name.encode()).digest() * (size // 32 + 1))[:size]


async def run(given: argparse.Namespace) -> None:
    """Take part until the input ends."""
    options = QuicOptions.model_construct(
        iroh_relay=given.relay, iroh_relay_token=None, iroh_discovery=None, advertise_address=given.advertise
    )
    whole = given.whole
    async with QuicTransport(
        "nat", key_of(given.name), interface=given.interface, port=given.port, whole_interface=whole, options=options
    ) as transport:
        began = time.monotonic()
        await transport.use_relays(())
        say(event="ready", seconds=round(time.monotonic() - began, 3), address=transport.address.hex())
        member = Member(given, transport)
        async with anyio.create_task_group() as tasks:
            for part in (member.publish, member.follow, member.watch_paths, member.beat, member.listen, member.offer_and_fetch):
                tasks.start_soon(part)
            await anyio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
            tasks.cancel_scope.cancel()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--relay")
    parser.add_argument("--interface", default="eth0")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--advertise")
    parser.add_argument("--bytes", type=int, default=0)

    anyio.run(run, parser.parse_args())
    os._exit(0)  # the thread that reads the input may still wait


if __name__ == "__main__":
    main()
