"""Recomputed gradients, kept until chunks of them are opened. They take 4 bytes of host memory per parameter and challenge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from psyche_core.client.machine.actions import StagePlace
from psyche_core.verification.merkle import MerkleTree, gradient_leaf
from psyche_core.verification.opening import OpenedChunk
from psyche_core.verification.parts import ChunkTable, encode_gradient


@dataclass(frozen=True, slots=True, eq=False)
class KeptGradient:
    """A recomputed gradient. groups: float32 [count, size] each. tag: it is kept until this tag expires."""

    groups: tuple[NDArray[np.float32], ...]
    tree: MerkleTree
    tag: int


class KeptGradients:
    """The recomputed gradients of one process, by the share's round and slot."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], KeptGradient] = {}

    def add(self, place: StagePlace, groups: Sequence[NDArray[np.float32]], *, tag: int) -> bytes:
        """Keep a gradient and return its root, 32 bytes. groups: float32 [count, size] each."""
        own = tuple(np.ascontiguousarray(group, dtype=np.float32) for group in groups)
        tree = MerkleTree([gradient_leaf(row.astype("<f4").tobytes()) for group in own for row in group])
        self._kept[place.about, place.trainer] = KeptGradient(own, tree, tag)
        return tree.root

    def part(self, place: StagePlace, table: ChunkTable, *, numbers: Sequence[int]) -> bytes | None:
        """Return the part with the drawn chunks; None if no gradient of this share is kept."""
        one = self._kept.get((place.about, place.trainer))
        if one is None:
            return None

        none, nothing = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
        chunks = []
        for number in numbers:
            group, row = table.place_of(number)
            chunks.append(OpenedChunk(number, one.groups[group][row], none, nothing, one.tree.proof(number)))
        return encode_gradient(one.tree.root, chunks)

    def expire(self, before: int) -> None:
        """Forget gradients with older tags."""
        self._kept = {place: one for place, one in self._kept.items() if one.tag >= before}
