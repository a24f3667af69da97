"""Decoded payloads in a form that every backend takes, and that can be cut and sent to another process.

All arrays are in the order of classes, and in a class in the order of chunks, as payloads are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyche_optim_distro.chunks.layout import IntArray, Layout
from psyche_optim_distro.payload.top_k import Selection


@dataclass(frozen=True, slots=True, eq=False)
class Coefficients:
    """The coefficients of one payload, or a part's of them.

    places: uint16 or uint32 [n], 2 * (position in the chunk) + (1 for a negative one, else 0). counts: uint16 [chunks], how many
    each chunk has. values: float32 [n]; None in a payload of signs.
    """

    places: NDArray[np.unsignedinteger[Any]]
    counts: NDArray[np.uint16]
    values: NDArray[np.float32] | None = None

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.places.nbytes + self.counts.nbytes + (0 if self.values is None else self.values.nbytes)


def as_coefficients(layout: Layout, selection: Selection, *, signs: bool) -> Coefficients:
    """Return a selection in this form. signs: whether values are +1 or -1."""
    largest = max((entry.size for entry in layout.classes), default=1)
    kind: type[np.unsignedinteger[Any]] = np.uint16 if 2 * largest < 2**16 else np.uint32
    places = (2 * selection.indices.astype(np.int64) + np.signbit(selection.values)).astype(kind)
    per_chunk = np.bincount(selection.chunks, minlength=layout.chunk_class.size)
    return Coefficients(places, per_chunk[_chunks_in_order(layout)].astype(np.uint16), None if signs else selection.values)


def as_selection(layout: Layout, coefficients: Coefficients) -> Selection:
    """Return the inverse of `as_coefficients`. layout: of the same table, or of the same part."""
    chunks = np.repeat(_chunks_in_order(layout), coefficients.counts.astype(np.int64))
    indices = (coefficients.places >> 1).astype(np.int64)
    if coefficients.values is not None:
        return Selection(chunks, indices, coefficients.values)
    return Selection(chunks, indices, np.where(coefficients.places & 1, np.float32(-1), np.float32(1)))


def _chunks_in_order(layout: Layout) -> IntArray:
    return np.concatenate([np.zeros(0, np.int64), *(entry.chunks for entry in layout.classes)])
