"""Cuts a parameter table into parts: ranges of the flat buffers, which begin and end between two rows of blocks.

A row of blocks is `height` rows of one parameter, so no chunk is cut. A part has the elements `start` to `stop` of the whole
buffers and the chunks `first_chunk` to `last_chunk`, and a table of its own in which a parameter, or what it has of it, is a
tensor [row_blocks, height, columns]. Chunks and buffers have the order of the whole table, so a part's are the whole's without
what comes before.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from psyche_optim_distro.chunks.layout import Group, Layout, Parameter, build_layout


@dataclass(frozen=True, slots=True)
class Slice:
    """What a part has of one parameter: `parameter.view(-1)[first:last]`, viewed as `shape`."""

    name: str
    first: int
    last: int
    shape: tuple[int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class PartTable:
    """One part. slices: what it has of each parameter. layout: its own table, in which chunk 0 is `first_chunk` of the whole."""

    start: int
    stop: int
    first_chunk: int
    last_chunk: int
    slices: tuple[Slice, ...]
    layout: Layout


def part_tables(shapes: Mapping[str, Sequence[int]], *, chunk: int, topk: int, parts: int) -> tuple[PartTable, ...]:
    """Cut a model's table into at most `parts` parts of about the same number of elements, in memory order.

    There are fewer if there are fewer rows of blocks, and none for a model without elements. shapes, chunk, topk: as for
    `build_layout`.
    """
    whole = build_layout(shapes, chunk=chunk, topk=topk)
    edges = [0]
    for group in whole.groups:
        row = group.height * group.columns
        edges.extend(range(group.start + row, group.stop + 1, row))
    count = min(parts, len(edges) - 1)
    if count == 0:
        return ()

    bounds = [0]
    for number in range(1, count):
        ideal = whole.total * number / count
        at = bisect.bisect_left(edges, ideal)
        if at and ideal - edges[at - 1] < edges[at] - ideal:
            at -= 1
        lowest = edges.index(bounds[-1]) + 1
        bounds.append(edges[min(max(at, lowest), len(edges) - 1 - (count - number))])
    bounds.append(whole.total)
    return tuple(_part(whole, start, stop, chunk=chunk, topk=topk) for start, stop in itertools.pairwise(bounds))


def _part(whole: Layout, start: int, stop: int, *, chunk: int, topk: int) -> PartTable:
    slices = []
    for entry in sorted(whole.parameters, key=lambda entry: entry.start):
        first, last = max(entry.start, start), min(entry.stop, stop)
        if first < last:
            group = _group_of(whole, entry)
            shape = ((last - first) // (group.height * group.columns), group.height, group.columns)
            slices.append(Slice(entry.name, first - entry.start, last - entry.start, shape))
    layout = build_layout({piece.name: piece.shape for piece in slices}, chunk=chunk, topk=topk)
    chunks = int(layout.chunk_class.size)
    first_chunk = _chunks_before(whole, start)
    return PartTable(start, stop, first_chunk, first_chunk + chunks, tuple(slices), replace(layout, sides=whole.sides))


def _group_of(layout: Layout, entry: Parameter) -> Group:
    return next(group for group in layout.groups if group.start <= entry.start < entry.stop <= group.stop)


def _chunks_before(whole: Layout, start: int) -> int:
    sizes = np.array([group.chunk_count for group in whole.groups if group.stop <= start], dtype=np.int64)
    inside = [(start - group.start) // (group.height * group.width) for group in whole.groups if group.start < start < group.stop]
    return int(sizes.sum()) + sum(inside)
