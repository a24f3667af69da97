"""Words travel in half a byte each, in one encoding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.errors import WireError
from psyche_core.verification.words import Word, decode_words, encode_words


@given(st.lists(st.sampled_from(Word), max_size=192))
def test_words_travel_whole(words: list[Word]) -> None:
    data = encode_words(words)
    assert len(data) == (len(words) + 1) // 2
    assert decode_words(data, count=len(words)) == tuple(words)


@given(st.binary(max_size=4), st.integers(0, 8))
def test_strangers_bytes_are_words_or_refused_and_have_one_encoding(data: bytes, count: int) -> None:
    try:
        words = decode_words(data, count=count)
    except WireError:
        return
    assert encode_words(words) == data


@pytest.mark.parametrize(
    ("data", "count", "sentence"),
    [
        (b"\x11", 3, "3 words have 2 bytes, got 1"),
        (b"\x17\x00", 3, "a word is 0 to 6"),
        (b"\x11\x10", 3, "the rest of the last byte is zero"),
    ],
)
def test_what_is_no_list_of_words_says_why(data: bytes, count: int, sentence: str) -> None:
    with pytest.raises(WireError, match=sentence):
        decode_words(data, count=count)


def test_the_first_word_is_the_lower_half() -> None:
    assert encode_words([Word.FAILED, Word.PASSED, Word.HIGH]) == b"\x13\x02"


def test_who_gave_what() -> None:
    trainer = {word for word in Word if word.trainer_gave}
    judge = {word for word in Word if word.judge_gave}
    assert trainer == {Word.PASSED, Word.HIGH, Word.FAILED, Word.JUDGE_MISSING}
    assert judge == {Word.PASSED, Word.HIGH, Word.FAILED, Word.TRAINER_MISSING}
