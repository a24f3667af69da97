"""The payload: what goes in comes out, sizes, and which bytes are refused, each with one sentence."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.errors import PayloadRejected
from psyche_optim_sparseloco import codec
from psyche_optim_sparseloco.bit_packing import pack_integers
from psyche_optim_sparseloco.layout import IntArray, Layout, build_layout
from psyche_optim_sparseloco.quantizer import LARGEST_CODE, Quantized
from psyche_optim_sparseloco.settings import SparseLoCoSettings

SHAPES = {"a": (3, 50), "b": (64,), "c": (), "d": (2, 3, 40), "e": (0, 5)}
SETTINGS = SparseLoCoSettings(topk=6, chunk_size=64, inner_steps=2)
LAYOUT = build_layout(SHAPES, SETTINGS)
HEADER = 27


def drawn(layout: Layout, rng: np.random.Generator, *, full: bool) -> tuple[IntArray, IntArray, Quantized]:
    """A random update."""
    counts = layout.quotas if full else rng.integers(0, layout.quotas + 1)
    rows = [
        np.sort(rng.choice(size, count, replace=False)) + start
        for start, size, count in zip(layout.starts, layout.sizes, counts, strict=True)
    ]
    positions = np.concatenate(rows).astype(np.int64)
    codes = np.sort(rng.integers(0, LARGEST_CODE + 1, (int((counts > 0).sum()), 2)), axis=1).astype(np.uint8)
    flags = rng.integers(0, 2, (2, positions.size)).astype(np.bool_)
    return positions, counts, Quantized(codes, flags[0], flags[1])


@given(seed=st.integers(0, 2**32), full=st.booleans(), topk=st.integers(1, 90), chunk=st.integers(1, 200))
@settings(max_examples=200, deadline=None)
def test_what_is_encoded_is_decoded_and_fits(seed: int, full: bool, topk: int, chunk: int) -> None:
    layout = build_layout(SHAPES, SparseLoCoSettings(topk=min(topk, chunk), chunk_size=chunk))
    positions, counts, values = drawn(layout, np.random.default_rng(seed), full=full)
    payload = codec.encode(layout, positions, counts, values)
    assert len(payload) <= codec.max_payload_bytes(layout)
    update = codec.decode(layout, payload)
    assert update.positions.tolist() == positions.tolist()
    assert update.amounts.tolist() == values.amounts(counts[counts > 0]).tolist()


def test_the_table_cuts_each_parameter_into_chunks_of_its_own() -> None:
    assert LAYOUT.starts.tolist() == [0, 64, 128, 150, 214, 215, 279, 343, 407]
    assert LAYOUT.sizes.tolist() == [64, 64, 22, 64, 1, 64, 64, 64, 48]
    assert int(LAYOUT.sizes.sum()) == LAYOUT.total == 150 + 64 + 1 + 240
    assert LAYOUT.quotas.max() == 6
    assert LAYOUT.quotas[LAYOUT.sizes == 1].tolist() == [1]


@pytest.mark.parametrize(
    "changed",
    [{"topk": 5}, {"chunk_size": 63}, {"inner_steps": 3}, {"betas": (0.9, 0.99)}],
    ids=lambda changed: next(iter(changed)),
)
def test_a_payload_of_other_settings_is_refused(changed: dict[str, object]) -> None:
    other = build_layout(SHAPES, SETTINGS.model_copy(update=changed))
    payload = codec.encode(LAYOUT, *drawn(LAYOUT, np.random.default_rng(1), full=True))
    with pytest.raises(PayloadRejected, match=r"other parameters or settings|over the"):
        codec.decode(other, payload)


def spoiled(payload: bytes, at: int, value: bytes) -> bytes:
    return payload[:at] + value + payload[at + len(value) :]


FULL = codec.encode(LAYOUT, *drawn(LAYOUT, np.random.default_rng(1), full=True))
SOME = codec.encode(LAYOUT, *drawn(LAYOUT, np.random.default_rng(2), full=False))
TABLE_BYTES = (LAYOUT.quotas.size * 3 + 7) // 8


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        (b"", "ends early"),
        (FULL[:-1], "ends early"),
        (FULL + b"\0", "1 bytes follow"),
        (FULL + bytes(10_000), "over the"),
        (spoiled(FULL, 0, b"DsTO"), "expected a SparseLoCo payload of version 1"),
        (spoiled(FULL, 4, b"\2"), "version 2"),
        (spoiled(FULL, 5, b"\xee"), "other parameters or settings"),
        (spoiled(FULL, 21, b"\2"), "counts form 2"),
        (spoiled(FULL, 22, b"\x09"), "Rice parameter 9"),
        (spoiled(FULL, 23, struct.pack("<I", 2**32 - 1)), "ends early"),
        (spoiled(FULL, HEADER, bytes((LARGEST_CODE + 1, LARGEST_CODE + 1))), "level codes"),
        (spoiled(FULL, HEADER, b"\5\4"), "lower one first"),
        (spoiled(SOME, HEADER, b"\xff" * TABLE_BYTES), "quota|padding"),
        (spoiled(SOME, HEADER, pack_integers(LAYOUT.quotas, 3)), "fewer somewhere"),
    ],
)  # fmt: skip
def test_bad_bytes_are_refused_in_one_sentence(payload: bytes, sentence: str) -> None:
    with pytest.raises(PayloadRejected, match=sentence) as caught:
        codec.decode(LAYOUT, payload)
    assert "\n" not in str(caught.value)


def test_a_position_outside_its_chunk_is_refused() -> None:
    """A lone element of the last chunk, so that nothing else can be wrong."""
    layout = build_layout({"a": (10,)}, SparseLoCoSettings(topk=1, chunk_size=16))
    one = Quantized(np.array([[9, 9]], dtype=np.uint8), np.zeros(1, np.bool_), np.zeros(1, np.bool_))
    good = codec.encode(layout, np.array([9]), np.array([1]), one)
    assert codec.decode(layout, good).positions.tolist() == [9]
    beyond = build_layout({"a": (16,)}, SparseLoCoSettings(topk=1, chunk_size=16))
    bad = codec.encode(beyond, np.array([10]), np.array([1]), one).replace(beyond.fingerprint, layout.fingerprint)
    with pytest.raises(PayloadRejected, match="outside its chunk"):
        codec.decode(layout, bad)


@given(data=st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_any_bytes_after_a_good_header_are_an_update_or_refused(data: bytes) -> None:
    try:
        update = codec.decode(LAYOUT, FULL[:21] + data)
    except PayloadRejected:
        return
    assert bool((np.diff(update.positions) > 0).all())
    assert bool((update.positions < LAYOUT.total).all())
