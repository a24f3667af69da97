"""Keys of the simulated members, and signatures that are real but made and checked once per process.

Ed25519 costs more than everything else a simulated member does; who signed what never changes, so a memory of the answers changes
nothing but the speed.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from psyche_core.types import NodeIdentity
from psyche_core.wire.messages import Result, is_commitment_of, sign_commitment
from psyche_core.wire.signing import SecretKey

RUN_ID = "simulated"
REMEMBERED = 16_384
"""Signatures kept: more than a run makes."""


@lru_cache(maxsize=512)
def key_of(index: int) -> SecretKey:
    """The key of the member with this number, the same in every run."""
    return SecretKey(hashlib.sha256(b"psyche/simulator" + index.to_bytes(4, "little")).digest())


@lru_cache(maxsize=512)
def identity_of(index: int) -> NodeIdentity:
    """The identity of the member with this number."""
    public = key_of(index).public
    return NodeIdentity(public, public)


@lru_cache(maxsize=REMEMBERED)
def signed_by(index: int, commitment: bytes) -> bytes:
    """The real signature of a commitment by that member."""
    return sign_commitment(key_of(index), RUN_ID, commitment)


def verified(result: Result, p2p: bytes) -> bool:
    """Whether a result's commitment carries that key's real signature; each signature is looked at once."""
    return _verified(p2p, result.commitment, result.signature)


@lru_cache(maxsize=REMEMBERED)
def _verified(p2p: bytes, commitment: bytes, signature: bytes) -> bool:
    return is_commitment_of(p2p, commitment, signature, run_id=RUN_ID)
