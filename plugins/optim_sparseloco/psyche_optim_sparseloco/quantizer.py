"""Two bits a value: a sign, and which of its chunk's two levels is its magnitude.

Magnitudes are whole numbers of units, with UNIT units in `SparseLoCoSettings.limit`. Levels lie on a logarithmic scale, 16 to
the octave over 12 octaves, so that a byte says which. All members add the same integers: 256 values of at most 2**16 units fit
into int32, and their mean, rounded to a whole number, into float32.

The sender splits a chunk's values at their mean magnitude, takes the means of both halves as levels, and rounds each value to the
nearer level. What that leaves out stays in its error feedback.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from psyche_optim_sparseloco.layout import IntArray

UNIT_BITS = 16
UNIT = 1 << UNIT_BITS
OCTAVES = 12
STEPS_PER_OCTAVE = 16
LARGEST_CODE = OCTAVES * STEPS_PER_OCTAVE


def _level(code: int) -> int:
    """round(2**(UNIT_BITS - OCTAVES + code / 16)), by integers alone: four square roots are a sixteenth root."""
    root = 1 << STEPS_PER_OCTAVE * (UNIT_BITS - OCTAVES + 1) + code
    for _ in range(4):
        root = math.isqrt(root)
    return (root + 1) // 2


LEVELS: NDArray[np.int32] = np.array([_level(code) for code in range(LARGEST_CODE + 1)], dtype=np.int32)
"""Magnitude in units by code: 16 to 65,536, ascending."""

SMALLEST_SENT = float(LEVELS[0]) / 2
"""Values under this many units are not sent: no level is near. They stay in the error feedback."""

_BETWEEN = (LEVELS[1:] + LEVELS[:-1]) / 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """Values of the chunks that send any, in order.

    codes: uint8 [chunks, 2], code of the lower and of the upper level. negative, upper: bool [n], of each value.
    """

    codes: NDArray[np.uint8]
    negative: NDArray[np.bool_]
    upper: NDArray[np.bool_]

    def amounts(self, counts: IntArray) -> NDArray[np.int32]:
        """The values in units, int32 [n]. counts: values of each chunk, [chunks]."""
        levels = np.repeat(LEVELS[self.codes], counts, axis=0)
        magnitudes = np.where(self.upper, levels[:, 1], levels[:, 0])
        return np.where(self.negative, -magnitudes, magnitudes).astype(np.int32)


def quantize(values: NDArray[np.float64], counts: IntArray) -> Quantized:
    """Quantize values in units, [n]. counts: how many each chunk has, [chunks], each at least 1."""
    magnitudes = np.abs(values)
    starts = np.cumsum(counts) - counts
    mean = _mean(magnitudes, starts, counts) * (1 + 1e-9)  # so that equal values are not above it, however it is rounded
    upper = magnitudes > np.repeat(mean, counts)
    above = np.add.reduceat(upper.astype(np.int64), starts) if values.size else counts
    low = _mean(np.where(upper, 0.0, magnitudes), starts, counts - above)
    high = np.where(above > 0, _mean(np.where(upper, magnitudes, 0.0), starts, np.maximum(above, 1)), low)
    codes = np.searchsorted(_BETWEEN, np.stack([low, high], axis=1)).astype(np.uint8)
    levels = np.repeat(LEVELS[codes].astype(np.float64), counts, axis=0)
    nearer = np.abs(magnitudes - levels[:, 1]) < np.abs(magnitudes - levels[:, 0])
    return Quantized(codes, np.signbit(values), nearer)


def _mean(values: NDArray[np.float64], starts: IntArray, counts: IntArray) -> NDArray[np.float64]:
    """Mean of each chunk's values. counts may be fewer than the chunk has, where the others are zero."""
    if not values.size:
        return np.zeros(0)

    means: NDArray[np.float64] = np.add.reduceat(values, starts) / counts
    return means
