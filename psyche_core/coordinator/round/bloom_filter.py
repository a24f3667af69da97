"""The Bloom filter in a witness's statement: which commitments it accepted, in 2560 bits.

Its size and its number of keys are here. The keys come from the round's seed, so a witness cannot choose them. The rate of false
positives stays under 1 % for up to 256 entries (F6). `witness` looks commitments up in the filters of all statements. The size is
part of the statement's form (`wire`), of the canonical image and of the program on chain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

from psyche_core.coordinator.round.committee import CACHE_SIZE
from psyche_core.errors import WireError

BLOOM_BITS = 2560
BLOOM_BYTES = BLOOM_BITS // 8
BLOOM_KEYS = 8

_KEY_DOMAIN = b"psyche/broadcast-bloom/v1"
_FNV_PRIME = 0x100000001B3
_MASK = 2**64 - 1
_LANE = 128
_CACHED_ITEMS = 4096
_CACHED_FILTERS = 256


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


@lru_cache(maxsize=CACHE_SIZE)
def bloom_keys(seed: int) -> tuple[int, ...]:
    """Return the filter's 8 keys (u64) for the round with this seed.

    Key n is the first 8 bytes, as u64 LE, of SHA-256 over domain, seed (u64 LE) and n (1 byte).
    """
    prefix = _KEY_DOMAIN + seed.to_bytes(8, "little")
    return tuple(int.from_bytes(hashlib.sha256(prefix + bytes([number])).digest()[:8], "little") for number in range(BLOOM_KEYS))


@lru_cache(maxsize=_CACHED_FILTERS)
def filter_bits(bloom: bytes) -> int:
    """Return a statement's filter as an integer. Cached, because each filter is tested for every share of a round."""
    return int.from_bytes(bloom, "little")


@lru_cache(maxsize=_CACHED_ITEMS)
def filter_of(seed: int, item: bytes) -> int:
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
        self._bits |= filter_of(self._seed, item)

    def __contains__(self, item: bytes) -> bool:
        mask = filter_of(self._seed, item)
        return self._bits & mask == mask

    def to_bytes(self) -> bytes:
        """Return the 2560 bits as 320 bytes: bit i is bit i % 8 of byte i // 8."""
        return self._bits.to_bytes(BLOOM_BYTES, "little")
