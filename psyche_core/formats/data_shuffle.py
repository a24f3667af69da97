"""The seeded shuffle of training sequences: ChaCha8 words drive a forward Fisher-Yates with batched draws.

Decided here: the permutation is the reference's, bit for bit (rand 0.9 `SliceRandom::shuffle` over a ChaCha8 stream whose key
is the seed), so that data prepared for the one trains in the same order with the other. Pure Python on purpose: whoever serves
data needs neither numpy nor torch. Many ChaCha blocks are computed at once, one per 64-bit lane of a big integer.

Refuses more than 2**32 - 2 sequences: beyond that the reference draws differently, and nobody has such a data set.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from psyche_core.errors import DataError

SEED_BYTES = 32
LANES = 1024
"""ChaCha blocks computed together; 16 words each."""

_WORD = 0xFFFFFFFF
_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"
_DOUBLE_ROUNDS = 4
_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))

MAX_SEQUENCES = _WORD - 1


class SeededShuffle(BaseModel):
    """`{Seeded = [32 numbers]}` of a run configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    Seeded: Annotated[tuple[Annotated[int, Field(ge=0, le=255)], ...], Field(min_length=SEED_BYTES, max_length=SEED_BYTES)]


Shuffle = Literal["DontShuffle"] | SeededShuffle
"""A run configuration's `shuffle` key."""


def shuffle_seed(shuffle: Shuffle) -> bytes | None:
    """The 32 seed bytes of a `shuffle` setting, None for "DontShuffle"."""
    return bytes(shuffle.Seeded) if isinstance(shuffle, SeededShuffle) else None


def shuffled_order(count: int, seed: bytes) -> array[int]:
    """The permutation that puts sequence `order[i]` at place i.

    count: number of sequences; seed: 32 bytes. Returns an array of `count` unsigned 32-bit numbers.
    Raises ValueError for a seed of another length, DataError for too many sequences.
    """
    if len(seed) != SEED_BYTES:
        message = f"a shuffle seed has {SEED_BYTES} bytes, got {len(seed)}"
        raise ValueError(message)

    if count > MAX_SEQUENCES:
        message = f"{count} sequences cannot be shuffled (the limit is {MAX_SEQUENCES}); use DontShuffle or split the data set"
        raise DataError(message)

    order = array("I", range(count))
    for place, other in enumerate(_swap_partners(count, chacha8_words(seed))):
        order[place], order[other] = order[other], order[place]

    return order


def _swap_partners(count: int, words: Iterator[int]) -> Iterator[int]:
    """For each place 0..count-1 the place 0..place it is swapped with; one draw serves as many places as fit in 32 bits."""
    if count:
        yield 0

    size = 2  # choices at the next place
    while size <= count:
        bound, served = size, 1
        while bound * (size + served) <= _WORD:
            bound *= size + served
            served += 1

        chunk = _uniform_below(bound, words)
        stop = min(size + served, count + 1)
        while size < stop:
            served -= 1
            if served:
                chunk, partner = divmod(chunk, size)
                yield partner
            else:
                yield chunk
            size += 1


def _uniform_below(bound: int, words: Iterator[int]) -> int:
    """An unbiased-enough number below `bound` (Canon's method with one correction word, as rand 0.9 samples u32)."""
    product = next(words) * bound
    high, low = product >> 32, product & _WORD
    if low > 2**32 - bound:
        correction = next(words) * bound >> 32
        if low + correction > _WORD:
            high += 1

    return high


def chacha8_words(seed: bytes, *, lanes: int = LANES) -> Iterator[int]:
    """The stream of 32-bit words of ChaCha with 8 rounds: key = seed, block counter from 0, stream 0 (RFC 8439's core).

    seed: 32 bytes. lanes: blocks computed together (speed only, the words are the same). The first 2**36 words are right, which
    is more than the largest shuffle draws; only the lower half of the 64-bit counter is computed.
    """
    key = tuple(int.from_bytes(seed[at : at + 4], "little") for at in range(0, SEED_BYTES, 4))
    first_block = 0
    while True:
        yield from _blocks(key, first_block, lanes)
        first_block += lanes


def _blocks(key: tuple[int, ...], first_block: int, lanes: int) -> array[int]:
    """Words of blocks first_block .. first_block + lanes - 1. Lane l (bits 64l .. 64l+31) of every integer belongs to block l."""
    ones = int.from_bytes(array("Q", [1]) * lanes, "little")
    mask = ones * _WORD
    counters = int.from_bytes(array("Q", range(first_block, first_block + lanes)), "little")
    start = [ones * word for word in (*_CONSTANTS, *key)] + [counters, 0, 0, 0]

    state = list(start)
    for _ in range(_DOUBLE_ROUNDS):
        for quarter in (*_COLUMNS, *_DIAGONALS):
            _quarter_round(state, quarter, mask)

    words = array("I", bytes(64 * lanes))
    for index, (value, initial) in enumerate(zip(state, start, strict=True)):
        lane_words = array("I")
        lane_words.frombytes(((value + initial) & mask).to_bytes(8 * lanes, "little"))
        words[index::16] = lane_words[::2]

    return words


def _quarter_round(state: list[int], quarter: tuple[int, int, int, int], mask: int) -> None:
    a, b, c, d = quarter
    for target, source, turned, distance in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        state[target] = (state[target] + state[source]) & mask
        shifted = (state[turned] ^ state[target]) << distance
        state[turned] = (shifted | shifted >> 32) & mask  # what left the lane's lower half comes back at its bottom
