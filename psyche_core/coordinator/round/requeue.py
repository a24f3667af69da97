"""The queue of samples to be assigned again (F14): bounded, disjoint intervals, the oldest (lowest) samples first.

Neighbouring intervals are merged. If there are too many intervals, the oldest are discarded, and their samples are counted.
"""

from __future__ import annotations

from collections.abc import Iterable

from psyche_core.types import BatchId, total_samples

MAX_INTERVALS = 512


def merged(batches: Iterable[BatchId]) -> tuple[BatchId, ...]:
    """Return the same samples as ascending intervals with neighbours joined. Raises ValueError if a sample occurs twice."""
    joined: list[BatchId] = []
    for batch in sorted(batches):
        if joined and batch.first <= joined[-1].last:
            message = f"{batch} and {joined[-1]} share samples; expected disjoint intervals"
            raise ValueError(message)

        if joined and batch.first == joined[-1].last + 1:
            joined[-1] = BatchId(joined[-1].first, batch.last)
        else:
            joined.append(batch)
    return tuple(joined)


def added(queue: tuple[BatchId, ...], batches: Iterable[BatchId]) -> tuple[tuple[BatchId, ...], int]:
    """Return the queue with `batches` added, and the number of samples discarded to stay within MAX_INTERVALS.

    Raises ValueError if a sample occurs twice.
    """
    joined = merged((*queue, *batches))
    surplus = max(len(joined) - MAX_INTERVALS, 0)
    return joined[surplus:], total_samples(joined[:surplus])


def taken(queue: tuple[BatchId, ...], samples: int) -> tuple[tuple[BatchId, ...], tuple[BatchId, ...]]:
    """Return at most `samples` samples from the front of the queue, and the rest of the queue."""
    front: list[BatchId] = []
    for place, batch in enumerate(queue):
        if samples == 0:
            return tuple(front), queue[place:]

        if len(batch) > samples:
            cut = batch.first + samples
            return (*front, BatchId(batch.first, cut - 1)), (BatchId(cut, batch.last), *queue[place + 1 :])

        front.append(batch)
        samples -= len(batch)
    return tuple(front), ()
