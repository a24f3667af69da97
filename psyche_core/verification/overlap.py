"""Score D of a payload: how much its positions overlap with those of other payloads. It costs no gradient.

D is the largest Jaccard index |A and B| / |A or B| of a payload's positions and those of any other payload of the round or of the
last rounds. Two honest payloads overlap a little, since large coefficients are often low frequencies; a copy, an old payload sent
again, or either with other signs overlaps wholly. D chooses whom to challenge first. It is never a verdict: whoever draws other
positions at random, or changes a third of a copy, is under any threshold.

Positions are int64 numbers, ascending and different, of coefficients that were chosen: a chunk that sends all of its
coefficients says nothing, and its positions are left out by whoever decodes the payload.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
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
        """D of each payload of a round. payloads: positions by member. A member's own payloads of earlier rounds count, too.

        Raises ValueError for positions below 0 or of some 2^50 and more.
        """
        labels = [(number, other) for number, others in self.rounds.items() if number != height for other in others]
        seen = [self.rounds[number][other] for number, other in labels]
        labels += [(height, member) for member in payloads]
        seen += payloads.values()
        table = _Table(seen)
        first = len(labels) - len(payloads)
        return {
            member: table.largest(positions, labels, own=first + place)
            for place, (member, positions) in enumerate(payloads.items())
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


class _Table:
    """Positions of many payloads in one sorted list, so that one search finds all payloads that have a position."""

    def __init__(self, payloads: Sequence[Positions]) -> None:
        self._sizes = np.array([each.size for each in payloads], dtype=np.int64)  # [payloads]
        self._bits = max(1, len(payloads)).bit_length()
        numbers = np.repeat(np.arange(len(payloads), dtype=np.int64), self._sizes)
        whole = np.concatenate(payloads) if payloads else np.empty(0, dtype=np.int64)
        if whole.size and not 0 <= int(whole.min()) <= int(whole.max()) < 1 << (60 - self._bits):
            message = f"positions must be from 0 to 2^{60 - self._bits}, got {int(whole.min())} to {int(whole.max())}"
            raise ValueError(message)

        self._keys = np.sort((whole << self._bits) | numbers, kind="stable")  # quick where there are long sorted runs

    def largest(self, positions: Positions, labels: Sequence[tuple[int, Member]], *, own: int) -> Overlap[Member]:
        """The largest overlap with a payload other than number `own`. labels: round and member of each payload."""
        begins = np.searchsorted(self._keys, positions << self._bits)
        counts = np.searchsorted(self._keys, (positions + 1) << self._bits) - begins
        places = np.arange(counts.sum()) + np.repeat(begins - np.cumsum(counts) + counts, counts)
        numbers = self._keys[places] & ((1 << self._bits) - 1)
        common = np.bincount(numbers, minlength=len(labels))  # [payloads]
        common[own] = 0
        if not common.any():
            return Overlap(0.0)

        scores = common / (positions.size + self._sizes - common)
        best = int(np.argmax(scores))
        height, member = labels[best]
        return Overlap(float(scores[best]), member, height)
