"""ChaCha8 as a stream of random words, and numbers drawn from it, equal to those of the reference implementation (rand 0.9).

Pure Python, so that a data server needs neither numpy nor torch; many ChaCha blocks are computed at once, one per 64-bit lane of
a big integer. `fast_draws` computes the same numbers with numpy, several times faster.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

SEED_BYTES = 32
LANES = 1024
"""ChaCha blocks computed together; 16 words each."""

WORD = 0xFFFFFFFF
"""The largest 32-bit word."""

CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
"""`expand 32-byte k`"""

DOUBLE_ROUNDS = 4

_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def key_words(seed: bytes) -> tuple[int, ...]:
    """The seed as the eight words of a ChaCha key. Raises ValueError if it does not have 32 bytes."""
    if len(seed) != SEED_BYTES:
        message = f"a shuffle seed has {SEED_BYTES} bytes, got {len(seed)}"
        raise ValueError(message)

    return tuple(int.from_bytes(seed[at : at + 4], "little") for at in range(0, SEED_BYTES, 4))


def chacha8_words(seed: bytes, *, lanes: int = LANES) -> Iterator[int]:
    """The stream of 32-bit words of ChaCha with 8 rounds: key = seed, block counter from 0, stream 0 (RFC 8439's core).

    seed: 32 bytes. lanes: blocks computed together; affects only the speed. The first 2**36 words are correct, which is more
    than the largest shuffle needs: only the lower half of the 64-bit counter is computed.
    """
    key = key_words(seed)
    first_block = 0
    while True:
        yield from _blocks(key, first_block, lanes)
        first_block += lanes


def uniform_below(bound: int, words: Iterator[int]) -> int:
    """A number below `bound` with negligible bias (Canon's method with one correction word, as rand 0.9 samples u32)."""
    product = next(words) * bound
    high, low = product >> 32, product & WORD
    if low > 2**32 - bound:
        correction = next(words) * bound >> 32
        if low + correction > WORD:
            high += 1

    return high


def _blocks(key: tuple[int, ...], first_block: int, lanes: int) -> array[int]:
    """Words of blocks first_block .. first_block + lanes - 1. Lane l (bits 64l .. 64l+31) of every integer belongs to block l."""
    ones = int.from_bytes(array("Q", [1]) * lanes, "little")
    mask = ones * WORD
    counters = int.from_bytes(array("Q", range(first_block, first_block + lanes)), "little")
    start = [ones * word for word in (*CONSTANTS, *key)] + [counters, 0, 0, 0]

    state = list(start)
    for _ in range(DOUBLE_ROUNDS):
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
        state[turned] = (shifted | shifted >> 32) & mask  # bits shifted out of the lane's lower half return at its low end
