"""Proofs of a delta's chunks: what is accepted is what encoding gives again, and proves nothing but what it was made for."""

from __future__ import annotations

from psyche_core.errors import WireError
from psyche_core.verification.merkle import MAX_PROOF_BYTES, MerkleTree, decode_proof

DOCUMENTED = (WireError,)
MAX_BYTES = MAX_PROOF_BYTES + 8
MEMORY = (16, 65_536)

_LEAVES = [bytes([number]) * 32 for number in range(21)]
_TREE = MerkleTree(_LEAVES)


def seeds() -> list[bytes]:
    return [_TREE.proof(index).encode() for index in (0, 7, 20)] + [MerkleTree(_LEAVES[:1]).proof(0).encode()]


def TARGET(data: bytes) -> None:
    proof = decode_proof(data)
    assert proof.encode() == data
    for index, leaf in enumerate(_LEAVES):
        assert not proof.proves(leaf, _TREE.root, leaves=21) or proof == _TREE.proof(index)
