"""The payload: round trips, the size against the entropy bound, and refusal of everything that is not one."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.errors import PayloadRejected
from psyche_optim_distro import codec
from psyche_optim_distro.bits import pack_integers, pack_unary, unpack_integers, unpack_unary
from psyche_optim_distro.layout import Layout, build_layout
from psyche_optim_distro.selection import Selection, concatenate

HEADER_BYTES = 22


def random_selection(layout: Layout, generator: np.random.Generator, *, fill: float) -> Selection:
    """About `fill` of the coefficients each chunk may send, at uniform places."""
    parts = []
    for entry in layout.classes:
        for chunk in entry.chunks:
            count = int(generator.binomial(entry.keep, fill))
            indices = np.sort(generator.permutation(entry.size)[:count])
            values = generator.standard_normal(count).astype(np.float32)
            parts.append(Selection(np.full(count, chunk), indices, np.where(values == 0, np.float32(1), values)))

    return concatenate(parts)


shapes = st.dictionaries(
    st.text("abc.", min_size=1, max_size=4), st.lists(st.integers(1, 40), max_size=3).map(tuple), min_size=1, max_size=5
)


@given(
    shapes=shapes,
    chunk=st.integers(1, 16),
    topk=st.integers(1, 300),
    fill=st.sampled_from([0.0, 0.3, 1.0]),
    one_bit=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=80)
def test_round_trip(shapes: dict[str, tuple[int, ...]], chunk: int, topk: int, fill: float, one_bit: bool, seed: int) -> None:
    layout = build_layout(shapes, chunk=chunk, topk=topk)
    sent = random_selection(layout, np.random.default_rng(seed), fill=fill)
    payload = codec.encode(layout, sent, one_bit=one_bit)
    got = codec.decode(layout, payload, one_bit=one_bit)
    np.testing.assert_array_equal(got.chunks, sent.chunks)
    np.testing.assert_array_equal(got.indices, sent.indices)
    np.testing.assert_array_equal(got.values, np.sign(sent.values) if one_bit else sent.values)
    assert got.values.dtype == np.float32
    assert len(payload) <= codec.max_payload_bytes(layout, one_bit=one_bit)
    assert codec.encode(layout, got, one_bit=one_bit) == payload


@given(st.lists(st.integers(0, 2**13 - 1)), st.integers(13, 20))
def test_packed_integers_round_trip(values: list[int], width: int) -> None:
    array = np.array(values, dtype=np.int64)
    assert unpack_integers(pack_integers(array, width), array.size, width).tolist() == values


@given(st.lists(st.integers(0, 300)))
def test_unary_round_trip(values: list[int]) -> None:
    array = np.array(values, dtype=np.int64)
    assert unpack_unary(pack_unary(array), array.size).tolist() == values


def test_packed_layout_is_fixed() -> None:
    assert pack_integers(np.array([1, 2, 3, 0, 7]), 3) == bytes([0b11010001, 0b01110000])
    assert pack_unary(np.array([0, 2, 1])) == bytes([0b00101001])


@pytest.mark.parametrize(("topk", "slack"), [(1, 1.05), (8, 1.04), (64, 1.04)])
def test_size_is_near_the_entropy_bound(topk: int, slack: float) -> None:
    """1 048 576 weights in 64 x 64 chunks. Bound: log2 C(4096, k) for the places and k bits for the signs, per chunk."""
    layout = build_layout({"w": (1024, 1024)}, chunk=64, topk=topk)
    payload = codec.encode(layout, random_selection(layout, np.random.default_rng(0), fill=1.0), one_bit=True)
    bound = 256 * (math.log2(math.comb(4096, topk)) + topk) / 8
    assert bound <= len(payload) <= slack * bound + HEADER_BYTES + 6


LAYOUT = build_layout({"a": (32, 32), "norm": (16,)}, chunk=16, topk=4)


@pytest.fixture(params=[True, False], ids=["signs", "values"])
def one_bit(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def payload(one_bit: bool) -> bytes:
    return codec.encode(LAYOUT, random_selection(LAYOUT, np.random.default_rng(1), fill=0.9), one_bit=one_bit)


def test_every_truncation_is_rejected(payload: bytes, one_bit: bool) -> None:
    for length in range(len(payload)):
        with pytest.raises(PayloadRejected):
            codec.decode(LAYOUT, payload[:length], one_bit=one_bit)


def test_every_flipped_bit_is_rejected_or_gives_coefficients_in_range(payload: bytes, one_bit: bool) -> None:
    survivors = 0
    for bit in range(8 * len(payload)):
        bad = bytearray(payload)
        bad[bit // 8] ^= 1 << bit % 8
        try:
            got = codec.decode(LAYOUT, bytes(bad), one_bit=one_bit)
        except PayloadRejected:
            continue

        survivors += 1
        slots = LAYOUT.slots(got.chunks, got.indices)
        assert np.unique(slots).size == slots.size
        assert slots.min() >= 0
        assert slots.max() < LAYOUT.total
        assert np.isfinite(got.values).all()
        assert (got.values != 0).all()
    assert survivors > 0  # a flipped sign is a valid payload


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_bytes_after_a_good_header_are_rejected_or_decoded(tail: bytes) -> None:
    head = codec.encode(LAYOUT, random_selection(LAYOUT, np.random.default_rng(1), fill=0.0), one_bit=True)[:HEADER_BYTES]
    try:
        got = codec.decode(LAYOUT, head + tail, one_bit=True)
    except PayloadRejected:
        return

    assert got.chunks.size <= LAYOUT.chunk_base.size * 4


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -0.0, 65537.0, -1e30])
def test_values_that_are_not_bounded_are_rejected(value: float) -> None:
    selection = random_selection(LAYOUT, np.random.default_rng(1), fill=1.0)
    payload = codec.encode(LAYOUT, selection, one_bit=False)
    codec.decode(LAYOUT, payload, one_bit=False)
    with pytest.raises(PayloadRejected, match="finite"):
        codec.decode(LAYOUT, payload[:-4] + struct.pack("<f", value), one_bit=False)


def test_the_other_value_format_is_rejected(payload: bytes, one_bit: bool) -> None:
    with pytest.raises(PayloadRejected):
        codec.decode(LAYOUT, payload, one_bit=not one_bit)


def test_the_header_names_format_version_and_table(payload: bytes, one_bit: bool) -> None:
    assert payload[:4] == b"DsTO"
    assert payload[4] == 1
    assert payload[5] == (0 if one_bit else 1)
    assert payload[6:22] == LAYOUT.fingerprint
    newer = payload[:4] + b"\x02" + payload[5:]
    with pytest.raises(PayloadRejected, match="version 2"):
        codec.decode(LAYOUT, newer, one_bit=one_bit)


def test_a_full_count_table_is_rejected() -> None:
    """One encoding per selection: counts are left out when every chunk is full."""
    layout = build_layout({"w": (4, 4)}, chunk=4, topk=3)
    full = codec.encode(layout, random_selection(layout, np.random.default_rng(0), fill=1.0), one_bit=True)
    padded = full[:22] + b"\x01" + full[23:28] + b"\x03" + full[28:]
    with pytest.raises(PayloadRejected, match="counts"):
        codec.decode(layout, padded, one_bit=True)


def test_padding_bits_must_be_zero() -> None:
    layout = build_layout({"w": (4, 4)}, chunk=4, topk=3)
    full = codec.encode(layout, random_selection(layout, np.random.default_rng(0), fill=1.0), one_bit=True)
    with pytest.raises(PayloadRejected, match="padding"):
        codec.decode(layout, full[:-1] + bytes([full[-1] | 0x80]), one_bit=True)


def test_a_wasteful_but_readable_encoding_over_the_limit_is_rejected() -> None:
    """Place 4095 in pure unary is 512 bytes where this table never needs more than a few dozen."""
    layout = build_layout({"w": (64, 64)}, chunk=64, topk=1)
    good = codec.encode(layout, Selection(np.array([0]), np.array([4095]), np.ones(1, np.float32)), one_bit=True)
    wasteful = good[:HEADER_BYTES] + struct.pack("<BBI", 0, 0, 512) + bytes(511) + b"\x80" + b"\x00"
    with pytest.raises(PayloadRejected, match="over the"):
        codec.decode(layout, wasteful, one_bit=True)


def test_the_fingerprint_covers_chunk_and_topk() -> None:
    settings_pairs = [(16, 4), (16, 5), (8, 4), (1, 64)]
    prints = {build_layout({"a": (4, 4)}, chunk=chunk, topk=topk).fingerprint for chunk, topk in settings_pairs}
    assert len(prints) == 4
