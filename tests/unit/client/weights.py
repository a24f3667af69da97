"""A model of numpy arrays that can be handed from member to member, and members that do so over a memory network. No torch."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import numpy as np

from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.model_sync.exchange import ModelExchange
from psyche_core.errors import ModelError
from psyche_core.p2p.manifest import PIECE_BYTES, Manifest, Piece, Table, cut, parameter_table
from psyche_core.storage.scratch import Scratch
from psyche_core.telemetry import events as telemetry

SHAPES = {"big": (5, PIECE_BYTES // 8 + 3), "bias": (3,), "empty": (0, 2), "scalar": (), "wide": (2, 40_000)}
PIECES = 6
STEP, TAG, RUN_ID = 7, 70, "run"


class Weights:
    """A `ModelHolder`. seed: of its values. Replaces parameter by parameter, as an optimizer does."""

    def __init__(self, seed: int, shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> None:
        random = np.random.default_rng(seed)
        self.masters = {name: random.standard_normal(shapes[name], dtype=np.float32) for name in sorted(shapes)}

    @property
    def table(self) -> Table:
        return parameter_table({name: array.shape for name, array in self.masters.items()})

    def view(self, piece: Piece) -> np.ndarray[Any, np.dtype[np.float32]]:
        return self.masters[piece.name].reshape(-1)[piece.first // 4 : (piece.first + piece.byte_count) // 4]

    def read_piece(self, piece: Piece) -> bytes:
        return self.view(piece).tobytes()

    def differing(self, manifest: Manifest) -> tuple[int, ...]:
        return tuple(
            piece.number
            for piece in cut(self.table)
            if hashlib.sha256(self.read_piece(piece)).digest() != manifest.hashes[piece.number]
        )

    def install(self, manifest: Manifest, pieces: Mapping[int, bytes | memoryview]) -> None:
        by_number = {piece.number: piece for piece in cut(self.table)}
        for number in pieces:
            try:
                good = hashlib.sha256(pieces[number]).digest() == manifest.hashes[number]
            except OSError as error:
                message = f"piece {number} cannot be read"
                raise ModelError(message) from error
            if not good:
                message = f"piece {number} is not of the manifest"
                raise ModelError(message)

        for number in pieces:
            self.view(by_number[number])[:] = np.frombuffer(pieces[number], dtype=np.float32)

    def full_digest(self) -> bytes:
        state = hashlib.sha256()
        for array in self.masters.values():
            state.update(array.tobytes())
        return state.digest()


@dataclass
class Member:
    """One side of a handover, and what it told."""

    transport: MemoryTransport
    holder: Weights
    exchange: ModelExchange
    scratch: Scratch
    told: list[telemetry.Event] = field(default_factory=list)

    @property
    def key(self) -> bytes:
        return self.transport.peer_id

    async def offer(self) -> ev.SnapshotTaken:
        taken = await self.exchange.offer(self.holder, act.TakeSnapshot(STEP, TAG), run_id=RUN_ID)
        assert isinstance(taken, ev.SnapshotTaken), taken
        return taken

    async def fetch(self, taken: ev.SnapshotTaken, *sources: Member) -> ev.ModelFetched | ev.ModelFetchFailed:
        keys = tuple(source.key for source in sources)
        work = act.FetchModel(taken.step, taken.manifest_hash, taken.manifest_bytes, keys, TAG)
        return await self.exchange.fetch(self.holder, work, run_id=RUN_ID)

    def progress(self) -> list[telemetry.ModelSync]:
        return [event for event in self.told if isinstance(event, telemetry.ModelSync)]


@asynccontextmanager
async def party(
    folder: Path, *kinds: type[MemoryTransport], seeds: Sequence[int] = (), at_once: int = 8
) -> AsyncIterator[list[Member]]:
    """Members that are connected with each other. The last one's masters differ from those of all others."""
    network = MemoryNetwork()
    async with AsyncExitStack() as stack:
        found = []
        with anyio.fail_after(60):
            for number, kind in enumerate(kinds):
                key = hashlib.sha256(b"party" + bytes((number,))).digest()
                transport = await stack.enter_async_context(kind(network, key))
                seed = seeds[number] if seeds else int(number == len(kinds) - 1)
                scratch = await anyio.to_thread.run_sync(Scratch, folder)
                stack.callback(scratch.close)
                told: list[telemetry.Event] = []
                exchange = ModelExchange(transport, report=told.append, scratch=scratch, at_once=at_once)
                found.append(Member(transport, Weights(seed), exchange, scratch, told))
            for member in found:
                await member.transport.set_peers({other.key: b"" for other in found})
            yield found
