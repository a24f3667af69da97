"""Which samples each trainer of a round gets.

The algorithm is the reference implementation's with one extension (F14): a round's samples may be several intervals, requeued
ones first. The intervals are joined in this order and cut into contiguous shares, so a share may also consist of several
intervals. For a round with one fresh interval, the result is the same as the reference's. The functions are pure. They are called
at every command, so the most recent results are cached.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType

from psyche_core.coordinator.round.committee import CACHE_SIZE, trainer_slots
from psyche_core.coordinator.round.shuffle import deterministic_shuffle
from psyche_core.coordinator.state import CoordinatorState, Round
from psyche_core.types import BatchId, total_samples


def split(first: int, total: int, parts: int) -> list[tuple[int, int]]:
    """Cut `total` samples starting at `first` into at most `parts` closed intervals (first, last).

    Sizes differ by at most one sample; the larger intervals come first. No interval is empty.
    """
    intervals = []
    for part in range(min(parts, total)):
        size = total // parts + (part < total % parts)
        intervals.append((first, first + size - 1))
        first += size
    return intervals


def shares(state: CoordinatorState, round_: Round) -> Mapping[int, tuple[BatchId, ...]]:  # noqa: ARG001  # as of all of a round
    """Map each slot to its intervals in this round.

    Slots without samples are left out: those that recompute a challenged share, and others when there are more trainers than
    samples, and in a drain round.
    """
    return _shares(trainer_slots(round_), round_.seed, round_.batches)


@lru_cache(maxsize=CACHE_SIZE)
def _shares(trainers: tuple[int, ...], seed: int, batches: tuple[BatchId, ...]) -> Mapping[int, tuple[BatchId, ...]]:
    order = deterministic_shuffle(trainers, seed)
    ranges = split(0, total_samples(batches), len(order))
    return MappingProxyType(
        {slot: tuple(_slice(batches, first, last)) for slot, (first, last) in zip(order, ranges, strict=False)}
    )


def unaccepted(state: CoordinatorState, round_: Round, accepted: Collection[int]) -> tuple[BatchId, ...]:
    """Return the samples of a round that are not in the share of an accepted slot; all samples if the round had no trainer."""
    assigned = shares(state, round_)
    if not assigned:
        return round_.batches

    return tuple(batch for slot, share in assigned.items() if slot not in accepted for batch in share)


def _slice(batches: tuple[BatchId, ...], first: int, last: int) -> Iterator[BatchId]:
    """Yield samples first..last (both inclusive, counted over the concatenated intervals) as intervals."""
    offset = 0
    for batch in batches:
        begin, end = max(first - offset, 0), min(last - offset, len(batch) - 1)
        if begin <= end:
            yield BatchId(batch.first + begin, batch.first + end)
        offset += len(batch)
