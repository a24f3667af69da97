"""A model fetched from other members over QUIC on loopback: how fast, as a share of one raw stream, and in how much memory.

    python -m benchmarks.model_sharing [--peers 1,2,4] [--megabytes 200] [--repeats 3] [--json]

Every member is a process of its own, with the client's own transport, model exchange and scratch files; only the trainer is one
of numpy arrays in the shapes of a small Llama, since torch's own memory would blur the figures. It does what a trainer does: it
compares, verifies every piece again before anything is replaced, and copies piece by piece from the file into the masters.

What is measured, for 1, 2 and 4 members that share:
    mb_per_s           model size by the time from "fetch this" until every piece is there, verified and on disk (median)
    joined_mb_per_s    the same until the masters are replaced and their digest is made
    ceiling_mb_per_s   one stream of as many bytes from one of these members over the same connection, neither hashed nor kept
                       (the median of one before each fetch and one after the last)
    sharer_rss_over_model, joiner_rss_over_model
                       most resident memory (VmHWM) above that of the same process when it was connected and had no model yet,
                       by model size; the largest of all processes. Pages of files are the system's cache and not in it.

    fresh_memory_mb_per_s
                       how fast the system hands out memory that was not used for some seconds, before the first fetch. Files pass
                       through such memory. A virtual machine that gave free memory back to its host got it again at some 300
                       MB/s, and all fetches were slower by what that takes; the same one at over 1,000 when it kept it

All processes and the system's network stack share this machine's cores; on two cores more members are not faster than one.
Where the system allows, it all runs in a network namespace with loopback only (tools/loopback.sh).
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import anyio
import anyio.to_thread
import numpy as np

from benchmarks.children import Child, enter_loopback, say
from benchmarks.memory import peak, resident
from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.model_sync.exchange import ModelExchange
from psyche_core.p2p.manifest import Manifest, Piece, Table, cut, parameter_table
from psyche_core.storage.parallel_map import each
from psyche_core.storage.scratch import Scratch
from psyche_core.telemetry import events as telemetry
from psyche_core.training import changed_pieces
from psyche_core.training.malloc_tuning import keep_freed_memory
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.blobs.frames import BLOB_HEAD_BYTES, BlobHead, BlobRequest
from psyche_p2p_quic.transport import QuicTransport

RUN_ID, STEP, TAG = "benchmark", 1, 1
RAW = b"\xff" * 32
"""A request for this hash is answered with as many zeros as it allows."""

MB = 10**6
WIDTH, HIDDEN, VOCABULARY = 512, 1408, 32_000
PATIENCE = 120.0


# ------------------------------------------------------------------------------------------------ the model


def raw_bytes(array: Any) -> memoryview:
    """The bytes of an array, to read and write."""
    return memoryview(array.reshape(-1).view(np.uint8))


class NumpyTrainer:
    """The masters of a Llama of about that size, as `psyche_core.training` treats a trainer's."""

    def __init__(self, megabytes: int, *, seed: int) -> None:
        layer = {"attn.q": WIDTH, "attn.k": WIDTH, "attn.v": WIDTH, "attn.o": WIDTH}
        layer |= {"mlp.admission": HIDDEN, "mlp.up": HIDDEN, "mlp.down": HIDDEN}
        layers = max(1, round((megabytes * MB / 4 - VOCABULARY * WIDTH) / (WIDTH * sum(layer.values()))))
        shapes: dict[str, tuple[int, ...]] = {
            f"layers.{n:02}.{name}": (rows, WIDTH) for n in range(layers) for name, rows in layer.items()
        }
        shapes |= {"embed": (VOCABULARY, WIDTH), "norm": (WIDTH,)}
        random = np.random.default_rng(seed)
        self.masters = {name: random.standard_normal(shapes[name], dtype=np.float32) for name in sorted(shapes)}

    @property
    def byte_count(self) -> int:
        return sum(array.nbytes for array in self.masters.values())

    def change(self) -> None:
        """Another model, in the same memory."""
        for array in self.masters.values():
            array += np.float32(1)

    @property
    def table(self) -> Table:
        return parameter_table({name: array.shape for name, array in self.masters.items()})

    def _view(self, piece: Piece) -> memoryview:
        return raw_bytes(self.masters[piece.name])[piece.first : piece.first + piece.byte_count]

    def read_piece(self, piece: Piece) -> bytes:
        return bytes(self._view(piece))

    def differing(self, manifest: Manifest) -> tuple[int, ...]:
        return changed_pieces.differing(manifest, lambda piece: hashlib.sha256(self._view(piece)).digest())

    def install(self, manifest: Manifest, pieces: Mapping[int, bytes | memoryview]) -> None:
        def check(number: int) -> None:
            data = pieces[number]
            assert hashlib.sha256(data).digest() == manifest.hashes[number]
            assert np.isfinite(np.frombuffer(data, dtype="<f4")).all()

        each(check, list(pieces))
        for piece in cut(self.table):
            if piece.number in pieces:
                self._view(piece)[:] = pieces[piece.number]

    def full_digest(self) -> bytes:
        state = hashlib.sha256()
        for array in self.masters.values():
            state.update(raw_bytes(array))
        return state.digest()


# ------------------------------------------------------------------------------------------------ a member's process


async def told() -> dict[str, Any]:
    line = await anyio.to_thread.run_sync(sys.stdin.readline)
    answer: dict[str, Any] = json.loads(line or '{"end": true}')
    return answer


class Sharer(QuicTransport):
    """Also gives as many zeros as are asked for."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        blobs = self._blobs
        assert blobs is not None
        answer, chunk = blobs._answer, bytes(self._settings.chunk_bytes)

        async def answer_raw(asker: Any, stream: Any, request: BlobRequest) -> int:
            if request.blob_hash != RAW:
                return await answer(asker, stream, request)

            await stream.write(BlobHead(True, request.max_bytes).encode())
            for at in range(0, request.max_bytes, len(chunk)):
                await stream.write(chunk[: request.max_bytes - at])
            await stream.finish()
            await stream.delivered()
            return request.max_bytes

        setattr(blobs, "_answer", answer_raw)  # noqa: B010  # nobody's business but this benchmark's
        return self


async def raw_stream(transport: QuicTransport, peer: bytes, size: int) -> float:
    """MB/s of one stream."""
    mesh = transport._mesh
    assert mesh is not None
    session = mesh.sessions[peer]
    began = time.perf_counter()
    stream = await session.open()
    await stream.write(BlobRequest(RAW, size).encode())
    await stream.finish()
    await stream.read_exactly(BLOB_HEAD_BYTES)
    left = size
    while left:
        part = await stream.read_exactly(min(left, 2**18))
        session.note_received(len(part))
        left -= len(part)
    return size / MB / (time.perf_counter() - began)


async def member(role: str, megabytes: int, folder: Path) -> None:
    """One process: connect, then do as told, line by line."""
    keep_freed_memory()  # as `psyche client train` does
    kind = Sharer if role == "sharer" else QuicTransport
    events: list[tuple[float, telemetry.Event]] = []
    async with kind(RUN_ID, SecretKey.generate()) as transport:
        say(key=transport.peer_id.hex(), address=transport.address.hex())
        members = {bytes.fromhex(key): bytes.fromhex(address) for key, address in (await told())["members"]}
        await transport.set_peers(members)
        others = [key for key in members if key != transport.peer_id]
        while len(transport.stats.peers) < len(others):  # noqa: ASYNC110  # a snapshot, there is no event
            await anyio.sleep(0.01)
        scratch = await anyio.to_thread.run_sync(Scratch, folder)
        exchange = ModelExchange(transport, report=lambda event: events.append((time.perf_counter(), event)), scratch=scratch)
        gc.collect()
        before = resident()
        trainer = await anyio.to_thread.run_sync(lambda: NumpyTrainer(megabytes, seed=role == "sharer"))
        say(ready=True, bytes=trainer.byte_count)
        while "end" not in (order := await told()):
            if "share" in order:
                taken = await exchange.offer(trainer, act.TakeSnapshot(STEP, TAG), run_id=RUN_ID)
                assert isinstance(taken, ev.SnapshotTaken), taken
                say(manifest=taken.manifest_hash.hex(), bytes=taken.manifest_bytes)
            elif "raw" in order:
                say(mb_per_s=await raw_stream(transport, bytes.fromhex(order["raw"]), trainer.byte_count))
            else:
                await anyio.to_thread.run_sync(trainer.change)
                sources = tuple(map(bytes.fromhex, order["sources"]))
                events.clear()
                began = time.perf_counter()
                work = act.FetchModel(STEP, bytes.fromhex(order["fetch"]), order["bytes"], sources, TAG)
                fetched = await exchange.fetch(trainer, work, run_id=RUN_ID)
                ended = time.perf_counter()
                assert isinstance(fetched, ev.ModelFetched), fetched
                there, last = next(entry for entry in reversed(events) if isinstance(entry[1], telemetry.ModelSync))
                assert isinstance(last, telemetry.ModelSync)
                assert last.bytes_received == trainer.byte_count, "not all of the model was fetched"
                size = trainer.byte_count / MB
                say(mb_per_s=size / (there - began), joined_mb_per_s=size / (ended - began))
                await exchange.expire(TAG + 1)
        say(rss=(peak() - before) / trainer.byte_count, before=before)
        await anyio.to_thread.run_sync(scratch.close)


# ------------------------------------------------------------------------------------------------ the run


@contextmanager
def members(sharers: int, megabytes: int, folder: Path) -> Iterator[list[Child]]:
    """That many sharers, and last the joiner, all connected and with a model of their own."""
    found: list[Child] = []
    options = ["--megabytes", str(megabytes), "--folder", str(folder)]
    try:
        for role in (*["sharer"] * sharers, "joiner"):
            found.append(Child(["benchmarks.model_sharing", "--role", role, *options]))  # noqa: PERF401 - end if one fails
        addresses = [(child.hello["key"], child.hello["address"]) for child in found]
        for child in found:
            child.tell(members=addresses)
        for child in found:
            child.listen()
        yield found
    finally:
        for child in found:
            child.end()


def measure(sharers: int, *, megabytes: int, repeats: int) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp(prefix="psyche-model-sharing-"))
    try:
        with members(sharers, megabytes, folder) as (*givers, joiner):
            offers = [giver.order(share=True) for giver in givers]
            assert all(offer == offers[0] for offer in offers), "the members' models differ"
            sources = [giver.hello["key"] for giver in givers]
            ceilings, fetches = [], []
            for number in range(repeats):
                ceilings.append(joiner.order(raw=sources[number % sharers])["mb_per_s"])
                fetches.append(joiner.order(fetch=offers[0]["manifest"], bytes=offers[0]["bytes"], sources=sources))
            ceilings.append(joiner.order(raw=sources[0])["mb_per_s"])
            return {
                "mb_per_s": statistics.median(fetch["mb_per_s"] for fetch in fetches),
                "joined_mb_per_s": statistics.median(fetch["joined_mb_per_s"] for fetch in fetches),
                "ceiling_mb_per_s": statistics.median(ceilings),
                "sharer_rss": max(giver.order(end=True)["rss"] for giver in givers),
                "joiner_rss": joiner.order(end=True)["rss"],
            }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fresh_memory(megabytes: int) -> float:
    """MB/s at which memory is had that nobody has used lately; a pause lets the host take back what it wants back."""
    time.sleep(5)
    block = np.empty(megabytes * MB, dtype=np.uint8)
    began = time.perf_counter()
    block[::4096] = 1  # a page each
    return megabytes / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peers", default="1,2,4", help="members that share, one measurement each")
    parser.add_argument("--megabytes", type=int, default=200, help="model size")
    parser.add_argument("--repeats", type=int, default=3, help="fetches for each number of members")
    parser.add_argument("--json", action="store_true", help="print figures only, as one line of JSON")
    parser.add_argument("--role", choices=("sharer", "joiner"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        anyio.run(member, options.role, options.megabytes, options.folder)
        return

    enter_loopback("benchmarks.model_sharing")
    fresh = fresh_memory(options.megabytes)
    peers: dict[str, dict[str, float]] = {}
    sharer_rss = joiner_rss = 0.0
    for count in map(int, options.peers.split(",")):
        found = measure(count, megabytes=options.megabytes, repeats=options.repeats)
        sharer_rss, joiner_rss = max(sharer_rss, found.pop("sharer_rss")), max(joiner_rss, found.pop("joiner_rss"))
        peers[str(count)] = {name: round(value, 1) for name, value in found.items()}
        if not options.json:
            share = found["mb_per_s"] / found["ceiling_mb_per_s"]
            figures = ", ".join(f"{name} {value:.0f}" for name, value in found.items())
            print(f"{count} sharing: {figures}: {share:.0%} of the ceiling", flush=True)

    result = {
        "peers": peers,
        "sharer_rss_over_model": round(sharer_rss, 2),
        "joiner_rss_over_model": round(joiner_rss, 2),
        "fresh_memory_mb_per_s": round(fresh),
    }
    memory_used = f"memory over model: sharer {sharer_rss:.2f}, joiner {joiner_rss:.2f}; fresh memory comes at {fresh:.0f} MB/s"
    print(json.dumps(result) if options.json else memory_used)


if __name__ == "__main__":
    main()
