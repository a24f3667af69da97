"""What a witness says about the opened chunks of a challenge: a word for each judge, and the bytes of all words of a statement.

The coordinator knows how many words a statement has: one for each judge of each challenge whose stage was attested, in the order
of the challenges. Two words share a byte, the first in the lower half; an odd last half is zero. One list of words has one
encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from psyche_core.errors import WireError


class Word(IntEnum):
    """A witness's word about one judge of one challenge.

    NOTHING: none, for instance because the witness cannot replay the run's optimizer. PASSED: both opened, and the trainer's
    contribution is the judge's gradient; HIGH: the same, with a score above the median threshold. FAILED: both opened, and it is
    not. The others say whose part is missing, or does not fit its root. In the stage SIGNS only the trainer gives something:
    PASSED or TRAINER_MISSING.
    """

    NOTHING = 0
    PASSED = 1
    HIGH = 2
    FAILED = 3
    TRAINER_MISSING = 4
    JUDGE_MISSING = 5
    BOTH_MISSING = 6

    @property
    def trainer_gave(self) -> bool:
        """Whether the witness has the trainer's part."""
        return self in (Word.PASSED, Word.HIGH, Word.FAILED, Word.JUDGE_MISSING)

    @property
    def judge_gave(self) -> bool:
        """Whether the witness has the judge's part."""
        return self in (Word.PASSED, Word.HIGH, Word.FAILED, Word.TRAINER_MISSING)


def encode_words(words: Sequence[Word]) -> bytes:
    """The bytes of a statement's words: half as many, rounded up."""
    padded = [*words, Word.NOTHING]
    return bytes([padded[place] | padded[place + 1] << 4 for place in range(0, len(words), 2)])


def decode_words(data: bytes, *, count: int) -> tuple[Word, ...]:
    """The words of a statement. count: how many there must be. Raises WireError."""
    if len(data) != (count + 1) // 2:
        message = f"{count} words have {(count + 1) // 2} bytes, got {len(data)}"
        raise WireError(message)

    halves = [half for byte in data for half in (byte & 15, byte >> 4)]
    if any(half > Word.BOTH_MISSING for half in halves) or any(halves[count:]):
        message = f"a word is 0 to {Word.BOTH_MISSING.value} and the rest of the last byte is zero, got {data.hex()}"
        raise WireError(message)

    return tuple(Word(half) for half in halves[:count])
