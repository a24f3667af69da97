"""The deltas of this client's last results, which other members may ask it to show.

They take 4 bytes of host memory for each parameter and result, and twice that if the optimizer has a memory of earlier gradients.

A share of round h is drawn for a check when round h + 3 begins. So the deltas of the last few results are always kept. The deltas
of a challenged share and of the result before it are kept until the challenge is over. Nothing survives the process.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyche_core.interfaces.replay import Replay
from psyche_core.verification.merkle import NO_DELTA, MerkleTree
from psyche_core.verification.opening import Memory, OpenedChunk, delta_leaf, opened_half
from psyche_core.verification.parts import ChunkShape, ChunkTable, encode_deltas, encode_no_delta, encode_payload, encode_signs

KEPT_RESULTS = 6
"""How many of the last results keep their delta: five rounds may be drawn or shown before a new one is added, plus one before."""


class DeltaLost(Exception):
    """A requested delta is no longer kept. The message says why, in one sentence."""


@dataclass(frozen=True, slots=True, eq=False)
class KeptDelta:
    """The delta after a result's contribution was added.

    groups: float32 [count, size] each. memory: the optimizer's memory in the same shape, if it has one; remembered: how many
    gradients it contains. places, values: what is taken off before the next result, by group: flat positions in the group,
    ascending, and float32 numbers. before: step of the result before this one, None if delta was zero. ahead: the payload by
    which the share looked ahead, empty for none; None where that is done by the signs of the delta before.
    """

    step: int
    before: int | None
    groups: tuple[NDArray[np.float32], ...]
    places: tuple[NDArray[np.int64], ...]
    values: tuple[NDArray[np.float32], ...]
    memory: tuple[NDArray[np.float32], ...] | None
    remembered: int
    tree: MerkleTree
    ahead: bytes | None = None

    def taken(self, group: int, row: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return positions and values of what is taken off a chunk."""
        size = self.groups[group].shape[1]
        first, last = np.searchsorted(self.places[group], (row * size, (row + 1) * size))
        return self.places[group][first:last] - row * size, self.values[group][first:last]

    def opened(self, table: ChunkTable, numbers: Sequence[int]) -> list[OpenedChunk]:
        """Return these chunks with their Merkle proofs."""
        found = []
        for number in numbers:
            group, row = table.place_of(number)
            taken, proof = self.taken(group, row), self.tree.proof(number)
            found.append(OpenedChunk(number, self.groups[group][row], *taken, proof, self.memory_of(group, row)))
        return found

    def memory_of(self, group: int, row: int) -> Memory | None:
        """Return the optimizer's memory of a chunk, None if it has no memory."""
        return None if self.memory is None else Memory(self.memory[group][row], self.remembered)


def table_of(replay: Replay) -> ChunkTable:
    """Return the table of an optimizer's chunks."""
    groups = tuple(ChunkShape(group.count, group.size, group.topk) for group in replay.groups)
    return ChunkTable(groups, replay.has_memory, replay.ahead_bytes)


def all_rows(replay: Replay) -> list[NDArray[np.int64]]:
    """Return the numbers of all rows, for each group."""
    return [np.arange(group.count, dtype=np.int64) for group in replay.groups]


class KeptDeltas:
    """The kept deltas of one process. All methods may run in any thread."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._kept: dict[int, KeptDelta] = {}
        self._pinned: dict[int, int] = {}
        self._newest: int | None = None

    def reset(self) -> None:
        """Note that delta is zero from now on, because the model is a new one. Deltas of earlier results stay."""
        with self._changing:
            self._newest = None

    def commit(self, replay: Replay, step: int) -> bytes:
        """Keep the delta of the result that was just compressed. Return its root and that of the result before, 64 bytes."""
        rows = all_rows(replay)
        groups = tuple(np.ascontiguousarray(group, dtype=np.float32) for group in replay.delta(rows))
        places, values = [], []
        for dense in replay.taken(step, rows):
            flat = np.asarray(dense, dtype=np.float32).reshape(-1)
            there = np.flatnonzero(flat)
            places.append(there.astype(np.int64))
            values.append(flat[there])
        memory, remembered = None, 0
        if replay.has_memory:
            found, remembered = replay.memory(rows)
            memory = tuple(np.ascontiguousarray(group, dtype=np.float32) for group in found)
        tree = _tree(groups, places, values, memory, remembered)
        ahead = None if replay.ahead_bytes is None else replay.ahead()
        with self._changing:
            self._kept.pop(step, None)  # the run went back, and this step is trained again
            one = KeptDelta(step, self._newest, groups, tuple(places), tuple(values), memory, remembered, tree, ahead)
            earlier = None if one.before is None else self._kept.get(one.before)
            self._kept[step], self._newest = one, step
            self._drop()
        return one.tree.root + (NO_DELTA if earlier is None else earlier.tree.root)

    def pin(self, step: int, *, tag: int) -> None:
        """Keep the delta of a challenged share, and the one before it, until `tag` expires."""
        with self._changing:
            one = self._kept.get(step)
            for wanted in (step, None if one is None else one.before):
                if wanted is not None and wanted in self._kept:
                    self._pinned[wanted] = max(tag, self._pinned.get(wanted, tag))

    def expire(self, before: int) -> None:
        """Release the deltas that were pinned with older tags."""
        with self._changing:
            self._pinned = {step: tag for step, tag in self._pinned.items() if tag >= before}
            self._drop()

    def lookahead(self, step: int) -> bytes:
        """Return the part that says where the share of this step looked ahead. Raises DeltaLost.

        It has the signs of the delta before, or the payload by which the optimizer looks ahead.
        """
        one = self._of(step)
        earlier = self._before(one)
        if earlier is None:
            return encode_no_delta()
        if one.ahead is not None:
            return encode_payload(one.ahead)

        halves = [
            opened_half(rows[row], *earlier.taken(group, row), earlier.memory_of(group, row))
            for group, rows in enumerate(earlier.groups)
            for row in range(len(rows))
        ]
        return encode_signs(earlier.groups, halves)

    def deltas(self, step: int, table: ChunkTable, *, numbers: Sequence[int]) -> bytes:
        """Return the part with the drawn chunks of the deltas after and before the share of this step. Raises DeltaLost."""
        one = self._of(step)
        earlier = self._before(one)
        return encode_deltas(one.opened(table, numbers), None if earlier is None else earlier.opened(table, numbers))

    def _of(self, step: int) -> KeptDelta:
        one = self._kept.get(step)
        if one is None:
            message = f"this client cannot show its share of step {step}: an earlier process trained it, or it was long ago"
            raise DeltaLost(message)

        return one

    def _before(self, one: KeptDelta) -> KeptDelta | None:
        return None if one.before is None else self._of(one.before)

    def _drop(self) -> None:
        recent = list(self._kept)[-KEPT_RESULTS:]  # in the order of their commitments
        self._kept = {step: one for step, one in self._kept.items() if step in recent or step in self._pinned}


def _tree(
    groups: Sequence[Any], places: Sequence[Any], values: Sequence[Any], memory: Sequence[Any] | None, remembered: int
) -> MerkleTree:
    leaves: list[bytes] = []
    for group, (rows, own, numbers) in enumerate(zip(groups, places, values, strict=True)):
        size = rows.shape[1]
        ends = np.searchsorted(own, np.arange(1, len(rows) + 1) * size)
        first = 0
        for row, last in enumerate(ends):
            kept = None if memory is None else Memory(memory[group][row], remembered)
            leaves.append(delta_leaf(rows[row], own[first:last] - row * size, numbers[first:last], kept))
            first = int(last)
    return MerkleTree(leaves)
