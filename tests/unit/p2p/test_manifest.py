"""Manifests of a model: read against our own table, or refused with one sentence."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from psyche_core.errors import WireError
from psyche_core.p2p.manifest import (
    HASH_BYTES,
    MAX_STEP,
    PIECE_BYTES,
    Manifest,
    Table,
    cut,
    decode,
    encode,
    max_manifest_bytes,
    parameter_table,
    piece_count,
)
from psyche_core.wire import codec

VALUES = PIECE_BYTES // 4
"""In one whole piece."""

names = st.text(min_size=1, max_size=8)
shapes = st.one_of(
    st.lists(st.integers(0, 70), max_size=3).map(tuple),
    st.sampled_from([(VALUES,), (VALUES + 1,), (3, VALUES), (2 * VALUES - 1,), (0, VALUES)]),
)
tables = st.dictionaries(names, shapes, max_size=6).map(parameter_table)


@st.composite
def manifests(draw: st.DrawFn, of: st.SearchStrategy[Table] = tables) -> Manifest:
    table = draw(of)
    count = piece_count(table)
    hashes = draw(st.lists(st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES), min_size=count, max_size=count))
    run_id = draw(st.text(max_size=32).filter(lambda text: len(text.encode()) <= 32))
    return Manifest(run_id, draw(st.integers(0, MAX_STEP)), table, tuple(hashes))


TABLE = parameter_table({"b": (2, 3), "a": (VALUES + 1,), "c": ()})
MANIFEST = Manifest("run", 7, TABLE, tuple(bytes((number,)) * HASH_BYTES for number in range(4)))


def fields() -> list[Any]:
    """The fields of MANIFEST, to be spoilt."""
    value = codec.decode(encode(MANIFEST), max_bytes=10_000)
    assert isinstance(value, list)
    return copy.deepcopy(value)


@given(manifests())
def test_a_manifest_comes_back_as_it_was(manifest: Manifest) -> None:
    assert decode(encode(manifest), expected=manifest.table) == manifest


@given(manifests())
def test_our_own_table_bounds_the_length_of_a_manifest(manifest: Manifest) -> None:
    assert len(encode(manifest)) <= max_manifest_bytes(manifest.table)


def test_the_bound_is_reached() -> None:
    longest = Manifest("r" * 32, MAX_STEP, TABLE, MANIFEST.hashes)
    assert len(encode(longest)) == max_manifest_bytes(TABLE)


@given(tables)
def test_pieces_cover_every_byte_once_in_order(table: Table) -> None:
    pieces = cut(table)
    assert [piece.number for piece in pieces] == list(range(piece_count(table)))
    assert [piece.name for piece in pieces] == sorted(piece.name for piece in pieces)
    for parameter in table:
        own = [piece for piece in pieces if piece.name == parameter.name]
        assert sum(piece.byte_count for piece in own) == parameter.byte_count
        assert [piece.first for piece in own] == [PIECE_BYTES * number for number in range(len(own))]
        assert all(0 < piece.byte_count <= PIECE_BYTES and piece.byte_count % 4 == 0 for piece in own)


@given(manifests(), tables)
@example(MANIFEST, parameter_table({"a": (VALUES + 1,), "b": (2, 3)}))
@example(MANIFEST, parameter_table({"a": (VALUES + 1,), "b": (3, 2), "c": ()}))
@example(MANIFEST, parameter_table({"a": (VALUES + 1,), "b": (6,), "c": ()}))
@example(MANIFEST, parameter_table({"a": (VALUES,), "b": (2, 3), "c": ()}))
def test_a_manifest_of_another_model_is_refused(manifest: Manifest, ours: Table) -> None:
    if ours == manifest.table:
        return

    with pytest.raises(WireError):
        decode(encode(manifest), expected=ours)


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ((0,), 2, "manifest version 2 is not 1"),
        ((0,), True, "manifest version True is not 1"),
        ((0,), "1", "a manifest is a list of version"),
        ((1,), b"run", "a manifest is a list of version"),
        ((1,), "r" * 33, "run id has at most 32 bytes"),
        ((2,), -1, "step is 0.."),
        ((2,), False, "step is 0.."),
        ((2,), MAX_STEP + 1, "step is 0.."),
        ((3,), {}, "a manifest is a list of version"),
        ((3, 0), "a", "a list of name, sizes and hashes"),
        ((3, 0, 0), b"a", "a list of name, sizes and hashes"),
        ((3, 0, 0), "z", "where our model has 'a'"),
        ((3, 1, 1), [3, 2], r"where our model has 'b' of \[2, 3\]"),
        ((3, 1, 1), [2, 3.0], "where our model has 'b'"),
        ((3, 1, 1), [2, -3], "where our model has 'b'"),
        ((3, 1, 1), [6], "where our model has 'b'"),
        ((3, 0, 2), bytes(HASH_BYTES), "a has 2 pieces"),
        ((3, 1, 2), bytes(HASH_BYTES + 1), "b has 1 pieces"),
        ((3, 2, 2), b"", "c has 1 pieces"),
        ((3, 2, 2), "x" * HASH_BYTES, "a list of name, sizes and hashes"),
    ],
)
def test_a_spoilt_field_is_refused_with_its_sentence(path: tuple[int, ...], value: Any, sentence: str) -> None:
    spoilt = fields()
    place = spoilt
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(WireError, match=sentence):
        decode(codec.encode(spoilt), expected=TABLE)


def test_true_is_not_the_size_one() -> None:
    table = parameter_table({"a": (1,)})
    spoilt = codec.encode([1, "run", 7, [["a", [True], bytes(HASH_BYTES)]]])
    with pytest.raises(WireError, match="where our model has 'a'"):
        decode(spoilt, expected=table)


@pytest.mark.parametrize(
    "change",
    [
        lambda entries: entries.pop(),
        lambda entries: entries.reverse(),
        lambda entries: entries.__setitem__(1, entries[0]),
        list.clear,
    ],
)
def test_missing_repeated_and_unordered_parameters_are_refused(change: Any) -> None:
    spoilt = fields()
    change(spoilt[3])
    with pytest.raises(WireError):
        decode(codec.encode(spoilt), expected=TABLE)


def test_what_is_longer_than_any_manifest_of_ours_is_refused_unread() -> None:
    with pytest.raises(WireError, match="over the limit"):
        decode(b"\xff" * (max_manifest_bytes(TABLE) + 1), expected=TABLE)


@settings(max_examples=500)
@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_wire_error_and_nothing_else(data: bytes) -> None:
    with pytest.raises(WireError):
        decode(data, expected=TABLE)


@settings(max_examples=500)
@given(st.data())
def test_a_flipped_bit_gives_another_manifest_or_wire_error(data: st.DataObject) -> None:
    encoded = bytearray(encode(MANIFEST))
    bit = data.draw(st.integers(0, 8 * len(encoded) - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    try:
        read = decode(bytes(encoded), expected=TABLE)
    except WireError:
        return

    assert read != MANIFEST
    assert encode(read) == bytes(encoded)


def test_a_manifest_needs_a_hash_for_each_piece() -> None:
    with pytest.raises(ValueError, match="expected 4 hashes"):
        Manifest("run", 7, TABLE, MANIFEST.hashes[:-1])
    with pytest.raises(ValueError, match="expected 4 hashes of 32 bytes"):
        Manifest("run", 7, TABLE, (*MANIFEST.hashes[:-1], b"short"))


@pytest.mark.parametrize(("run_id", "step"), [("r" * 33, 1), ("ü" * 17, 1), ("run", -1), ("run", MAX_STEP + 1)])
def test_a_run_id_or_step_out_of_range_is_not_written(run_id: str, step: int) -> None:
    with pytest.raises(ValueError, match="a manifest carries"):
        encode(Manifest(run_id, step, TABLE, MANIFEST.hashes))
