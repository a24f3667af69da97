"""The payload: round trips, the size against the entropy bound, and refusal of everything that is not one."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.errors import PayloadRejected
from psyche_optim_distro.backends.numba import numba_available
from psyche_optim_distro.chunks.layout import Layout, build_layout
from psyche_optim_distro.payload import codec
from psyche_optim_distro.payload.bit_packing import pack_integers, pack_unary, unary_ends, unpack_integers
from psyche_optim_distro.payload.top_k import Selection, concatenate
from psyche_optim_distro.value_format import ValueFormat

if numba_available():
    from psyche_optim_distro.backends.numba.update import NumbaUpdater
    from psyche_optim_distro.backends.numba.votes import ChunkVotes

HEADER_BYTES = 22


def decode(layout: Layout, payload: bytes, *, values: ValueFormat) -> Selection:
    """The plain decoder; of signs, the compiled one has to read the same or to refuse in the same words."""
    said: list[str | ChunkVotes] = []
    if values is ValueFormat.SIGNS and numba_available():
        try:
            said.append(_compiled(layout).decode(payload))
        except PayloadRejected as refused:
            said.append(str(refused))
    refusal: PayloadRejected | None = None
    try:
        selection = codec.decode(layout, payload, values=values)
    except PayloadRejected as refused:
        refusal = refused
    if refusal is not None:
        assert said in ([], [str(refusal)])
        raise refusal

    for votes in said:
        assert isinstance(votes, ChunkVotes), votes
        assert votes.places.tolist() == (2 * selection.indices + np.signbit(selection.values)).tolist()
        every = np.concatenate([entry.chunks for entry in layout.classes])
        assert np.repeat(every, votes.counts).tolist() == selection.chunks.tolist()
    return selection


def _compiled(layout: Layout) -> NumbaUpdater:
    if layout.fingerprint not in _MOVERS:
        _MOVERS[layout.fingerprint] = NumbaUpdater(layout)
    return _MOVERS[layout.fingerprint]


_MOVERS: dict[bytes, NumbaUpdater] = {}


def random_selection(layout: Layout, generator: np.random.Generator, *, fill: float) -> Selection:
    """About `fill` of the coefficients each chunk may send, at uniform places."""
    parts = []
    for entry in layout.classes:
        counts = generator.binomial(entry.topk, fill, len(entry.chunks))
        shuffled = np.argsort(generator.random((len(entry.chunks), entry.size)), axis=1)
        rows, indices = np.nonzero(shuffled < counts[:, None])
        values = generator.standard_normal(len(rows)).astype(np.float32)
        parts.append(Selection(entry.chunks[rows], indices, np.where(values == 0, np.float32(1), values)))

    return concatenate(parts)


shapes = st.dictionaries(
    st.text("abc.", min_size=1, max_size=4), st.lists(st.integers(1, 40), max_size=3).map(tuple), min_size=1, max_size=5
)


@given(
    shapes=shapes,
    chunk=st.integers(1, 16),
    topk=st.integers(1, 300),
    fill=st.sampled_from([0.0, 0.3, 0.97, 1.0]),
    values=st.sampled_from(ValueFormat),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=80)
def test_round_trip(
    shapes: dict[str, tuple[int, ...]], chunk: int, topk: int, fill: float, values: ValueFormat, seed: int
) -> None:
    layout = build_layout(shapes, chunk=chunk, topk=topk)
    sent = random_selection(layout, np.random.default_rng(seed), fill=fill)
    sent = replace(sent, values=codec.as_sent(sent.values, values))
    payload = codec.encode(layout, sent, values=values)
    got = decode(layout, payload, values=values)
    np.testing.assert_array_equal(got.chunks, sent.chunks)
    np.testing.assert_array_equal(got.indices, sent.indices)
    np.testing.assert_array_equal(got.values, sent.values)
    assert got.values.dtype == np.float32
    assert len(payload) <= codec.max_payload_bytes(layout, values=values)
    assert codec.encode(layout, got, values=values) == payload


@given(st.data(), st.integers(1, 63))
def test_packed_integers_round_trip(data: st.DataObject, width: int) -> None:
    """Of every width: the reader has several ways, by how many bytes a value can reach into."""
    values = data.draw(st.lists(st.integers(0, 2**width - 1)))
    array = np.array(values, dtype=np.int64)
    packed = pack_integers(array, width)
    assert unpack_integers(packed, array.size, width).tolist() == values
    if array.size * width % 8:
        with pytest.raises(PayloadRejected, match="padding"):
            unpack_integers(packed[:-1] + bytes([packed[-1] | 0x80]), array.size, width)


@pytest.mark.parametrize("count", [4095, 4096, 4097, 8192, 9001])
@pytest.mark.parametrize("width", [1, 3, 8, 9, 10, 25, 26, 57, 58, 63])
def test_many_packed_integers_round_trip(count: int, width: int) -> None:
    """More than the places after which the reader's pattern repeats itself."""
    values = np.random.default_rng(count).integers(0, 2**width, count)
    np.testing.assert_array_equal(unpack_integers(pack_integers(values, width), count, width), values)


@given(st.lists(st.integers(0, 300)))
def test_unary_round_trip(values: list[int]) -> None:
    array = np.array(values, dtype=np.int64)
    ends = unary_ends(pack_unary(array), array.size)
    assert (ends - np.arange(array.size)).tolist() == np.cumsum(array).tolist()


def test_packed_layout_is_fixed() -> None:
    assert pack_integers(np.array([1, 2, 3, 0, 7]), 3) == bytes([0b11010001, 0b01110000])
    assert pack_unary(np.array([0, 2, 1])) == bytes([0b00101001])


@pytest.mark.parametrize(("topk", "slack"), [(1, 1.05), (8, 1.04), (64, 1.04)])
def test_size_is_near_the_entropy_bound(topk: int, slack: float) -> None:
    """1 048 576 weights in 64 x 64 chunks. Bound: log2 C(4096, k) for the places and k bits for the signs, per chunk."""
    layout = build_layout({"w": (1024, 1024)}, chunk=64, topk=topk)
    payload = codec.encode(layout, random_selection(layout, np.random.default_rng(0), fill=1.0), values=ValueFormat.SIGNS)
    bound = 256 * (math.log2(math.comb(4096, topk)) + topk) / 8
    assert bound <= len(payload) <= slack * bound + HEADER_BYTES + 6


LAYOUT = build_layout({"a": (32, 32), "norm": (16,)}, chunk=16, topk=4)


@pytest.fixture(params=list(ValueFormat))
def values(request: pytest.FixtureRequest) -> ValueFormat:
    return ValueFormat(request.param)


@pytest.fixture
def payload(values: ValueFormat) -> bytes:
    sent = random_selection(LAYOUT, np.random.default_rng(1), fill=0.9)
    return codec.encode(LAYOUT, replace(sent, values=codec.as_sent(sent.values, values)), values=values)


def test_every_truncation_is_rejected(payload: bytes, values: ValueFormat) -> None:
    for length in range(len(payload)):
        with pytest.raises(PayloadRejected):
            decode(LAYOUT, payload[:length], values=values)


def test_every_flipped_bit_is_rejected_or_gives_coefficients_in_range(payload: bytes, values: ValueFormat) -> None:
    survivors = 0
    for bit in range(8 * len(payload)):
        bad = bytearray(payload)
        bad[bit // 8] ^= 1 << bit % 8
        try:
            got = decode(LAYOUT, bytes(bad), values=values)
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
    head = codec.encode(LAYOUT, random_selection(LAYOUT, np.random.default_rng(1), fill=0.0), values=ValueFormat.SIGNS)[
        :HEADER_BYTES
    ]
    try:
        got = decode(LAYOUT, head + tail, values=ValueFormat.SIGNS)
    except PayloadRejected:
        return

    assert got.chunks.size <= LAYOUT.chunk_base.size * 4


def test_values_are_rounded_to_what_travels() -> None:
    exact = np.array([1.0, 1.00390625, 1.01171875, -3.14159274, 1e30, -1e30, 1e-45, -2e-42], np.float32)
    small = np.float32(codec.MIN_VALUE)
    halves = [1.0, 1.0, 1.015625, -3.140625, 65536.0, -65536.0, small, -small]  # ties go to the even neighbour
    np.testing.assert_array_equal(codec.as_sent(exact, ValueFormat.BFLOAT16), np.array(halves, np.float32))
    np.testing.assert_array_equal(codec.as_sent(exact, ValueFormat.FLOAT32), [*exact[:4], 65536.0, -65536.0, small, -small])
    np.testing.assert_array_equal(codec.as_sent(exact, ValueFormat.SIGNS), np.sign(exact))
    rounded = torch.from_numpy(exact[:4]).bfloat16().float().numpy()
    np.testing.assert_array_equal(codec.as_sent(exact[:4], ValueFormat.BFLOAT16), rounded)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, 65537.0, -1e30])
def test_values_that_are_not_bounded_are_rejected(value: float) -> None:
    selection = random_selection(LAYOUT, np.random.default_rng(1), fill=1.0)
    payload = codec.encode(LAYOUT, selection, values=ValueFormat.FLOAT32)
    decode(LAYOUT, payload, values=ValueFormat.FLOAT32)
    with pytest.raises(PayloadRejected, match="finite"):
        decode(LAYOUT, payload[:-4] + struct.pack("<f", value), values=ValueFormat.FLOAT32)


def test_the_other_value_format_is_rejected(payload: bytes, values: ValueFormat) -> None:
    with pytest.raises(PayloadRejected):
        decode(LAYOUT, payload, values=ValueFormat((values + 1) % len(ValueFormat)))


def test_the_header_names_format_version_and_table(payload: bytes, values: ValueFormat) -> None:
    assert payload[:4] == b"DsTO"
    assert payload[4] == 2
    assert payload[5] == values
    assert payload[6:22] == LAYOUT.fingerprint
    older = payload[:4] + b"\x01" + payload[5:]
    with pytest.raises(PayloadRejected, match="of version 2, got b'DsTO' version 1"):
        decode(LAYOUT, older, values=values)


def test_a_full_count_table_is_rejected() -> None:
    """One encoding per selection: counts are left out when every chunk is full."""
    layout = build_layout({"w": (4, 4)}, chunk=4, topk=3)
    full = codec.encode(layout, random_selection(layout, np.random.default_rng(0), fill=1.0), values=ValueFormat.SIGNS)
    padded = full[:22] + b"\x01" + full[23:28] + b"\x03" + full[28:]
    with pytest.raises(PayloadRejected, match="counts"):
        decode(layout, padded, values=ValueFormat.SIGNS)


MANY = build_layout({"w": (256, 256)}, chunk=16, topk=4)
"""256 chunks of up to 4 coefficients."""


def with_empty_chunks(*empty: int) -> Selection:
    full = random_selection(MANY, np.random.default_rng(3), fill=1.0)
    kept = ~np.isin(full.chunks, empty)
    return Selection(full.chunks[kept], full.indices[kept], full.values[kept])


def test_a_few_short_chunks_cost_a_few_bytes() -> None:
    """Chunks that nothing was learnt about are few, and a table of all counts would be three bits for each."""
    full = len(codec.encode(MANY, with_empty_chunks(), values=ValueFormat.SIGNS))
    few = codec.encode(MANY, with_empty_chunks(0, 77, 255), values=ValueFormat.SIGNS)
    assert few[HEADER_BYTES] == 2
    assert len(few) <= full + 4 + 3 + 2
    assert codec.encode(MANY, with_empty_chunks(*range(0, 256, 2)), values=ValueFormat.SIGNS)[HEADER_BYTES] == 1


def counts_form(form: int, counts: bytes, *, empty: tuple[int, ...]) -> bytes:
    """The payload without these chunks, with other bytes where the counts are told as exceptions."""
    good = codec.encode(MANY, with_empty_chunks(*empty), values=ValueFormat.SIGNS)
    start = HEADER_BYTES + 6
    told = 4 + len(empty) + (3 * len(empty) + 7) // 8
    return good[:HEADER_BYTES] + bytes([form]) + good[HEADER_BYTES + 1 : start] + counts + good[start + told :]


def exceptions(*places: int, counts: tuple[int, ...] = (0, 0)) -> bytes:
    return struct.pack("<I", len(places)) + bytes(places) + pack_integers(np.array(counts, dtype=np.int64), 3)


@pytest.mark.parametrize(
    ("form", "told", "sentence"),
    [
        (2, exceptions(5, 3), "ascending"),
        (2, exceptions(5, 5), "ascending"),
        (2, exceptions(3, 5, counts=(0, 4)), "no exception"),
        (2, exceptions(3, 5, counts=(0, 7)), "at most 4"),
        (2, exceptions(counts=()), "shortest form"),
        (2, struct.pack("<I", 2**32 - 1), "longer than a table"),
        (1, pack_integers(np.array([4] * 3 + [0, 4, 0] + [4] * 250), 3), "shortest form"),
        (3, b"", "expected 0 to 2"),
    ],
)
def test_counts_have_one_encoding(form: int, told: bytes, sentence: str) -> None:
    selection = with_empty_chunks(3, 5)
    assert counts_form(2, exceptions(3, 5), empty=(3, 5)) == codec.encode(MANY, selection, values=ValueFormat.SIGNS)
    with pytest.raises(PayloadRejected, match=sentence):
        decode(MANY, counts_form(form, told, empty=(3, 5)), values=ValueFormat.SIGNS)


def test_a_chunk_that_does_not_exist_is_no_exception() -> None:
    layout = build_layout({"w": (160, 160)}, chunk=16, topk=4)  # 100 chunks: 7 bits, 28 numbers too many
    full = random_selection(layout, np.random.default_rng(3), fill=1.0)
    kept = full.chunks != 99
    payload = bytearray(
        codec.encode(layout, Selection(full.chunks[kept], full.indices[kept], full.values[kept]), values=ValueFormat.SIGNS)
    )
    assert payload[HEADER_BYTES + 6 + 4] == 99
    payload[HEADER_BYTES + 6 + 4] = 100
    with pytest.raises(PayloadRejected, match="from 0 to 99"):
        decode(layout, bytes(payload), values=ValueFormat.SIGNS)


def test_padding_bits_must_be_zero() -> None:
    layout = build_layout({"w": (4, 4)}, chunk=4, topk=3)
    full = codec.encode(layout, random_selection(layout, np.random.default_rng(0), fill=1.0), values=ValueFormat.SIGNS)
    with pytest.raises(PayloadRejected, match="padding"):
        decode(layout, full[:-1] + bytes([full[-1] | 0x80]), values=ValueFormat.SIGNS)


def test_a_wasteful_but_readable_encoding_over_the_limit_is_rejected() -> None:
    """Place 4095 in pure unary is 512 bytes where this table never needs more than a few dozen."""
    layout = build_layout({"w": (64, 64)}, chunk=64, topk=1)
    good = codec.encode(layout, Selection(np.array([0]), np.array([4095]), np.ones(1, np.float32)), values=ValueFormat.SIGNS)
    wasteful = good[:HEADER_BYTES] + struct.pack("<BBI", 0, 0, 512) + bytes(511) + b"\x80" + b"\x00"
    with pytest.raises(PayloadRejected, match="over the"):
        decode(layout, wasteful, values=ValueFormat.SIGNS)


@pytest.mark.parametrize("spare", [b"\0", bytes(8), bytes(40)])
@pytest.mark.parametrize("fill", [0.0, 1.0])
def test_spare_bytes_of_a_unary_table_are_rejected(spare: bytes, fill: float) -> None:
    """Zeros behind the last code say nothing, so they would be a second encoding of the same."""
    layout = build_layout({"w": (128, 128)}, chunk=64, topk=8)  # room enough under the limit where nothing is sent
    selection = random_selection(layout, np.random.default_rng(1), fill=fill)
    payload = codec.encode(layout, selection, values=ValueFormat.SIGNS)
    form, rice, length = struct.unpack_from("<BBI", payload, HEADER_BYTES)
    counts = {0: 0, 1: 2}[form]  # of four chunks, four bits each
    end = HEADER_BYTES + 6 + counts + (selection.chunks.size * rice + 7) // 8 + length
    header = payload[:HEADER_BYTES] + struct.pack("<BBI", form, rice, length + len(spare))
    longer = header + payload[HEADER_BYTES + 6 : end] + spare + payload[end:]
    with pytest.raises(
        PayloadRejected,
        match="spare byte" if len(longer) <= codec.max_payload_bytes(layout, values=ValueFormat.SIGNS) else "over",
    ):
        decode(layout, longer, values=ValueFormat.SIGNS)


def test_a_place_that_wraps_around_is_rejected() -> None:
    """2**32 places too far, told in as few bytes as that takes, is not the place that 32 bits would make of it."""
    layout = build_layout({"w": (32_768, 32_768)}, chunk=4096, topk=8)
    assert [(entry.size, entry.topk, entry.chunks.size) for entry in layout.classes] == [(2**24, 8, 64)]
    chunk, place = np.array([0]), np.array([5])
    good = codec.encode(layout, Selection(chunk, place, np.ones(1, np.float32)), values=ValueFormat.SIGNS)
    counts = pack_integers((np.arange(64) == 0).astype(np.int64), 4)

    def told(high: int) -> bytes:
        unary = pack_unary(np.array([high]))
        return good[:HEADER_BYTES] + struct.pack("<BBI", 1, 24, len(unary)) + counts + pack_integers(place, 24) + unary + b"\0"

    assert decode(layout, told(0), values=ValueFormat.SIGNS).indices.tolist() == [5]
    with pytest.raises(PayloadRejected, match="outside its chunk"):
        decode(layout, told(2**8), values=ValueFormat.SIGNS)


def test_the_fingerprint_covers_chunk_and_topk() -> None:
    settings_pairs = [(16, 4), (16, 5), (8, 4), (1, 64)]
    prints = {build_layout({"a": (4, 4)}, chunk=chunk, topk=topk).fingerprint for chunk, topk in settings_pairs}
    assert len(prints) == 4
