"""Parts of challenges as bytes: what is written is read, and nothing else is."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from psyche_core.errors import WireError
from psyche_core.verification.merkle import NO_DELTA, MerkleTree, committed_root, gradient_leaf
from psyche_core.verification.opening import OpenedChunk, delta_leaf, opened_half
from psyche_core.verification.parts import (
    ChunkShape,
    ChunkTable,
    decode_deltas,
    decode_gradient,
    decode_payload,
    decode_signs,
    encode_deltas,
    encode_gradient,
    encode_no_delta,
    encode_payload,
    encode_signs,
)

TABLE = ChunkTable((ChunkShape(3, 12, 2), ChunkShape(5, 7, 1), ChunkShape(1, 1, 1)))
SIGNER = bytes(range(32))
NUMBERS = (0, 2, 3, 8)


class Delta:
    """A delta with what is taken off it, and its tree."""

    def __init__(self, seed: int, *, zeros: bool = False) -> None:
        generator = np.random.default_rng(seed)
        self.groups = [generator.normal(size=(group.count, group.size)).astype(np.float32) for group in TABLE.groups]
        if zeros:
            for group in self.groups:
                group[generator.random(group.shape) < 0.3] = 0
        self.chunks: list[tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32]]] = []
        for shape, group in zip(TABLE.groups, self.groups, strict=True):
            for row in group:
                positions = np.sort(generator.choice(shape.size, size=shape.topk, replace=False)).astype(np.int64)
                self.chunks.append((row, positions, generator.normal(size=shape.topk).astype(np.float32)))
        self.tree = MerkleTree([delta_leaf(*chunk) for chunk in self.chunks])

    @property
    def halves(self) -> list[bytes]:
        return [opened_half(*chunk) for chunk in self.chunks]

    def opened(self, numbers: Sequence[int] = NUMBERS) -> list[OpenedChunk]:
        return [OpenedChunk(number, *self.chunks[number], self.tree.proof(number)) for number in numbers]


class Gradient:
    """A recomputed gradient and its tree."""

    def __init__(self, seed: int) -> None:
        generator = np.random.default_rng(seed)
        sizes = [group.size for group in TABLE.groups for _ in range(group.count)]
        self.rows = [generator.normal(size=size).astype(np.float32) for size in sizes]
        self.tree = MerkleTree([gradient_leaf(row.astype("<f4").tobytes()) for row in self.rows])

    @property
    def committed(self) -> bytes:
        return committed_root(self.tree.root, SIGNER)

    def part(self, numbers: Sequence[int] = NUMBERS) -> bytes:
        none, nothing = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
        opened = [OpenedChunk(number, self.rows[number], none, nothing, self.tree.proof(number)) for number in numbers]
        return encode_gradient(self.tree.root, opened)


def read_gradient(data: bytes, gradient: Gradient, *, numbers: Sequence[int] = NUMBERS, signer: bytes = SIGNER) -> Any:
    return decode_gradient(data, TABLE, numbers=numbers, committed=gradient.committed, signer=signer)


def test_the_table_knows_its_chunks() -> None:
    assert (TABLE.total, TABLE.elements) == (9, 3 * 12 + 5 * 7 + 1)
    assert [TABLE.place_of(number) for number in (0, 2, 3, 7, 8)] == [(0, 0), (0, 2), (1, 0), (1, 4), (2, 0)]
    assert [rows.tolist() for rows in TABLE.rows_of(NUMBERS)] == [[0, 2], [0], [0]]
    assert TABLE.shape_of(8) == ChunkShape(1, 1, 1)
    for number in (-1, 9):
        with pytest.raises(ValueError, match="there is no chunk"):
            TABLE.place_of(number)


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_signs_come_back_with_their_zeros(seed: int, zeros: bool) -> None:
    delta = Delta(seed, zeros=zeros)
    data = encode_signs(delta.groups, delta.halves)
    assert len(data) <= TABLE.max_signs_bytes <= TABLE.max_bytes
    shown = decode_signs(data, TABLE, root=delta.tree.root)
    assert shown is not None
    for signs, group in zip(shown.signs, delta.groups, strict=True):
        assert signs.dtype == np.int8
        assert np.array_equal(signs, np.sign(group))


def test_no_delta_is_shown_only_where_the_root_says_so() -> None:
    delta = Delta(1)
    assert decode_signs(encode_no_delta(), TABLE, root=NO_DELTA) is None
    with pytest.raises(WireError, match="expected signs"):
        decode_signs(encode_no_delta(), TABLE, root=delta.tree.root)
    with pytest.raises(WireError, match="no signs of it"):
        decode_signs(encode_signs(delta.groups, delta.halves), TABLE, root=NO_DELTA)


PAYLOADS = replace(TABLE, ahead_bytes=40)
"""Of runs that look ahead by payloads."""


@given(st.binary(max_size=40))
def test_a_payload_comes_back(payload: bytes) -> None:
    root = Delta(1).tree.root
    assert decode_payload(encode_payload(payload), PAYLOADS, root=root) == payload
    assert len(encode_payload(payload)) <= PAYLOADS.max_bytes


def test_a_payload_is_shown_only_after_a_first_result_and_in_runs_that_look_ahead_by_it() -> None:
    root = Delta(1).tree.root
    assert decode_payload(encode_no_delta(), PAYLOADS, root=NO_DELTA) == b""
    for data, table, own, sentence in (
        (encode_payload(b"x"), PAYLOADS, NO_DELTA, "there was no payload to look ahead by"),
        (encode_no_delta(), PAYLOADS, root, "expected a part of kind 4, got kind 0"),
        (encode_signs(Delta(1).groups, Delta(1).halves), PAYLOADS, root, "expected a part of kind 4, got kind 1"),
        (encode_payload(bytes(41)), PAYLOADS, root, "at most 40 bytes, got 41"),
        (encode_payload(b"x"), TABLE, root, "at most 0 bytes, got 1"),
        (b"", PAYLOADS, root, "got nothing"),
    ):
        with pytest.raises(WireError, match=sentence):
            decode_payload(data, table, root=own)
    with pytest.raises(WireError, match="expected signs, got a part of kind 4"):
        decode_signs(encode_payload(bytes(9)), TABLE, root=root)


def test_a_payload_takes_less_than_signs() -> None:
    large = ChunkTable((ChunkShape(10_000, 4096, 8),))
    assert replace(large, ahead_bytes=200_000).max_bytes < large.max_bytes / 2


def test_signs_of_another_delta_are_refused() -> None:
    one, other = Delta(1), Delta(2)
    with pytest.raises(WireError, match="not those of the delta"):
        decode_signs(encode_signs(one.groups, one.halves), TABLE, root=other.tree.root)
    flipped = [-group for group in one.groups]
    with pytest.raises(WireError, match="not those of the delta"):
        decode_signs(encode_signs(flipped, one.halves), TABLE, root=one.tree.root)


def test_zeros_are_bound_too() -> None:
    """Who says that an element is zero, or is not, chooses the weights at which others compute."""
    delta = Delta(1, zeros=True)
    honest = encode_signs(delta.groups, delta.halves)
    for zeros in (np.zeros(TABLE.elements, dtype=bool), np.ones(TABLE.elements, dtype=bool)):
        packed = zlib.compress(np.packbits(zeros, bitorder="little").tobytes())
        end = 6 + int.from_bytes(honest[2:6], "little")
        forged = honest[:2] + len(packed).to_bytes(4, "little") + packed + honest[end:]
        with pytest.raises(WireError, match="not those of the delta"):
            decode_signs(forged, TABLE, root=delta.tree.root)


@pytest.mark.parametrize("packed", [b"", b"x" * 30, zlib.compress(bytes(10**4)), zlib.compress(bytes(9)) + b"more"])
def test_zeros_that_are_not_one_bit_for_each_element_are_refused(packed: bytes) -> None:
    """A bomb is not unpacked: at most one byte more than there may be."""
    delta = Delta(1)
    data = encode_signs(delta.groups, delta.halves)
    length = int.from_bytes(data[2:6], "little")
    forged = data[:2] + len(packed).to_bytes(4, "little") + packed + data[6 + length :]
    with pytest.raises(WireError, match="compressed bits of 72 elements"):
        decode_signs(forged, TABLE, root=delta.tree.root)


def test_opened_deltas_come_back() -> None:
    after, before = Delta(1), Delta(2)
    data = encode_deltas(after.opened(), before.opened())
    assert len(data) <= TABLE.max_opened_bytes <= TABLE.max_bytes
    shown = decode_deltas(data, TABLE, numbers=NUMBERS, roots=after.tree.root + before.tree.root)
    assert shown.before is not None
    for delta, chunks in ((after, shown.after), (before, shown.before)):
        for number, chunk in zip(NUMBERS, chunks, strict=True):
            assert np.array_equal(chunk.delta, delta.chunks[number][0])
            assert np.array_equal(chunk.positions, delta.chunks[number][1])
    first = decode_deltas(encode_deltas(after.opened(), None), TABLE, numbers=NUMBERS, roots=after.tree.root + NO_DELTA)
    assert first.before is None


def test_deltas_of_other_roots_or_chunks_are_refused() -> None:
    after, before = Delta(1), Delta(2)
    roots = after.tree.root + before.tree.root
    for data, told in (
        (encode_deltas(before.opened(), before.opened()), "not of the delta"),
        (encode_deltas(after.opened(), after.opened()), "not of the delta"),
        (encode_deltas(after.opened(), None), "expected 8 opened chunks"),
        (
            encode_deltas(after.opened((0, 2, 3, 7)), before.opened()),
            "cannot have|expected a proof|expected version|expected chunk 8",
        ),
        (encode_deltas(after.opened((0, 1, 3, 8)), before.opened()), "expected chunk 2, got chunk 1"),
        (encode_deltas(after.opened(), before.opened()) + b"x", "bytes of opened chunks"),
        (Gradient(1).part(), "expected a part of kind 2"),
        (b"", "expected a part of version 1, got nothing"),
        (b"\x02\x02", "expected a part of version 1, got 02"),
    ):
        with pytest.raises(WireError, match=told):
            decode_deltas(data, TABLE, numbers=NUMBERS, roots=roots)


def test_an_opened_gradient_comes_back_and_belongs_to_who_committed_to_it() -> None:
    gradient = Gradient(3)
    for number, chunk in zip(NUMBERS, read_gradient(gradient.part(), gradient), strict=True):
        assert np.array_equal(chunk.delta, gradient.rows[number])
    with pytest.raises(WireError, match="not the one that was committed to"):
        read_gradient(gradient.part(), gradient, signer=bytes(32))
    with pytest.raises(WireError, match="not the one that was committed to"):
        read_gradient(Gradient(4).part(), gradient)
    forged = gradient.part()[:34] + Gradient(4).part()[34:]
    with pytest.raises(WireError, match="not of the gradient"):
        read_gradient(forged, gradient)


@given(st.data())
def test_any_bytes_are_refused_with_a_sentence(data: st.DataObject) -> None:
    """Random bytes, and parts with a changed or missing byte: only WireError, whoever sent them."""
    delta, gradient = Delta(1, zeros=True), Gradient(1)
    parts = [encode_signs(delta.groups, delta.halves), encode_deltas(delta.opened(), delta.opened()), gradient.part()]
    honest = data.draw(st.sampled_from(parts))
    place = data.draw(st.integers(0, len(honest) - 1))
    changed = honest[:place] + bytes([honest[place] ^ data.draw(st.integers(1, 255))]) + honest[place + 1 :]
    sent = data.draw(st.one_of(st.binary(max_size=400), st.just(changed), st.just(honest[:place])))
    root = delta.tree.root
    for read in (
        lambda: decode_signs(sent, TABLE, root=root),
        lambda: decode_deltas(sent, TABLE, numbers=NUMBERS, roots=root + root),
        lambda: read_gradient(sent, gradient),
    ):
        try:
            found = read()
        except WireError:
            continue
        assert sent == changed, "only how zeros are compressed may differ"
        assert found is not None
