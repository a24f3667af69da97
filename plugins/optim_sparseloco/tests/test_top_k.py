"""Which values are sent: the largest of each chunk, however it is searched."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from psyche_optim_sparseloco.layout import build_layout
from psyche_optim_sparseloco.settings import SparseLoCoSettings
from psyche_optim_sparseloco.top_k import select


@pytest.mark.parametrize(("chunk_size", "topk"), [(64, 4), (32, 4), (128, 1), (96, 4), (100, 7), (4096, 64)])
@given(seed=st.integers(0, 2**32 - 1), equal=st.booleans())
def test_no_value_that_is_left_out_is_larger(chunk_size: int, topk: int, seed: int, equal: bool) -> None:
    """Chunks with groups of candidates and without, short last chunks, values that are often equal, and zeros."""
    shapes = {"empty": (0,), "long": (5, chunk_size), "longer": (chunk_size * 3 + 17,), "short": (9,)}
    layout = build_layout(shapes, SparseLoCoSettings(chunk_size=chunk_size, topk=topk))
    values = torch.randn(layout.total, generator=torch.Generator().manual_seed(seed))
    if equal:
        values = values.round()
    positions, counts = select(values, layout, smallest=0.01)
    assert len(set(positions.tolist())) == len(positions)
    assert positions.tolist() == sorted(positions)
    first = 0
    for start, size, quota, count in zip(layout.starts, layout.sizes, layout.quotas, counts, strict=True):
        chunk = values[start : start + size].abs()
        own = torch.from_numpy(positions[first : first + count]) - int(start)
        first += count
        assert bool((own >= 0).all())
        assert bool((own < size).all())
        wanted = chunk.sort(descending=True).values[:quota]
        torch.testing.assert_close(chunk[own].sort(descending=True).values, wanted[wanted >= 0.01], rtol=0, atol=0)
    assert first == len(positions)
