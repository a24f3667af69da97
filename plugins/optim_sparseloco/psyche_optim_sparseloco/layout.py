"""The parameter table: where each parameter lies in a flat buffer, and how it is cut into chunks.

Parameters follow each other in ascending order of name. Each is cut into chunks of `chunk_size` consecutive elements; what
remains is a shorter chunk. Every member computes the same table from names, shapes and settings; payloads carry its fingerprint.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from psyche_optim_sparseloco.settings import SparseLoCoSettings

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. start, stop: its elements in the flat buffer. first_chunk: number of its first chunk."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    first_chunk: int


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The table. total: elements of all parameters.

    starts, sizes, quotas: int64 [chunks], each chunk's first element, its elements, and how many of them it may send.
    fingerprint: 16 bytes.
    """

    parameters: tuple[Parameter, ...]
    total: int
    chunk_size: int
    topk: int
    starts: IntArray
    sizes: IntArray
    quotas: IntArray
    fingerprint: bytes


def build_layout(shapes: Mapping[str, Sequence[int]], settings: SparseLoCoSettings) -> Layout:
    """Build the table of parameters with these shapes."""
    parameters: list[Parameter] = []
    starts: list[int] = []
    sizes: list[int] = []
    start = 0
    for name in sorted(shapes):
        shape = tuple(int(side) for side in shapes[name])
        stop = start + math.prod(shape)
        parameters.append(Parameter(name, shape, start, stop, len(starts)))
        for first in range(start, stop, settings.chunk_size):
            starts.append(first)
            sizes.append(min(settings.chunk_size, stop - first))
        start = stop
    every = np.array(sizes, dtype=np.int64)
    text = "".join(f"{parameter.name} {parameter.shape}\n" for parameter in parameters)
    text += f"chunk {settings.chunk_size} top {settings.topk} steps {settings.inner_steps} betas {settings.betas!r}"
    return Layout(
        tuple(parameters),
        start,
        settings.chunk_size,
        settings.topk,
        np.array(starts, dtype=np.int64),
        every,
        np.minimum(every, settings.topk),
        hashlib.sha256(text.encode()).digest()[:16],
    )
