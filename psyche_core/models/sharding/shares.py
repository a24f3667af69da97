"""Which rank works on which rows of a batch.

Shares are contiguous and differ by one row at most; the first ones are larger, as coordinators share out samples. All ranks make
the same number of passes, because passes contain collectives. A rank that has no rows left makes a pass over a row of which
nothing is predicted. No row is ever added to the training data.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from psyche_core.interfaces.data import IGNORED_LABEL
from psyche_core.models.hf.batches import Batch


def rows_of(count: int, *, number: int, shares: int) -> range:
    """Rows of share `number` of `shares`; may be empty."""
    size, larger = divmod(count, shares)
    start = number * size + min(number, larger)
    return range(start, start + size + (number < larger))


def pass_count(count: int, *, shares: int, micro_batch_size: int) -> int:
    """Passes that every share makes: those of the largest."""
    return -(-len(rows_of(count, number=0, shares=shares)) // micro_batch_size)


def passes_of(batch: Batch, *, number: int, shares: int, micro_batch_size: int) -> Iterator[Batch]:
    """The micro-batches of share `number`: as many as every other share has."""
    rows = rows_of(batch.count, number=number, shares=shares)
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
