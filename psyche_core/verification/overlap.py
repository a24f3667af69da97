"""Score D of a payload: how much its positions overlap with those of other payloads. It costs no gradient.

D is the largest Jaccard index |A and B| / |A or B| of a payload's positions and those of any other payload of the round or of the
last rounds. Two honest payloads overlap a little, since large coefficients are often low frequencies; a copy, an old payload sent
again, or either with other signs overlaps wholly. D chooses whom to challenge first. It is never a verdict: whoever draws other
positions at random, or changes a third of a copy, is under any threshold.

Positions are int64 numbers, ascending and different, of coefficients that were chosen: a chunk that sends all of its
coefficients says nothing, and its positions are left out by whoever decodes the payload.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
Member = TypeVar("Member", bound=Hashable)

SUSPICIOUS = 0.3
"""D above this is challenged first."""

RECENT_ROUNDS = 20
"""Rounds whose payloads are compared with those of the present one."""

ENOUGH = 1024
"""Of larger payloads about so many positions are compared: the same random ones of each, which leave D right to about 0.02."""

_ODD = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Overlap(Generic[Member]):
    """The largest overlap of a payload.

    score: 0 to 1. member, height: whose payload of which round it is with, None if with none.
    """

    score: float
    member: Member | None = None
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
class RecentPositions(Generic[Member]):
    """Positions of the payloads of the last rounds, by round and member.

    Rounds are numbered throughout, not anew in each epoch; members are slots, or keys where slots change.

    limit: number of rounds that are kept.
    """

    rounds: Mapping[int, Mapping[Member, Positions]] = field(default_factory=dict)
    limit: int = RECENT_ROUNDS

    def scores(self, height: int, payloads: Mapping[Member, Positions]) -> dict[Member, Overlap[Member]]:
        """D of each payload of a round. payloads: positions by member. A member's own payloads of earlier rounds count, too."""
        earlier = [
            (number, member, positions)
            for number, others in self.rounds.items()
            if number != height
            for member, positions in others.items()
        ]
        return {
            member: _largest(
                positions, [*earlier, *((height, other, seen) for other, seen in payloads.items() if other != member)]
            )
            for member, positions in payloads.items()
        }

    def with_round(self, height: int, payloads: Mapping[Member, Positions]) -> RecentPositions[Member]:
        """The same with one more round; the oldest go beyond the limit. A round that is there already is replaced."""
        rounds = {**self.rounds, height: dict(payloads)}
        kept = sorted(rounds)[-self.limit :]
        return RecentPositions({number: rounds[number] for number in kept}, self.limit)


def sampled(positions: Positions, *, part: float, salt: int) -> Positions:
    """Those positions that a hash chooses: about this part, 0 to 1, and the same of every payload, so that D stays what it is.

    salt: any number of 64 bits. Who does not know it cannot copy just the positions that are not looked at.
    """
    if part >= 1:
        return positions

    with np.errstate(over="ignore"):
        mixed = (positions.astype(np.uint64) ^ np.uint64(salt)) * np.uint64(_ODD)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(_ODD)
    kept: Positions = positions[mixed < np.uint64(int(part * 2**64))]
    return kept


def _largest(positions: Positions, others: Iterable[tuple[int, Member, Positions]]) -> Overlap[Member]:
    best: Overlap[Member] = Overlap(0.0)
    for height, member, seen in others:
        score = jaccard(positions, seen)
        if score > best.score:
            best = Overlap(score, member, height)
    return best
