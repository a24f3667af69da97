"""The parameter table: where every parameter, chunk and coefficient lives. Everything a peer says is checked against it.

All float32 state (masters, delta, coefficients) is one flat buffer each, with the same layout. Parameters that are cut alike
(same height, width, columns) stand together as one *group*, so that work is done per group and never per parameter or chunk.
A group is worked off in *tiles* that fit into a processor's cache. Chunks are numbered as they lie in memory, so the chunks of a
tile are consecutive; that is also their order in the payload. A *class* is all chunks of one size and top-k.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from psyche_optim_distro.transform import chunk_size

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: its part `flat[start : start + prod(shape)]` of every flat buffer."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        """End of its part."""
        return self.start + math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters cut alike, or a tile of them: `flat[start:stop]` seen as [row_blocks, height, columns].

    Its blocks are height x width. topk: coefficients sent per chunk. first_chunk: number of its first chunk; the others follow in
    block order.
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
        """[row_blocks, columns / width, height, width]: the shape where its blocks stand one after the other."""
        return self.row_blocks, self.columns // self.width, self.height, self.width

    @property
    def chunk_count(self) -> int:
        """Its chunks are `first_chunk` and the next ones, so many together."""
        return self.row_blocks * (self.columns // self.width)

    @property
    def chunks(self) -> IntArray:
        """int64 [chunk_count], the chunk numbers in block order."""
        return np.arange(self.first_chunk, self.first_chunk + self.chunk_count, dtype=np.int64)

    def tiles(self, limit: int) -> Iterator[Group]:
        """The same in parts of at most `limit` elements, or of one row of blocks where that is longer."""
        row = self.height * self.columns
        rows = max(1, limit // row)
        for first in range(0, self.row_blocks, rows):
            count = min(rows, self.row_blocks - first)
            chunk = self.first_chunk + first * (self.columns // self.width)
            yield replace(self, start=self.start + first * row, row_blocks=count, first_chunk=chunk)


@dataclass(frozen=True, slots=True, eq=False)
class ChunkClass:
    """All chunks of `size` elements that send up to `topk` coefficients. chunks: int64, ascending chunk numbers."""

    size: int
    topk: int
    chunks: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The whole table. total: elements of a flat buffer. parameters: ascending by name.

    chunk_base, chunk_width, chunk_columns: int64 [number of chunks]; see `slots`. chunk_class, chunk_rank: int64 [number of
    chunks], the chunk's class and its place in there. fingerprint: 16 bytes over names, shapes,
    chunk target and top-k; payloads carry it, so that another model's payload is refused by its header.
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

    def slots(self, chunks: IntArray, indices: IntArray) -> IntArray:
        """Flat positions of coefficients: `indices` count row by row inside their chunk. Arguments int64 of equal length."""
        widths = self.chunk_width[chunks]
        slots: IntArray = self.chunk_base[chunks] + indices // widths * self.chunk_columns[chunks] + indices % widths
        return slots


@dataclass(frozen=True, slots=True)
class _Cut:
    """How one parameter is cut."""

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
    """The table of a model. shapes: by full parameter name; chunk, topk: the settings of those names."""
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
    )


def _cut(name: str, shape: tuple[int, ...], target: int) -> _Cut:
    """Cut one parameter: leading dimensions of three and more are batches, a vector is one row."""
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
