"""The random words and draws of `chacha`, computed with numpy: the same numbers, about ten times faster.

A draw is a uniform number below a bound. Mostly it consumes one word of the key stream; seldom it needs a second word as a
correction. From there on, every later draw begins one word later. So many draws are computed at once up to the next one that
needs a correction, that one is computed alone, and so on. Imported only if numpy is installed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from psyche_core.data.ordering.chacha import CONSTANTS, DOUBLE_ROUNDS, WORD, key_words, uniform_below

LANES = 4096
"""ChaCha blocks computed together; 16 words each."""

SHORTEST_STRETCH, LONGEST_STRETCH = 64, 1 << 16

_LINE_UP = np.array([[1, 2, 3, 0], [2, 3, 0, 1], [3, 0, 1, 2]])
"""Index orders that turn the diagonals of b, c and d into columns."""

_LINE_BACK = np.argsort(_LINE_UP, axis=1)


class FastWords:
    """The key stream of ChaCha8: single words through an iterator, or many words at once.

    seed: 32 bytes.
    """

    def __init__(self, seed: bytes) -> None:
        self._key = key_words(seed)
        self._next_block = 0
        self._words = np.empty(0, np.uint32)
        self._at = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        word = int(self.peek(1)[0])
        self.skip(1)
        return word

    def peek(self, count: int) -> NDArray[np.uint32]:
        """The next `count` words, without consuming them. uint32, shape (count,)."""
        while self._words.size - self._at < count:
            self._words = np.concatenate([self._words[self._at :], _blocks(self._key, self._next_block)])
            self._next_block += LANES
            self._at = 0

        return self._words[self._at : self._at + count]

    def skip(self, count: int) -> None:
        """Consume `count` words that `peek` returned."""
        self._at += count


def uniform_stretches(bounds: range, words: FastWords) -> Iterator[NDArray[np.uint32]]:
    """One draw below each of `bounds` in order, in arrays whose concatenation has the shape (len(bounds),)."""
    at = 0
    while at < len(bounds):
        usual = 2 * 2**32 // bounds[at]  # a draw needs its correction with probability bound / 2**32
        ahead = bounds[at : at + min(max(usual, SHORTEST_STRETCH), LONGEST_STRETCH)]
        stretch = np.arange(ahead.start, ahead.stop, ahead.step, dtype=np.uint64)
        products = words.peek(len(ahead)) * stretch
        corrected = (products & np.uint64(WORD)) > np.uint64(2**32) - stretch
        good = int(corrected.argmax()) if corrected.any() else len(ahead)

        words.skip(good)
        yield (products[:good] >> np.uint64(32)).astype(np.uint32)
        at += good
        if good < len(ahead):
            yield np.array([uniform_below(bounds[at], words)], np.uint32)
            at += 1


def _blocks(key: tuple[int, ...], first_block: int) -> NDArray[np.uint32]:
    """Words of blocks first_block .. first_block + LANES - 1. Each row of the state is an array (4, LANES)."""
    start = np.zeros((4, 4, LANES), np.uint32)
    start[:3] = np.array([*CONSTANTS, *key], np.uint32).reshape(3, 4, 1)
    start[3, 0] = np.arange(first_block, first_block + LANES, dtype=np.uint64).astype(np.uint32)

    state = list(start.copy())
    for _ in range(DOUBLE_ROUNDS):
        _quarter_rounds(state)
        for turns in (_LINE_UP, _LINE_BACK):
            for row, turn in enumerate(turns, start=1):
                state[row] = state[row][turn]
            if turns is _LINE_UP:
                _quarter_rounds(state)

    return (np.stack(state) + start).reshape(16, LANES).T.ravel()


def _quarter_rounds(state: list[NDArray[np.uint32]]) -> None:
    for target, source, turned, distance in ((0, 1, 3, 16), (2, 3, 1, 12), (0, 1, 3, 8), (2, 3, 1, 7)):
        state[target] = state[target] + state[source]
        mixed = state[turned] ^ state[target]
        state[turned] = mixed << np.uint32(distance) | mixed >> np.uint32(32 - distance)
