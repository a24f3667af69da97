"""The parameter table: the position of every parameter, chunk and coefficient. Payloads are checked against it.

Masters, delta and coefficients are one flat float32 buffer each, with the same layout.

- *Group*: parameters that are cut in the same way (same height, width, columns). They are contiguous, so work is done per group
  and not per parameter or chunk.
- *Tile*: a part of a group that fits into a processor's cache. Groups are processed tile by tile.
- *Chunk*: one DCT block. Chunks are numbered in memory order, so the chunks of a tile are consecutive.
- *Class*: all chunks of one size and top-k. Payloads list chunks by class and number.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from psyche_optim_distro.chunks.transform import chunk_size

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. It takes `flat[start : start + prod(shape)]` of every flat buffer."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        """End of its part."""
        return self.start + math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters that are cut in the same way, or a tile of them: `flat[start:stop]` viewed as [row_blocks, height, columns].

    Its blocks are height x width elements. topk: largest number of coefficients sent per chunk. first_chunk: number of the first
    chunk; the others follow in block order.
    """

    start: int
    row_blocks: int
    height: int
    columns: int
    width: int
    topk: int
    first_chunk: int

    @property
    def stop(self) -> int:
        """End of its part."""
        return self.start + self.row_blocks * self.height * self.columns

    @property
    def shape(self) -> tuple[int, int, int]:
        """[row_blocks, height, columns]."""
        return self.row_blocks, self.height, self.columns

    @property
    def blocks(self) -> tuple[int, int, int, int]:
        """[row_blocks, columns / width, height, width]: the shape in blocked order, where each block is contiguous."""
        return self.row_blocks, self.columns // self.width, self.height, self.width

    @property
    def chunk_count(self) -> int:
        """Number of chunks."""
        return self.row_blocks * (self.columns // self.width)

    @property
    def chunks(self) -> IntArray:
        """Chunk numbers in block order, int64 [chunk_count]."""
        return np.arange(self.first_chunk, self.first_chunk + self.chunk_count, dtype=np.int64)

    def tiles(self, limit: int) -> Iterator[Group]:
        """Yield tiles of at most `limit` elements, or of one row of blocks if that is longer."""
        row = self.height * self.columns
        rows = max(1, limit // row)
        for first in range(0, self.row_blocks, rows):
            count = min(rows, self.row_blocks - first)
            chunk = self.first_chunk + first * (self.columns // self.width)
            yield replace(self, start=self.start + first * row, row_blocks=count, first_chunk=chunk)


@dataclass(frozen=True, slots=True, eq=False)
class ChunkClass:
    """All chunks of `size` elements that send up to `topk` coefficients. chunks: chunk numbers, int64, ascending."""

    size: int
    topk: int
    chunks: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The whole table. parameters: ascending by name. total: elements of a flat buffer.

    chunk_base, chunk_width, chunk_columns: int64 [chunks]; see `slots`. chunk_class, chunk_rank: int64 [chunks], class of each
    chunk and its place in that class. fingerprint: 16-byte hash of names, shapes, chunk target and top-k. Payloads carry it in
    their header, so that another model's payload is rejected.
    """

    parameters: tuple[Parameter, ...]
    groups: tuple[Group, ...]
    classes: tuple[ChunkClass, ...]
    total: int
    chunk_base: IntArray
    chunk_width: IntArray
    chunk_columns: IntArray
    chunk_class: IntArray
    chunk_rank: IntArray
    fingerprint: bytes
    sides: tuple[int, ...]

    def slots(self, chunks: IntArray, indices: IntArray) -> IntArray:
        """Return positions of coefficients in a flat buffer, int64 [n].

        chunks, indices: int64 [n]; an index counts row by row.
        """
        widths = self.chunk_width[chunks]
        slots: IntArray = self.chunk_base[chunks] + indices // widths * self.chunk_columns[chunks] + indices % widths
        return slots


@dataclass(frozen=True, slots=True)
class _Cut:
    """The chunks of one parameter."""

    name: str
    shape: tuple[int, ...]
    row_blocks: int
    height: int
    columns: int
    width: int

    @property
    def chunk_count(self) -> int:
        return self.row_blocks * (self.columns // self.width) if self.width else 0


def build_layout(shapes: Mapping[str, Sequence[int]], *, chunk: int, topk: int) -> Layout:
    """Build the table of a model.

    shapes: by full parameter name. chunk: target chunk side in elements. topk: coefficients sent per chunk.
    """
    cuts = [_cut(name, tuple(int(size) for size in shapes[name]), chunk) for name in sorted(shapes)]
    chunk_count = sum(cut.chunk_count for cut in cuts)
    base = np.zeros(chunk_count, dtype=np.int64)
    width = np.ones(chunk_count, dtype=np.int64)
    columns = np.ones(chunk_count, dtype=np.int64)
    groups: list[Group] = []
    parameters: list[Parameter] = []
    start = first_chunk = 0
    for height_width_columns in sorted({(cut.height, cut.width, cut.columns) for cut in cuts}):
        members = [cut for cut in cuts if (cut.height, cut.width, cut.columns) == height_width_columns]
        group_start, group_chunk = start, first_chunk
        for cut in members:
            parameters.append(Parameter(cut.name, cut.shape, start))
            own = slice(first_chunk, first_chunk + cut.chunk_count)
            column_blocks = max(1, cut.columns // max(1, cut.width))
            block = np.arange(cut.chunk_count, dtype=np.int64)
            block_row, block_column = block // column_blocks, block % column_blocks
            base[own] = start + block_row * cut.height * cut.columns + block_column * cut.width
            width[own] = cut.width
            columns[own] = cut.columns
            start += math.prod(cut.shape)
            first_chunk += cut.chunk_count

        if start > group_start:
            groups.append(_group(members, group_start, group_chunk, topk))

    parameters.sort(key=lambda parameter: parameter.name)
    classes = _classes(groups)
    chunk_class = np.zeros(chunk_count, dtype=np.int64)
    chunk_rank = np.zeros(chunk_count, dtype=np.int64)
    for number, entry in enumerate(classes):
        chunk_class[entry.chunks] = number
        chunk_rank[entry.chunks] = np.arange(entry.chunks.size)

    return Layout(
        parameters=tuple(parameters),
        groups=tuple(groups),
        classes=classes,
        total=start,
        chunk_base=base,
        chunk_width=width,
        chunk_columns=columns,
        chunk_class=chunk_class,
        chunk_rank=chunk_rank,
        fingerprint=_fingerprint(cuts, chunk, topk),
        sides=tuple(sorted({side for group in groups for side in (group.height, group.width)})),
    )


def _cut(name: str, shape: tuple[int, ...], target: int) -> _Cut:
    """Cut one parameter. Dimensions before the last two are batches; a vector is one row."""
    columns = shape[-1] if shape else 1
    rows = shape[-2] if len(shape) > 1 else 1
    batches = math.prod(shape[:-2])
    height, width = chunk_size(rows, target), chunk_size(columns, target)
    row_blocks = batches * (rows // height) if height else 0
    return _Cut(name, shape, row_blocks, height, columns, width)


def _group(members: Sequence[_Cut], start: int, first_chunk: int, topk: int) -> Group:
    first = members[0]
    return Group(
        start=start,
        row_blocks=sum(cut.row_blocks for cut in members),
        height=first.height,
        columns=first.columns,
        width=first.width,
        topk=min(topk, first.height * first.width),
        first_chunk=first_chunk,
    )


def _classes(groups: Sequence[Group]) -> tuple[ChunkClass, ...]:
    classes = []
    for size, topk in sorted({(group.height * group.width, group.topk) for group in groups}):
        numbers = [group.chunks for group in groups if group.height * group.width == size]
        classes.append(ChunkClass(size, topk, np.concatenate(numbers)))

    return tuple(classes)


def _fingerprint(cuts: Sequence[_Cut], chunk: int, topk: int) -> bytes:
    digest = hashlib.sha256(f"psyche distro table 2\0{chunk}\0{topk}\0".encode())
    for cut in cuts:
        digest.update(f"{cut.name}\0{','.join(map(str, cut.shape))}\0".encode())

    return digest.digest()[:16]
