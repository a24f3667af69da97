"""What witness statements say together: quorum, acceptance, the commitments' bloom filter and Merkle root.

Quorum is two thirds, rounded up, of the *elected* witnesses (F5). The filter's keys come from the round's seed, and its 2560 bits
keep 256 entries under 1 % false positives (F6). Consensus does not depend on the order of arrival (F7).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from psyche_core.coordinator.assignment import shares
from psyche_core.coordinator.committee import REMEMBERED, witness_slots
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
    """Statements needed among `elected` witnesses: two thirds, rounded up (F5); 0 for none elected."""
    return -(-2 * elected // 3)


def accepted_slots(state: CoordinatorState, round_: Round, *, without: int | None = None) -> frozenset[int]:
    """Slots whose result of `round_` a quorum of the next round's elected witnesses saw; empty before any statement.

    without: a slot whose statement is left out, to see whether the others would have been enough.
    """
    attesting = state.round_at(round_.height + 1)
    if attesting is None or not attesting.statements:
        return frozenset()

    needed = quorum(len(witness_slots(state, attesting)))
    seen = _seen_by(needed, [statement.participants for statement in attesting.statements if statement.index != without])
    return frozenset([slot for slot in shares(state, round_) if seen >> slot & 1 and slot not in round_.voided])


def _seen_by(needed: int, bitmaps: Sequence[bytes]) -> int:
    """The bits (slots) set in at least `needed` of the bitmaps, all of them counted at once."""
    if not bitmaps:
        return 0
    if len(bitmaps) >= needed > 0 and bitmaps.count(bitmaps[0]) == len(bitmaps):
        return int.from_bytes(bitmaps[0], "little")  # all saw the same, as they mostly do

    at_least = [-1] + [0] * needed
    for bitmap in bitmaps:
        bits = int.from_bytes(bitmap, "little")
        for count in range(needed, 0, -1):
            at_least[count] |= at_least[count - 1] & bits
    return at_least[needed]


def tolerated(elected: int) -> int:
    """Lying witnesses a draw of `elected` can bear: as many as leave a quorum of others."""
    return elected - quorum(elected)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be applied for an accepted slot. chosen: a commitment; void: none can have been agreed on, by anybody.

    Neither: the one agreed on is not among the candidates, so it has to be learned.
    """

    chosen: bytes | None = None
    void: bool = False


def judge(state: CoordinatorState, round_: Round, slot: int, candidates: Iterable[bytes]) -> Verdict:
    """What the next round's witnesses say together about the share of `slot`, an accepted one, in `round_`.

    candidates: commitments (32 bytes) signed for that share, in any order. A statement that saw the slot votes for each candidate
    in its filter; an honest one has exactly one there. With at most `tolerated` liars, the commitment of a trainer that signed
    one result is in all those filters but theirs, so that is what a candidate needs; most votes win, ties go to the smallest.
    Where nobody reaches that and the statements that none of the candidates explains are too few for an unknown one to reach it,
    the trainer divided the witnesses and the share is void.
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
    """The commitment that `judge` chooses, None without one."""
    return judge(state, round_, slot, candidates).chosen


def bloom_positions(keys: Sequence[int], item: bytes, bits: int) -> list[int]:
    """Bit of each key for an item: 64-bit FNV-1a with the key as initial state, modulo `bits`. Source: reference 3.7."""
    # All keys at once, each in 128 bits of one large integer: a 64-bit state times the 41-bit prime does not reach its neighbour.
    ones, kept = _lanes(len(keys))
    states = sum(key << _LANE * place for place, key in enumerate(keys))
    for byte in item:
        states = (states ^ ones * byte) * _FNV_PRIME & kept
    return [(states >> _LANE * place & _MASK) % bits for place in range(len(keys))]


@lru_cache(maxsize=8)
def _lanes(count: int) -> tuple[int, int]:
    """A one in each of so many lanes, and the mask of their states."""
    ones = sum(1 << _LANE * place for place in range(count))
    return ones, ones * _MASK


@lru_cache(maxsize=REMEMBERED)
def bloom_keys(seed: int) -> tuple[int, ...]:
    """The filter's 8 keys (u64) in the round with this seed: SHA-256(domain, seed as u64 LE, number), first 8 bytes LE."""
    prefix = _KEY_DOMAIN + seed.to_bytes(8, "little")
    return tuple(int.from_bytes(hashlib.sha256(prefix + bytes([number])).digest()[:8], "little") for number in range(BLOOM_KEYS))


@lru_cache(maxsize=_REMEMBERED_FILTERS)
def _bits(bloom: bytes) -> int:
    """A statement's filter as an integer. Remembered: each is asked about every share of a round."""
    return int.from_bytes(bloom, "little")


@lru_cache(maxsize=_REMEMBERED_ITEMS)
def _mask(seed: int, item: bytes) -> int:
    """The filter that holds this item only, as an integer. Remembered: an item is put in once and asked for in many filters."""
    mask = 0
    for position in bloom_positions(bloom_keys(seed), item, BLOOM_BITS):
        mask |= 1 << position
    return mask


class BroadcastBloom:
    """Filter over commitment hashes. seed: of the round in which the statement is sent, never the witness's choice."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._bits = 0

    @classmethod
    def from_bytes(cls, seed: int, data: bytes) -> BroadcastBloom:
        """The filter whose bits are `data`. Raises WireError unless those are 320 bytes."""
        if len(data) != BLOOM_BYTES:
            message = f"expected a filter of {BLOOM_BYTES} bytes, got {len(data)}"
            raise WireError(message)

        bloom = cls(seed)
        bloom._bits = int.from_bytes(data, "little")
        return bloom

    def add(self, item: bytes) -> None:
        """Put an item in."""
        self._bits |= _mask(self._seed, item)

    def __contains__(self, item: bytes) -> bool:
        mask = _mask(self._seed, item)
        return self._bits & mask == mask

    def to_bytes(self) -> bytes:
        """The 2560 bits, bit i being bit i % 8 of byte i // 8."""
        return self._bits.to_bytes(BLOOM_BYTES, "little")


@lru_cache(maxsize=_REMEMBERED_STATEMENTS)
def statements_digest(statements: tuple[WitnessStatement, ...]) -> bytes:
    """SHA-256 over a round's statements, as canonical CBOR, ascending by slot: what a journal keeps of them."""
    fields = [
        [said.epoch, said.height, said.index, said.participants, said.broadcast_bloom, said.merkle_root, said.model_digest]
        for said in sorted(statements, key=lambda said: said.index)
    ]
    return hashlib.sha256(encode(fields)).digest()


def merkle_root(items: Sequence[bytes]) -> bytes:
    """Root over the items in this order; 32 zero bytes for none.

    Leaf SHA-256(0x00, item), node SHA-256(0x01, left, right), an odd last node is paired with itself (reference 3.8). Sort the
    items first: equal sets must give equal roots (F6).
    """
    if not items:
        return EMPTY_ROOT

    level = [hashlib.sha256(b"\x00" + item).digest() for item in items]
    while len(level) > 1:
        if len(level) % 2:
            level.append(level[-1])
        level = [hashlib.sha256(b"\x01" + left + right).digest() for left, right in zip(level[::2], level[1::2], strict=True)]
    return level[0]
