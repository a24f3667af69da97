"""Keys of the simulated members, and cheap stand-ins for signatures.

Ed25519 costs more than everything else a simulated member does. So a member signs a commitment with a token, which only the
owner of its number can make here; liars use the same functions. Evidence of equivocation, which the coordinator really checks,
carries real signatures of the same commitments.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace
from functools import lru_cache

from psyche_core.coordinator.commands import Equivocation, Join, SignedResult
from psyche_core.coordinator.state import CoordinatorState, Round
from psyche_core.types import BatchId, NodeIdentity
from psyche_core.wire.messages import Result, commitment_hash, sign_commitment, sign_join
from psyche_core.wire.signing import SecretKey

RUN_ID = "simulated"
INSTANCE = hashlib.sha256(b"psyche/simulator").digest()
"""The instance of every simulated run."""

EARLIER = hashlib.sha256(b"psyche/simulator/earlier").digest()
"""The instance of an earlier run with the same name."""

CACHE_SIZE = 16_384
"""Tokens kept: more than one run makes."""

_made: OrderedDict[bytes, tuple[int, bytes]] = OrderedDict()


@lru_cache(maxsize=512)
def key_of(index: int) -> SecretKey:
    """The key of the member with this number, the same in every run."""
    return SecretKey(hashlib.sha256(b"psyche/simulator" + index.to_bytes(4, "little")).digest())


@lru_cache(maxsize=512)
def identity_of(index: int) -> NodeIdentity:
    """The identity of the member with this number."""
    public = key_of(index).public
    return NodeIdentity(public, public)


@lru_cache(maxsize=512)
def join_of(index: int) -> Join:
    """The member's request to join, with a real proof."""
    identity = identity_of(index)
    return Join(identity, sign_join(key_of(index), INSTANCE, identity.signer))


def join_with_stolen_key(index: int, victim: int) -> Join:
    """A request to join with another member's transport key; the proof is made with the member's own key."""
    signer = identity_of(index).signer
    return Join(NodeIdentity(signer, identity_of(victim).p2p), sign_join(key_of(index), INSTANCE, signer))


@lru_cache(maxsize=64)
def _numbers(members: int) -> dict[bytes, int]:
    return {identity_of(index).signer: index for index in range(members)}


def member_with(signer: bytes, members: int) -> int | None:
    """The number of the member with this signer among `members`; None if there is none."""
    return _numbers(members).get(signer)


def commitment_of(state: CoordinatorState, result: Result, *, trainer: bytes, payload_hash: bytes) -> bytes:
    """The commitment to another payload for the share of a result. state: the coordinator's, which knows the round."""
    played = state.round_at(result.height)
    return commitment_hash(
        INSTANCE,
        epoch=result.epoch,
        step=result.step,
        seed=0 if played is None else played.seed,
        share=result.share,
        trainer=trainer,
        payload_hash=payload_hash,
    )


def signed_earlier(index: int, *, epoch: int, played: Round, share: tuple[BatchId, ...], payload_hash: bytes) -> SignedResult:
    """What the member with this number signed at the same place of an earlier run with the same name."""
    commitment = commitment_hash(
        EARLIER,
        epoch=epoch,
        step=played.step,
        seed=played.seed,
        share=share,
        trainer=identity_of(index).signer,
        payload_hash=payload_hash,
    )
    return SignedResult(payload_hash, sign_commitment(key_of(index), EARLIER, commitment))


@lru_cache(maxsize=CACHE_SIZE)  # each is made once and checked by all receivers of the result
def _token(public: bytes, commitment: bytes) -> bytes:
    return hashlib.sha512(public + commitment).digest()


def signed_by(index: int, commitment: bytes) -> bytes:
    """The token (64 bytes) that replaces that member's signature of a commitment."""
    token = _token(identity_of(index).p2p, commitment)
    _made[token] = (index, commitment)
    _made.move_to_end(token)  # an earlier run of this process may have made it too, long ago
    if len(_made) > CACHE_SIZE:
        _made.popitem(last=False)
    return token


def verified(result: Result, p2p: bytes) -> bool:
    """Whether a result carries that key's token for its commitment."""
    return result.signature == _token(p2p, result.commitment)


def with_real_signatures(evidence: Equivocation) -> Equivocation:
    """The same evidence with signatures a coordinator can check; unknown tokens stay as they are."""

    def real(half: SignedResult) -> SignedResult:
        made = _made.get(half.signature)
        return half if made is None else replace(half, signature=sign_commitment(key_of(made[0]), INSTANCE, made[1]))

    return replace(evidence, first=real(evidence.first), second=real(evidence.second))
