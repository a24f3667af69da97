"""Cuts decoded payloads among parts, and joins the parts' selections to a payload's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psyche_optim_distro.chunks.layout import Layout
from psyche_optim_distro.division.table import PartTable
from psyche_optim_distro.payload.coefficients import Coefficients
from psyche_optim_distro.payload.top_k import Selection, concatenate


def coefficients_of(part: PartTable, whole: Layout, coefficients: Coefficients) -> Coefficients:
    """Return a part's coefficients. whole: the table that they were decoded with."""
    ends = np.concatenate([[0], np.cumsum(coefficients.counts, dtype=np.int64)])
    begin, chunks, spans = 0, [], []
    for entry in whole.classes:
        first, last = begin + np.searchsorted(entry.chunks, (part.first_chunk, part.last_chunk))
        chunks.append(coefficients.counts[first:last])
        spans.append(slice(int(ends[first]), int(ends[last])))
        begin += entry.chunks.size
    values = coefficients.values
    return Coefficients(
        np.concatenate([coefficients.places[span] for span in spans]),
        np.concatenate(chunks),
        None if values is None else np.concatenate([values[span] for span in spans]),
    )


def joined(whole: Layout, parts: Sequence[PartTable], selections: Sequence[Selection]) -> Selection:
    """Return the whole's selection. selections: of the parts, in their order, with their own numbers of chunks."""
    every = concatenate(
        [
            Selection(selection.chunks + part.first_chunk, selection.indices, selection.values)
            for part, selection in zip(parts, selections, strict=True)
        ]
    )
    order = np.argsort(whole.chunk_class[every.chunks], kind="stable")
    return Selection(every.chunks[order], every.indices[order], every.values[order])
