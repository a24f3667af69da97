"""Evaluation of witness statements: the quorum, which results are accepted, and which of several results is applied.

The quorum is two thirds, rounded up, of the *elected* witnesses (F5). Commitments are looked
up in the statements' filters (`bloom_filter`). The result does not depend on the order in which messages arrive (F7).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.round.bloom_filter import filter_bits, filter_of
from psyche_core.coordinator.round.committee import witness_slots
from psyche_core.coordinator.state import CoordinatorState, Round
from psyche_core.types import WitnessStatement
from psyche_core.wire.codec import encode

_CACHED_STATEMENTS = 16


def quorum(elected: int) -> int:
    """Return the number of statements needed among `elected` witnesses: two thirds, rounded up (F5); 0 if none is elected."""
    return -(-2 * elected // 3)


def accepted_slots(state: CoordinatorState, round_: Round, *, without: int | None = None) -> frozenset[int]:
    """Return the slots whose result of `round_` was seen by a quorum of the next round's elected witnesses.

    Empty until the first statement. without: a slot whose statement is ignored, to find out whether the others are enough.
    """
    attesting = state.round_at(round_.height + 1)
    if attesting is None or not attesting.statements:
        return frozenset()

    needed = quorum(len(witness_slots(state, attesting)))
    seen = _seen_by(needed, [statement.participants for statement in attesting.statements if statement.index != without])
    return frozenset([slot for slot in shares(state, round_) if seen >> slot & 1 and slot not in round_.voided])


def split_vote_slots(state: CoordinatorState, round_: Round) -> frozenset[int]:
    """Return the slots whose result of `round_` at least half of the next round's elected witnesses saw, but no quorum.

    Liars and a member on a slow line can do that to an honest trainer. Of a trainer that gave nothing only liars say that they
    saw something, and they are less than half. Empty while less than a quorum has stated: silence judges nobody.
    """
    attesting = state.round_at(round_.height + 1)
    if attesting is None:
        return frozenset()

    elected = len(witness_slots(state, attesting))
    if not attesting.statements or len(attesting.statements) < quorum(elected):
        return frozenset()

    seen = _seen_by(-(-elected // 2), [statement.participants for statement in attesting.statements])
    decided = accepted_slots(state, round_).union(round_.voided)
    return frozenset([slot for slot in shares(state, round_) if seen >> slot & 1 and slot not in decided])


def _seen_by(needed: int, bitmaps: Sequence[bytes]) -> int:
    """Return the bits (slots) that are set in at least `needed` of the bitmaps. All bits are counted in parallel."""
    if not bitmaps:
        return 0
    if len(bitmaps) >= needed > 0 and bitmaps.count(bitmaps[0]) == len(bitmaps):
        return int.from_bytes(bitmaps[0], "little")  # the usual case: all bitmaps are equal

    at_least = [-1] + [0] * needed
    for bitmap in bitmaps:
        bits = int.from_bytes(bitmap, "little")
        for count in range(needed, 0, -1):
            at_least[count] |= at_least[count - 1] & bits
    return at_least[needed]


def tolerated(elected: int) -> int:
    """Return how many of `elected` witnesses may lie: so many that the others still form a quorum."""
    return elected - quorum(elected)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision which result of an accepted slot is applied.

    chosen: the commitment (32 bytes) to apply, None if none of the candidates is chosen. void: True if it is certain that no
    commitment was agreed on, not even an unknown one. If chosen is None and void is False, the commitment that was agreed on is
    not among the candidates, so the client still has to receive it.
    """

    chosen: bytes | None = None
    void: bool = False


@dataclass(frozen=True, slots=True)
class Ballots:
    """The statements of a round about the results of the round before it. Equal ones are counted together.

    seed: of the round that attests. liars: how many of its elected witnesses may lie. groups: the slots that were seen, as bits;
    the filter of their commitments, as bits; the number of statements that say so.
    """

    seed: int
    liars: int
    groups: tuple[tuple[int, int, int], ...]

    def judge(self, slot: int, candidates: Iterable[bytes]) -> Verdict:
        """See `judge`."""
        masks = [(candidate, filter_of(self.seed, candidate)) for candidate in candidates]
        votes = dict.fromkeys([candidate for candidate, _ in masks], 0)
        stated = unexplained = 0
        for seen, bits, count in self.groups:  # plain loops: this runs for every slot of every round
            if not seen >> slot & 1:
                continue
            stated += count
            explained = False
            for candidate, mask in masks:
                if bits & mask == mask:
                    votes[candidate] += count
                    explained = True
            if not explained:
                unexplained += count
        needed = max(stated - self.liars, 1)
        agreed = [candidate for candidate, count in votes.items() if count >= needed]
        if agreed:
            return Verdict(chosen=min(agreed, key=lambda candidate: (-votes[candidate], candidate)))

        return Verdict(void=unexplained + self.liars < needed)


def ballots(state: CoordinatorState, round_: Round) -> Ballots | None:
    """Return what the next round's statements say about `round_`, to judge many of its slots; None before that round."""
    attesting = state.round_at(round_.height + 1)
    if attesting is None:
        return None

    counts = Counter([(statement.participants, statement.broadcast_bloom) for statement in attesting.statements])
    groups = [(int.from_bytes(seen, "little"), filter_bits(bloom), count) for (seen, bloom), count in counts.items()]
    return Ballots(attesting.seed, tolerated(len(witness_slots(state, attesting))), tuple(groups))


def judge(state: CoordinatorState, round_: Round, slot: int, candidates: Iterable[bytes]) -> Verdict:
    """Decide from the next round's statements which result of `slot` in `round_` is applied. The slot must be accepted.

    candidates: commitments (32 bytes) signed for that share, in any order. A statement that saw the slot votes for each candidate
    that is in its filter. The filter of an honest witness contains exactly one of them. If a trainer signed only one result, its
    commitment is in the filters of all statements that saw the slot, except for at most `tolerated` lying witnesses. So this is
    the number of votes that a candidate needs. Among candidates that reach it, the one with the most votes is chosen, and of
    equal ones the smallest. If no candidate reaches it, count the statements whose filter contains no candidate: if they are too
    few for an unknown commitment to reach the number, the trainer sent different results to different witnesses, and the share
    is void.
    """
    counted = ballots(state, round_)
    return Verdict() if counted is None else counted.judge(slot, candidates)


def choose_commitment(state: CoordinatorState, round_: Round, slot: int, candidates: Iterable[bytes]) -> bytes | None:
    """Return the commitment (32 bytes) that `judge` chooses, or None if it chooses none."""
    return judge(state, round_, slot, candidates).chosen


@lru_cache(maxsize=_CACHED_STATEMENTS)
def statements_digest(statements: tuple[WitnessStatement, ...]) -> bytes:
    """Return SHA-256 over a round's statements as canonical CBOR, ascending by slot. Journals store this digest.

    A statement with words about challenges has them as an eighth field.
    """
    fields = [
        [
            statement.epoch,
            statement.height,
            statement.index,
            statement.participants,
            statement.broadcast_bloom,
            statement.merkle_root,
            statement.model_digest,
            *([statement.words] if statement.words else []),
        ]
        for statement in sorted(statements, key=lambda statement: statement.index)
    ]
    return hashlib.sha256(encode(fields)).digest()
