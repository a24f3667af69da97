"""Divides the rows of a batch among ranks.

Shares are contiguous and differ by at most one row; the first ones are larger, as in the coordinator's assignment of samples. All
ranks make the same number of passes, because passes contain collectives. A rank that has no rows left makes a pass over a row in
which no token is predicted. So this pass adds nothing to the training data.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from psyche_core.interfaces.data import IGNORED_LABEL
from psyche_core.models.hf.batches import Batch


def shard_rows(count: int, *, number: int, shares: int) -> range:
    """Return the rows of share `number` (from 0) of `shares` in a batch of `count` rows; may be empty."""
    size, larger = divmod(count, shares)
    start = number * size + min(number, larger)
    return range(start, start + size + (number < larger))


def pass_count(count: int, *, shares: int, micro_batch_size: int) -> int:
    """Return the number of passes of every share, which is that of the largest share."""
    return -(-len(shard_rows(count, number=0, shares=shares)) // micro_batch_size)


def passes_of(batch: Batch, *, number: int, shares: int, micro_batch_size: int) -> Iterator[Batch]:
    """Yield the micro-batches of share `number`: the same number of micro-batches for every share."""
    rows = shard_rows(batch.count, number=number, shares=shares)
    left = pass_count(batch.count, shares=shares, micro_batch_size=micro_batch_size)
    if rows:
        for micro in _rows(batch, rows).split(micro_batch_size):
            yield micro
            left -= 1
    for _ in range(left):
        yield _nothing_to_predict(batch)


def _rows(batch: Batch, rows: range) -> Batch:
    own = slice(rows.start, rows.stop)
    positions = None if batch.positions is None else batch.positions[own]
    return Batch(batch.ids[own], batch.targets[own], positions, batch.packed)


def _nothing_to_predict(batch: Batch) -> Batch:
    first = _rows(batch, range(1))
    return Batch(first.ids, torch.full_like(first.targets, IGNORED_LABEL), first.positions, first.packed)
