"""Evaluation of witness statements: quorum, acceptance, and the bloom filter and Merkle root over commitments.

The quorum is two thirds, rounded up, of the *elected* witnesses (F5). The filter's keys come from the round's seed. With its 2560
bits, the rate of false positives stays under 1 % for up to 256 entries (F6). The result does not depend on the order in which
messages arrive (F7).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.round.committee import REMEMBERED, witness_slots
from psyche_core.coordinator.state import CoordinatorState, Round
from psyche_core.errors import WireError
from psyche_core.types import WitnessStatement
from psyche_core.wire.codec import encode

BLOOM_BITS = 2560
BLOOM_BYTES = BLOOM_BITS // 8
BLOOM_KEYS = 8
EMPTY_ROOT = bytes(32)

_KEY_DOMAIN = b"psyche/broadcast-bloom/v1"
_FNV_PRIME = 0x100000001B3
_MASK = 2**64 - 1
_LANE = 128
_REMEMBERED_ITEMS = 4096
_REMEMBERED_FILTERS = 256
_REMEMBERED_STATEMENTS = 16


def quorum(elected: int) -> int:
    """Return the number of statements needed among `elected` witnesses: two thirds, rounded up (F5); 0 if none is elected."""
    return -(-2 * elected // 3)


def accepted_slots(state: CoordinatorState, round_: Round, *, without: int | None = None) -> frozenset[int]:
    """Return the slots whose result of `round_` was seen by a quorum of the next round's elected witnesses.

    Empty until the first statement. without: a slot whose statement is ignored, to find out whether the others are enough.
    """
    attesting = state.round_at(round_.height + 1)
    if attesting is None or not attesting.statements:
        return frozenset()

    needed = quorum(len(witness_slots(state, attesting)))
    seen = _seen_by(needed, [statement.participants for statement in attesting.statements if statement.index != without])
    return frozenset([slot for slot in shares(state, round_) if seen >> slot & 1 and slot not in round_.voided])


def divided_slots(state: CoordinatorState, round_: Round) -> frozenset[int]:
    """Return the slots whose result of `round_` at least half of the next round's elected witnesses saw, but no quorum.

    Liars and a member on a slow line can do that to an honest trainer. Of a trainer that gave nothing only liars say that they
    saw something, and they are less than half. Empty while less than a quorum has stated: silence judges nobody.
    """
    attesting = state.round_at(round_.height + 1)
    if attesting is None:
        return frozenset()

    elected = len(witness_slots(state, attesting))
    if not attesting.statements or len(attesting.statements) < quorum(elected):
        return frozenset()

    seen = _seen_by(-(-elected // 2), [statement.participants for statement in attesting.statements])
    decided = accepted_slots(state, round_).union(round_.voided)
    return frozenset([slot for slot in shares(state, round_) if seen >> slot & 1 and slot not in decided])


def _seen_by(needed: int, bitmaps: Sequence[bytes]) -> int:
    """Return the bits (slots) that are set in at least `needed` of the bitmaps. All bits are counted in parallel."""
    if not bitmaps:
        return 0
    if len(bitmaps) >= needed > 0 and bitmaps.count(bitmaps[0]) == len(bitmaps):
        return int.from_bytes(bitmaps[0], "little")  # the usual case: all bitmaps are equal

    at_least = [-1] + [0] * needed
    for bitmap in bitmaps:
        bits = int.from_bytes(bitmap, "little")
        for count in range(needed, 0, -1):
            at_least[count] |= at_least[count - 1] & bits
    return at_least[needed]


def tolerated(elected: int) -> int:
    """Return how many of `elected` witnesses may lie: so many that the others still form a quorum."""
    return elected - quorum(elected)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision which result of an accepted slot is applied.

    chosen: the commitment (32 bytes) to apply, None if none of the candidates is chosen. void: True if it is certain that no
    commitment was agreed on, not even an unknown one. If chosen is None and void is False, the commitment that was agreed on is
    not among the candidates, so the client still has to receive it.
    """

    chosen: bytes | None = None
    void: bool = False


def judge(state: CoordinatorState, round_: Round, slot: int, candidates: Iterable[bytes]) -> Verdict:
    """Decide from the next round's statements which result of `slot` in `round_` is applied. The slot must be accepted.

    candidates: commitments (32 bytes) signed for that share, in any order. A statement that saw the slot votes for each candidate
    that is in its filter. The filter of an honest witness contains exactly one of them. If a trainer signed only one result, its
    commitment is in the filters of all statements that saw the slot, except for at most `tolerated` lying witnesses. So this is
    the number of votes that a candidate needs. Among candidates that reach it, the one with the most votes is chosen, and of
    equal ones the smallest. If no candidate reaches it, count the statements whose filter contains no candidate: if they are too
    few for an unknown commitment to reach the number, the trainer sent different results to different witnesses, and the share
    is void.
    """
    attesting = state.round_at(round_.height + 1)
    if attesting is None:
        return Verdict()

    byte, bit = slot // 8, 1 << slot % 8
    filters = [_bits(said.broadcast_bloom) for said in attesting.statements if said.participants[byte] & bit]
    liars = tolerated(len(witness_slots(state, attesting)))
    needed = max(len(filters) - liars, 1)
    masks = {candidate: _mask(attesting.seed, candidate) for candidate in candidates}
    votes = {candidate: len([bits for bits in filters if bits & mask == mask]) for candidate, mask in masks.items()}
    agreed = [candidate for candidate, count in votes.items() if count >= needed]
    if agreed:
        return Verdict(chosen=min(agreed, key=lambda candidate: (-votes[candidate], candidate)))

    unexplained = [bits for bits in filters if all(bits & mask != mask for mask in masks.values())]
    return Verdict(void=len(unexplained) + liars < needed)


def choose_commitment(state: CoordinatorState, round_: Round, slot: int, candidates: Iterable[bytes]) -> bytes | None:
    """Return the commitment (32 bytes) that `judge` chooses, or None if it chooses none."""
    return judge(state, round_, slot, candidates).chosen


def bloom_positions(keys: Sequence[int], item: bytes, bits: int) -> list[int]:
    """Return the bit position of an item for each key: 64-bit FNV-1a with the key as initial state, modulo `bits`.

    The formula is that of the reference implementation.
    """
    # All keys are computed together, each in 128 bits of one large integer. The product of a 64-bit state and the 41-bit prime
    # has at most 105 bits, so it does not overflow into the next 128 bits.
    ones, kept = _lanes(len(keys))
    states = sum(key << _LANE * place for place, key in enumerate(keys))
    for byte in item:
        states = (states ^ ones * byte) * _FNV_PRIME & kept
    return [(states >> _LANE * place & _MASK) % bits for place in range(len(keys))]


@lru_cache(maxsize=8)
def _lanes(count: int) -> tuple[int, int]:
    """Return an integer with a one in each of `count` 128-bit lanes, and the mask of the low 64 bits of each lane."""
    ones = sum(1 << _LANE * place for place in range(count))
    return ones, ones * _MASK


@lru_cache(maxsize=REMEMBERED)
def bloom_keys(seed: int) -> tuple[int, ...]:
    """Return the filter's 8 keys (u64) for the round with this seed.

    Key n is the first 8 bytes, as u64 LE, of SHA-256 over domain, seed (u64 LE) and n (1 byte).
    """
    prefix = _KEY_DOMAIN + seed.to_bytes(8, "little")
    return tuple(int.from_bytes(hashlib.sha256(prefix + bytes([number])).digest()[:8], "little") for number in range(BLOOM_KEYS))


@lru_cache(maxsize=_REMEMBERED_FILTERS)
def _bits(bloom: bytes) -> int:
    """Return a statement's filter as an integer. Cached, because each filter is tested for every share of a round."""
    return int.from_bytes(bloom, "little")


@lru_cache(maxsize=_REMEMBERED_ITEMS)
def _mask(seed: int, item: bytes) -> int:
    """Return the filter that contains only this item, as an integer. Cached, because an item is tested in many filters."""
    mask = 0
    for position in bloom_positions(bloom_keys(seed), item, BLOOM_BITS):
        mask |= 1 << position
    return mask


class BroadcastBloom:
    """Bloom filter over commitment hashes. seed: that of the round in which the statement is sent; witnesses cannot choose it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._bits = 0

    @classmethod
    def from_bytes(cls, seed: int, data: bytes) -> BroadcastBloom:
        """Return the filter whose bits are `data`. Raises WireError unless `data` has 320 bytes."""
        if len(data) != BLOOM_BYTES:
            message = f"expected a filter of {BLOOM_BYTES} bytes, got {len(data)}"
            raise WireError(message)

        bloom = cls(seed)
        bloom._bits = int.from_bytes(data, "little")
        return bloom

    def add(self, item: bytes) -> None:
        """Add an item (32 bytes for a commitment)."""
        self._bits |= _mask(self._seed, item)

    def __contains__(self, item: bytes) -> bool:
        mask = _mask(self._seed, item)
        return self._bits & mask == mask

    def to_bytes(self) -> bytes:
        """Return the 2560 bits as 320 bytes: bit i is bit i % 8 of byte i // 8."""
        return self._bits.to_bytes(BLOOM_BYTES, "little")


@lru_cache(maxsize=_REMEMBERED_STATEMENTS)
def statements_digest(statements: tuple[WitnessStatement, ...]) -> bytes:
    """Return SHA-256 over a round's statements as canonical CBOR, ascending by slot. Journals store this digest."""
    fields = [
        [said.epoch, said.height, said.index, said.participants, said.broadcast_bloom, said.merkle_root, said.model_digest]
        for said in sorted(statements, key=lambda said: said.index)
    ]
    return hashlib.sha256(encode(fields)).digest()


def merkle_root(items: Sequence[bytes]) -> bytes:
    """Return the Merkle root (32 bytes) over the items in this order; 32 zero bytes if there are none.

    A leaf is SHA-256(0x00, item), a node is SHA-256(0x01, left, right). If a level has an odd number of nodes, its last node is
    paired with itself, as in the reference implementation. Sort the items before, because equal sets must give equal roots (F6).
    """
    if not items:
        return EMPTY_ROOT

    level = [hashlib.sha256(b"\x00" + item).digest() for item in items]
    while len(level) > 1:
        if len(level) % 2:
            level.append(level[-1])
        level = [hashlib.sha256(b"\x01" + left + right).digest() for left, right in zip(level[::2], level[1::2], strict=True)]
    return level[0]
