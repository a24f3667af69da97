"""What is opened belongs to its root, in its place, in one encoding; strangers' bytes raise only what is documented."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.errors import WireError
from psyche_core.verification.merkle import MerkleTree, gradient_leaf
from psyche_core.verification.opening import (
    OpenedChunk,
    decode_chunk,
    delta_leaf,
    opened_half,
    sign_bits,
    signs_fit,
)

CHUNKS, SIZE, TOPK = 9, 12, 4


def committed(seed: int = 0) -> tuple[list[OpenedChunk], bytes]:
    """All chunks of a delta, opened, and its root."""
    generator = np.random.default_rng(seed)
    delta = generator.normal(size=(CHUNKS, SIZE)).astype(np.float32)
    positions = np.sort(np.argsort(generator.random((CHUNKS, SIZE)), axis=1)[:, :TOPK], axis=1)
    values = generator.normal(size=(CHUNKS, TOPK)).astype(np.float32)
    tree = MerkleTree([delta_leaf(*chunk) for chunk in zip(delta, positions, values, strict=True)])
    chunks = [OpenedChunk(n, delta[n], positions[n], values[n], tree.proof(n)) for n in range(CHUNKS)]
    return chunks, tree.root


@given(st.integers(0, 1000), st.integers(0, CHUNKS - 1))
def test_a_chunk_belongs_to_its_root_in_its_place_only(seed: int, number: int) -> None:
    chunks, root = committed(seed)
    chunk = decode_chunk(chunks[number].encode(), size=SIZE, topk=TOPK)
    assert chunk.belongs(root, chunks=CHUNKS)
    assert chunk.encode() == chunks[number].encode()
    assert not chunk.belongs(root, chunks=CHUNKS + 1)
    assert not chunk.is_gradient_of(root, chunks=CHUNKS)
    assert not replace(chunk, number=(number + 1) % CHUNKS).belongs(root, chunks=CHUNKS)
    assert not replace(chunk, delta=-chunk.delta).belongs(root, chunks=CHUNKS)
    assert not replace(chunk, values=chunk.values * 2).belongs(root, chunks=CHUNKS)
    assert not replace(chunk, proof=chunks[(number + 1) % CHUNKS].proof).belongs(root, chunks=CHUNKS)
    assert np.count_nonzero(chunk.taken) == TOPK
    assert (chunk.taken[chunk.positions] == chunk.values).all()


def test_unused_coefficients_and_their_order_do_not_change_a_leaf() -> None:
    delta = np.ones(6, dtype=np.float32)
    positions, values = np.array([5, 0, 3]), np.array([2.0, 0.0, 1.0], dtype=np.float32)
    same = delta_leaf(delta, np.array([3, 5]), np.array([1.0, 2.0], dtype=np.float32))
    assert delta_leaf(delta, positions, values) == same


def test_all_signs_with_the_other_halves_give_the_root() -> None:
    chunks, root = committed()
    signs = [sign_bits(chunk.delta) for chunk in chunks]
    halves = [opened_half(chunk.delta, chunk.positions, chunk.values) for chunk in chunks]
    assert signs_fit(signs, halves, root)
    flipped = [bytes([signs[0][0] ^ 1]) + signs[0][1:], *signs[1:]]
    assert not signs_fit(flipped, halves, root)
    assert not signs_fit(signs[:-1], halves, root)
    assert not signs_fit(signs, [b"short", *halves[1:]], root)
    assert not signs_fit([], [], root)


def test_a_gradient_is_no_delta() -> None:
    elements = np.random.default_rng(1).normal(size=(CHUNKS, SIZE)).astype(np.float32)
    tree = MerkleTree([gradient_leaf(row.astype("<f4").tobytes()) for row in elements])
    none = np.zeros(0, dtype=np.int64)
    chunk = OpenedChunk(3, elements[3], none, np.zeros(0, dtype=np.float32), tree.proof(3))
    again = decode_chunk(chunk.encode(), size=SIZE, topk=0)
    assert again.is_gradient_of(tree.root, chunks=CHUNKS)
    assert not again.belongs(tree.root, chunks=CHUNKS)
    with_more = replace(again, positions=np.array([1]), values=np.ones(1, dtype=np.float32))
    assert not with_more.is_gradient_of(tree.root, chunks=CHUNKS)


@given(st.binary(max_size=200), st.data())
def test_bytes_of_strangers_raise_only_the_documented_error(data: bytes, draw: st.DataObject) -> None:
    chunks, _ = committed()
    changed = bytearray(chunks[2].encode())
    at = draw.draw(st.integers(0, len(changed) - 1))
    changed[at : at + len(data)] = data
    for tried in (data, bytes(changed)):
        try:
            chunk = decode_chunk(tried, size=SIZE, topk=TOPK)
        except WireError:
            continue
        assert chunk.encode() == tried or not np.isfinite([*chunk.delta, *chunk.values]).all()  # a NaN has many forms


@pytest.mark.parametrize(
    ("positions", "values"),
    [([1, 1], [1.0, 1.0]), ([2, 1], [1.0, 1.0]), ([1, SIZE], [1.0, 1.0]), ([1, 2], [1.0, 0.0])],
)
def test_a_chunk_has_one_encoding(positions: list[int], values: list[float]) -> None:
    chunks, _ = committed()
    other = replace(chunks[0], positions=np.array(positions), values=np.array(values, dtype=np.float32))
    with pytest.raises(WireError, match="ascending"):
        decode_chunk(other.encode(), size=SIZE, topk=TOPK)


def test_more_coefficients_than_may_be_sent_or_another_size_are_refused() -> None:
    data = committed()[0][0].encode()
    with pytest.raises(WireError, match="at most 3"):
        decode_chunk(data, size=SIZE, topk=TOPK - 1)
    with pytest.raises(WireError):
        decode_chunk(data, size=SIZE + 1, topk=TOPK)
    with pytest.raises(WireError, match="cannot have"):
        decode_chunk(bytes(10), size=SIZE, topk=TOPK)
    with pytest.raises(WireError, match="version 2"):
        decode_chunk(b"\x02" + data[1:], size=SIZE, topk=TOPK)
