"""Score D of a payload: how much its positions overlap with those of other payloads. It costs no gradient.

D is the largest Jaccard index |A and B| / |A or B| of a payload's positions and those of any other payload of the round or of the
last rounds. Two honest payloads overlap a little, since large coefficients are often low frequencies; a copy, an old payload sent
again, or either with other signs overlaps wholly. D chooses whom to challenge first. It is never a verdict: whoever draws other
positions at random, or changes a third of a copy, is under any threshold.

Positions are int64 numbers, ascending and different, of coefficients that were chosen: a chunk that sends all of its
coefficients says nothing, and its positions are left out by whoever decodes the payload.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]

SUSPICIOUS = 0.3
"""D above this is challenged first."""

RECENT_ROUNDS = 20
"""Rounds whose payloads are compared with those of the present one."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """The largest overlap of a payload. score: 0 to 1. slot, height: whose payload of which round is that like; None if none."""

    score: float
    slot: int | None = None
    height: int | None = None

    @property
    def suspicious(self) -> bool:
        """Whether it is reason to challenge the share first."""
        return self.score > SUSPICIOUS


def jaccard(one: Positions, other: Positions) -> float:
    """|A and B| / |A or B| of two ascending lists without duplicates; 0 for two empty ones."""
    small, large = (one, other) if one.size <= other.size else (other, one)
    if small.size == 0:
        return 0.0

    places = np.searchsorted(large, small)
    places[places == large.size] = 0  # larger than all: compared with the smallest, which is another number
    common = int(np.count_nonzero(large[places] == small))
    return common / (small.size + large.size - common)


@dataclass(frozen=True, slots=True)
class RecentPositions:
    """Positions of the payloads of the last rounds, by round and slot.

    limit: number of rounds that are kept.
    """

    rounds: Mapping[int, Mapping[int, Positions]] = field(default_factory=dict)
    limit: int = RECENT_ROUNDS

    def scores(self, height: int, payloads: Mapping[int, Positions]) -> dict[int, Overlap]:
        """D of each payload of a round by slot.

        payloads: positions by slot. A slot's own payloads of earlier rounds count, too.
        """
        earlier = [
            (number, slot, positions)
            for number, others in self.rounds.items()
            if number != height
            for slot, positions in others.items()
        ]
        return {
            slot: _largest(positions, [*earlier, *((height, other, seen) for other, seen in payloads.items() if other != slot)])
            for slot, positions in payloads.items()
        }

    def with_round(self, height: int, payloads: Mapping[int, Positions]) -> RecentPositions:
        """The same with one more round; the oldest go beyond the limit. A round that is there already is replaced."""
        rounds = {**self.rounds, height: dict(payloads)}
        kept = sorted(rounds)[-self.limit :]
        return RecentPositions({number: rounds[number] for number in kept}, self.limit)


def _largest(positions: Positions, others: Iterable[tuple[int, int, Positions]]) -> Overlap:
    best = Overlap(0.0)
    for height, slot, seen in others:
        score = jaccard(positions, seen)
        if score > best.score:
            best = Overlap(score, slot, height)
    return best
