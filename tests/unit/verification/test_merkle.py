"""A root binds every chunk, its place and the number of chunks; proofs of strangers cost nothing and prove nothing false."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.errors import WireError
from psyche_core.verification.merkle import (
    MAX_LEAVES,
    MAX_PROOF_BYTES,
    MerkleTree,
    Proof,
    decode_proof,
    leaf_hash,
    opened_hash,
    siblings_of,
    signs_hash,
)

LEAVES = st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=40)


@given(LEAVES, st.data())
def test_each_leaf_is_proved_at_its_own_place_and_nowhere_else(leaves: list[bytes], data: st.DataObject) -> None:
    tree = MerkleTree(leaves)
    index = data.draw(st.integers(0, len(leaves) - 1))
    proof = tree.proof(index)
    assert proof.proves(leaves[index], tree.root, leaves=len(leaves))
    assert decode_proof(proof.encode()) == proof
    for other, leaf in enumerate(leaves):
        moved = Proof(other, len(leaves), proof.siblings)
        assert leaf == leaves[index] or not moved.proves(leaves[index], tree.root, leaves=len(leaves))


@given(LEAVES, st.data())
def test_any_change_of_leaf_siblings_or_number_is_seen(leaves: list[bytes], data: st.DataObject) -> None:
    tree = MerkleTree(leaves)
    index = data.draw(st.integers(0, len(leaves) - 1))
    proof = tree.proof(index)
    bit = data.draw(st.integers(0, 255))
    changed = bytearray(leaves[index])
    changed[bit // 8] ^= 1 << bit % 8
    assert not proof.proves(bytes(changed), tree.root, leaves=len(leaves))
    assert not proof.proves(leaves[index], tree.root, leaves=len(leaves) + 1)
    assert not proof.proves(leaves[index][:31], tree.root, leaves=len(leaves))
    for place, sibling in enumerate(proof.siblings):
        other = bytes([sibling[0] ^ 1]) + sibling[1:]
        lied = replace(proof, siblings=(*proof.siblings[:place], other, *proof.siblings[place + 1 :]))
        assert not lied.proves(leaves[index], tree.root, leaves=len(leaves))
    longer = replace(proof, siblings=(*proof.siblings, bytes(32)))
    assert not longer.proves(leaves[index], tree.root, leaves=len(leaves))


@given(LEAVES)
def test_lists_of_other_length_have_other_roots(leaves: list[bytes]) -> None:
    """Neither a last leaf that is repeated nor one that is left out keeps the root, as it does where odd levels repeat a node."""
    roots = {MerkleTree(leaves).root, MerkleTree([*leaves, leaves[-1]]).root, MerkleTree([*leaves, bytes(32)]).root}
    assert len(roots) == (3 if leaves[-1] != bytes(32) else 2)


def test_the_root_of_three_by_hand() -> None:
    def h(domain: bytes, *parts: bytes) -> bytes:
        return hashlib.sha256(domain + b"".join(parts)).digest()

    one, two, three = (bytes([number]) * 32 for number in range(3))
    top = h(b"psyche/delta-node/1", h(b"psyche/delta-node/1", one, two), three)
    assert MerkleTree([one, two, three]).root == h(b"psyche/delta-root/1", (3).to_bytes(4, "little"), top)


def test_an_inner_node_is_no_leaf() -> None:
    leaves = [bytes([number]) * 32 for number in range(4)]
    tree = MerkleTree(leaves)
    nodes = [hashlib.sha256(b"psyche/delta-node/1" + leaves[at] + leaves[at + 1]).digest() for at in (0, 2)]
    assert MerkleTree(nodes).root != tree.root


def test_a_number_never_moves_from_one_part_to_the_next() -> None:
    numbers = bytes(range(20))
    split = {
        opened_hash(numbers[:end], numbers[end : end + (20 - end) // 2], numbers[end + (20 - end) // 2 :]) for end in (4, 12, 20)
    }
    assert len(split) == 3
    assert opened_hash(numbers[:8], b"", b"") != leaf_hash(signs_hash(numbers[:8]), opened_hash(numbers[:8], b"", b""))


@pytest.mark.parametrize("lengths", [(3, 0, 0), (4, 4, 0), (4, 3, 3)])
def test_numbers_have_four_bytes(lengths: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="4 bytes"):
        opened_hash(*map(bytes, lengths))


@given(st.binary(max_size=200))
def test_bytes_of_strangers_raise_only_the_documented_error(data: bytes) -> None:
    try:
        proof = decode_proof(data)
    except WireError:
        return
    assert proof.encode() == data


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 40))
def test_a_proof_s_length_is_checked_against_its_numbers(index: int, leaves: int, siblings: int) -> None:
    data = b"\x01" + index.to_bytes(4, "little") + leaves.to_bytes(4, "little") + bytes(32 * siblings)
    right = 1 <= leaves <= MAX_LEAVES and index < leaves and siblings == siblings_of(index, leaves)
    if right:
        assert decode_proof(data).encode() == data
    else:
        with pytest.raises(WireError):
            decode_proof(data)


def test_a_proof_that_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(WireError, match="to 905 bytes"):
        decode_proof(bytes(MAX_PROOF_BYTES + 1))
    with pytest.raises(WireError, match="version 2"):
        decode_proof(b"\x02" + bytes(8))


def test_the_longest_proof_fits() -> None:
    proof = Proof(0, MAX_LEAVES, (bytes(32),) * 28)
    assert len(proof.encode()) == MAX_PROOF_BYTES
    assert decode_proof(proof.encode()) == proof


@pytest.mark.parametrize("leaves", [[], [bytes(31)]])
def test_a_tree_has_leaves_of_32_bytes(leaves: list[bytes]) -> None:
    with pytest.raises(ValueError, match="leaves of 32 bytes"):
        MerkleTree(leaves)


def test_what_is_no_proof_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="other siblings"):
        Proof(0, 2, ()).encode()
    with pytest.raises(ValueError, match="no leaf 2 of 2"):
        MerkleTree([bytes(32)] * 2).proof(2)
    with pytest.raises(ValueError, match="two hashes"):
        leaf_hash(bytes(32), b"")
