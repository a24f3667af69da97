"""The order of a weighted mixture: which sample of which source is at place i.

The order is that of the reference implementation. A mixture of N samples (N = all lengths together) is filled place by place: at
place k the source with the largest `weight * max(k, 1) - drawn so far` gives its next sample; among equal values the first
source is used. An exhausted source starts again; empty sources are never drawn. A seed then shuffles the places
(`backward_order`). There is one difference: a place past N wraps around, while the reference implementation silently returned
sample 0 of source 0.

It needs one byte per place for the source (two if there are more than 256 sources) and four more for the shuffled order. The
number of the sample in its source is counted from the nearest of the counts saved every BLOCK places.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence

from psyche_core.data.ordering.data_shuffle import MAX_SEQUENCES, backward_order
from psyche_core.errors import DataError

BLOCK = 1024
"""Number of places between two saved counts of the draws from each source."""

MAX_SOURCES = 65_536


class MixtureIndex:
    """The order of a mixture. Building takes about a second per million places.

    lengths: number of samples of each source. weights: a positive number per source, of which only the proportions count; None
    for weights proportional to the lengths. shuffle_seed: 32 bytes, or None for the order of drawing. Raises DataError if there
    is nothing to mix, too many samples, or invalid weights.
    """

    def __init__(
        self, lengths: Sequence[int], weights: Sequence[float] | None = None, *, shuffle_seed: bytes | None = None
    ) -> None:
        self.lengths: tuple[int, ...] = tuple(lengths)
        self.weights: tuple[float, ...] = normalised_weights(self.lengths, weights)
        self._count = sum(self.lengths)
        if not 0 < self._count <= MAX_SEQUENCES:
            message = (
                f"a mixture needs 1 to {MAX_SEQUENCES} samples in all its sources together, got {self._count} in "
                f"{len(self.lengths)} sources; check the sources' files"
            )
            raise DataError(message)

        self._sources, self._drawn = _filled(self.lengths, self.weights, self._count)
        self._order = None if shuffle_seed is None else backward_order(self._count, shuffle_seed)

    def __len__(self) -> int:
        """Number of places, which is the number of samples of all sources together."""
        return self._count

    def locate(self, index: int) -> tuple[int, int]:
        """(source, sample within the source) at place `index`; past the end it wraps around."""
        place = index % self._count
        if self._order is not None:
            place = self._order[place]

        source = self._sources[place]
        block, beyond = divmod(place, BLOCK)
        drawn = self._drawn[block * len(self.lengths) + source] + self._sources[place - beyond : place].count(source)
        return source, drawn % self.lengths[source]


def normalised_weights(lengths: Sequence[int], weights: Sequence[float] | None) -> tuple[float, ...]:
    """The sources' shares, which add up to 1: from `weights`, or from the lengths if that is None. Raises DataError."""
    if len(lengths) > MAX_SOURCES:
        message = f"a mixture has at most {MAX_SOURCES} sources, got {len(lengths)}"
        raise DataError(message)

    values = [float(value) for value in (lengths if weights is None else weights)]
    if len(values) != len(lengths):
        message = f"a mixture needs a weight for each of its {len(lengths)} sources, got {len(values)} weights"
        raise DataError(message)

    total = 0.0
    for value in values:  # not sum(), which is exact only in newer Pythons: all members need the same bits
        total += value
    if weights is not None and not (all(value > 0 for value in values) and math.isfinite(total)):
        message = f"weights of a mixture must be positive numbers, got {values}; leave out a source that is not wanted"
        raise DataError(message)

    return tuple(value / total for value in values) if total else (0.0,) * len(values)


def grouped(places: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """The distinct sample numbers needed from each source, ascending."""
    wanted: dict[int, set[int]] = {}
    for source, sample in places:
        wanted.setdefault(source, set()).add(sample)

    return {source: sorted(samples) for source, samples in sorted(wanted.items())}


def _filled(lengths: Sequence[int], weights: Sequence[float], count: int) -> tuple[bytearray | array[int], array[int]]:
    """The source of every place, and the number of draws from each source before every BLOCK-th place."""
    sources: bytearray | array[int] = bytearray() if len(lengths) <= 256 else array("H")
    drawn = array("I")
    not_empty = [number for number, length in enumerate(lengths) if length]
    draws = _draws([weights[number] for number in not_empty], count)
    totals = [0] * len(lengths)
    while len(sources) < count:
        drawn.extend(totals)
        block = [not_empty[next(draws)] for _ in range(min(BLOCK, count - len(sources)))]
        sources.extend(block)
        for number in not_empty:
            totals[number] += block.count(number)

    return sources, drawn


def _draws(weights: Sequence[float], count: int) -> Iterator[int]:
    """The source drawn at each of the places 0 .. count - 1."""
    drawn = [0.0] * len(weights)
    for place in range(count):
        behind = max(place, 1)
        errors = [weight * behind - done for weight, done in zip(weights, drawn, strict=True)]
        source = errors.index(max(errors))
        drawn[source] += 1.0
        yield source
