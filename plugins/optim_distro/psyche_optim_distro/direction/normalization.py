"""Scales a sender's values in each chunk to the root mean square of votes, so that one sender has the weight of one voter.

The direction of a weight depends on the coefficients of its own chunk alone, so weights are normalised per sender and chunk. The
values keep their proportions and get the root mean square 1: n values have the L2 norm of n votes of ±1. Honest members, whose
values have similar norms, lose almost nothing. A sender gains nothing from larger values, nor from one value that is much larger
than its others.

All arithmetic is in integers, so the result is equal on every replica:

1. Values times a power of two of their chunk, to magnitude <= 2**15, are rounded to integers q, half to even.
2. r is the root mean square of q in units of 2**-8, rounded down.
3. The result is UNIT q / r, rounded half away from zero.

With n <= 65,535 values in a chunk no intermediate exceeds 2**62 and no result 2**21, so sums of 256 results fit into int32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from psyche_optim_distro.chunks.layout import IntArray
from psyche_optim_distro.payload.top_k import Selection

UNIT_BITS = 12
UNIT = 1 << UNIT_BITS
"""The integer that represents 1: the magnitude of a vote, and the root mean square of a sender's values in a chunk."""

_VALUE_BITS = 15
_ROOT_BITS = 8


def normalize_values(selection: Selection) -> NDArray[np.int32]:
    """Return the normalised values of one payload in units of 1 / UNIT, int32 [n].

    In each chunk the root mean square is UNIT to within a 16,000th part, apart from the rounding of each value.
    """
    values = selection.values.astype(np.float64)
    if not values.size:
        return np.zeros(0, np.int32)

    starts = np.flatnonzero(np.diff(selection.chunks, prepend=-1))
    counts = np.diff(starts, append=values.size)
    _, exponents = np.frexp(np.maximum.reduceat(np.abs(values), starts))
    whole = np.rint(np.ldexp(values, np.repeat(_VALUE_BITS - exponents, counts))).astype(np.int64)
    squares = np.add.reduceat(whole * whole, starts)
    roots = np.repeat(_integer_root((squares << 2 * _ROOT_BITS) // counts), counts)
    sizes = ((np.abs(whole) << UNIT_BITS + _ROOT_BITS + 1) + roots) // (2 * roots)
    amounts: NDArray[np.int32] = (np.sign(whole) * sizes).astype(np.int32)
    return amounts


def _integer_root(squares: IntArray) -> IntArray:
    """Return floor(sqrt(squares)) for 0 <= squares < 2**62, independent of how a platform rounds its square root."""
    roots = np.sqrt(squares.astype(np.float64)).astype(np.int64)
    roots -= roots * roots > squares
    roots += (roots + 1) * (roots + 1) <= squares
    return roots
