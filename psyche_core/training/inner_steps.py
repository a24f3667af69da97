"""Cuts a share into parts, for an optimizer with inner steps: it takes one step on each part."""

from __future__ import annotations

import itertools

from psyche_core.interfaces.data import LABEL_BYTES, POSITION_BYTES, Samples


def parts_of(samples: Samples, count: int) -> tuple[Samples, ...]:
    """Cut samples into `count` parts of consecutive samples, or into single samples if there are fewer.

    Sizes differ by at most one sample; the larger parts come first. For one part, the samples themselves are returned.
    """
    count = max(1, min(count, samples.count))
    if count == 1:
        return (samples,)

    size, larger = divmod(samples.count, count)
    ends = [number * size + min(number, larger) for number in range(count + 1)]
    return tuple(rows_of(samples, first, last) for first, last in itertools.pairwise(ends))


def rows_of(samples: Samples, first: int, last: int) -> Samples:
    """Return the samples from number `first` up to but not including `last`."""

    def column(data: bytes | None, size: int) -> bytes | None:
        return None if data is None else data[first * samples.sequence_length * size : last * samples.sequence_length * size]

    return Samples(
        column(samples.tokens, samples.token_size) or b"",
        last - first,
        samples.sequence_length,
        samples.token_size,
        column(samples.labels, LABEL_BYTES),
        column(samples.position_ids, POSITION_BYTES),
        None if samples.sequence_lengths is None else samples.sequence_lengths[first:last],
    )
