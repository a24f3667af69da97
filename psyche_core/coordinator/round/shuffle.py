"""Seeded permutations: the swap-or-not index shuffle (elections) and the LCG Fisher-Yates shuffle (assignment).

Both give exactly the results of the reference implementation. They are not secret: everybody who knows the seed knows the order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TypeVar

ROUNDS = 90
_BLOCK_POSITIONS = 256
_NUMBERS = [bytes([number]) for number in range(ROUNDS)]
_MASK = 2**64 - 1
_MULTIPLIER = 6364136223846793005
_INCREMENT = 1442695040888963407

_Item = TypeVar("_Item")


def shuffled_index(index: int, count: int, seed: bytes) -> int:
    """Return the position of `index` among `count` after the swap-or-not shuffle, the shuffle of Ethereum's beacon chain.

    seed: 32 bytes. Raises ValueError unless 0 <= index < count.
    """
    if not 0 <= index < count:
        message = f"expected an index below the count of {count}, got {index}"
        raise ValueError(message)

    for number in range(ROUNDS):
        flip = (_pivot(seed, number, count) - index) % count
        higher = max(index, flip)
        if _bit(_block(seed, number, higher // _BLOCK_POSITIONS), higher):
            index = flip
    return index


def shuffled_order(count: int, seed: bytes) -> list[int]:
    """Return all indices below `count`, ordered by their `shuffled_index`. seed: 32 bytes.

    Each round of the shuffle forms pairs of positions and swaps some of the pairs. This function shuffles all positions together,
    so in each round it hashes each block and visits each pair only once.
    """
    order = list(range(count))
    last = count - 1
    for number in range(ROUNDS if count else 0):
        pivot = _pivot(seed, number, count)
        if last < _BLOCK_POSITIONS:
            swaps = int.from_bytes(_block(seed, number, 0), "little")
        else:
            blocks = [_block(seed, number, block) for block in range(last // _BLOCK_POSITIONS + 1)]
            swaps = int.from_bytes(b"".join(blocks), "little")
        for higher in range(pivot, pivot // 2, -1):
            if swaps >> higher & 1:
                lower = pivot - higher
                order[lower], order[higher] = order[higher], order[lower]
        for higher in range(last, (pivot + 1 + last) // 2, -1):
            if swaps >> higher & 1:
                lower = pivot + 1 + last - higher
                order[lower], order[higher] = order[higher], order[lower]
    return order


def shuffled_positions(count: int, seed: bytes) -> list[int]:
    """Return the `shuffled_index` of every index below `count`. seed: 32 bytes."""
    positions = [0] * count
    for position, index in enumerate(shuffled_order(count, seed)):
        positions[index] = position
    return positions


def _pivot(seed: bytes, number: int, count: int) -> int:
    return int.from_bytes(hashlib.sha256(seed + _NUMBERS[number]).digest()[:8], "little") % count


def _block(seed: bytes, number: int, block: int) -> bytes:
    return hashlib.sha256(seed + _NUMBERS[number] + (block & 0xFFFFFFFF).to_bytes(4, "little")).digest()


def _bit(block: bytes, position: int) -> int:
    return block[position % _BLOCK_POSITIONS // 8] >> (position % 8) & 1


class Lcg:
    """The 64-bit linear congruential generator of the assignment shuffle. seed: u64, the state before the first output."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def next_u64(self) -> int:
        """Return the next output, which is also the new state."""
        self._state = (self._state * _MULTIPLIER + _INCREMENT) & _MASK
        return self._state

    def below(self, bound: int) -> int:
        """Return the next output modulo `bound`: slightly biased, as in the reference implementation."""
        return self.next_u64() % bound


def deterministic_shuffle(items: Iterable[_Item], seed: int) -> list[_Item]:
    """Return a new list with the items in Fisher-Yates order, drawn from `Lcg(seed)` as in the reference implementation."""
    shuffled = list(items)
    generator = Lcg(seed)
    for last in range(len(shuffled) - 1, 0, -1):
        other = generator.below(last + 1)
        shuffled[last], shuffled[other] = shuffled[other], shuffled[last]
    return shuffled
