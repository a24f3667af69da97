"""Samples become ids, targets and positions."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.errors import ModelError
from psyche_core.interfaces.data import IGNORED_LABEL, Samples
from psyche_core.models.hf.batches import Batch, read_batch


def row(length: int, **more: Any) -> Samples:
    """One row of ids 0, 1, 2, …"""
    return Samples(struct.pack(f"<{length}H", *range(length)), 1, length, 2, **more)


def read(samples: Samples, *, vocab_size: int = 100, max_seq_len: int = 100) -> Batch:
    return read_batch(samples, vocab_size=vocab_size, max_seq_len=max_seq_len)


def test_plain_rows_predict_every_token_but_the_first() -> None:
    batch = read(row(5))
    assert batch.targets.tolist() == [[1, 2, 3, 4]]
    assert (batch.predictions, batch.positions, batch.packed) == (4, None, False)


def test_labels_decide_what_is_predicted() -> None:
    batch = read(row(5, labels=struct.pack("<5i", 0, IGNORED_LABEL, 7, 8, IGNORED_LABEL)))
    assert batch.targets.tolist() == [[IGNORED_LABEL, 7, 8, IGNORED_LABEL]]
    assert batch.predictions == 2


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 7), st.booleans())
def test_each_text_predicts_all_its_tokens_but_the_first(lengths: list[int], padding: int, tells_positions: bool) -> None:
    total = sum(lengths) + padding
    if total < 2:
        return

    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    expected = [
        place
        for place in range(1, total)
        if any(start < place < start + length for start, length in zip(starts, lengths, strict=True))
    ]
    counting = [place for length in lengths for place in range(length)] + [0] * padding
    positions = struct.pack(f"<{total}I", *counting) if tells_positions else None
    samples = row(total, sequence_lengths=(tuple(lengths),), position_ids=positions)
    if not expected:
        with pytest.raises(ModelError, match="has a token to predict"):
            read(samples)
        return

    batch = read(samples)
    assert [place for place in range(1, total) if batch.targets[0, place - 1] != IGNORED_LABEL] == expected
    if batch.positions is not None:
        assert batch.positions[0, : sum(lengths)].tolist() == counting[: sum(lengths)]
    assert batch.packed or len(lengths) == 1


def test_positions_that_start_again_begin_another_text() -> None:
    batch = read(row(6, position_ids=struct.pack("<6I", 0, 1, 2, 0, 1, 2)))
    assert batch.targets.tolist() == [[1, 2, IGNORED_LABEL, 4, 5]]
    assert batch.packed


def test_positions_may_start_anywhere() -> None:
    batch = read(row(3, position_ids=struct.pack("<3I", 4, 5, 6)))
    assert batch.positions is not None
    assert (batch.positions.tolist(), batch.predictions, batch.packed) == ([[4, 5, 6]], 2, False)


def test_counting_positions_are_as_good_as_none() -> None:
    assert read(row(3, position_ids=struct.pack("<3I", 0, 1, 2))).positions is None


def test_parts_hold_the_rows_in_order() -> None:
    samples = Samples(struct.pack("<10H", *range(10)), 5, 2, 2, position_ids=struct.pack("<10I", *[3, 4] * 5))
    parts = list(read(samples).split(2))
    assert [part.ids[:, 0].tolist() for part in parts] == [[0, 2], [4, 6], [8]]
    assert [part.predictions for part in parts] == [2, 2, 1]
    assert all(part.positions is not None and part.positions.shape == part.ids.shape for part in parts)


@pytest.mark.parametrize(
    ("samples", "sentence"),
    [
        (row(5, labels=struct.pack("<5i", *[IGNORED_LABEL] * 5)), "none of 1 sequences has a token to predict"),
        (row(2, sequence_lengths=((1, 1),)), "none of 1 sequences has a token to predict"),
        (row(5, labels=struct.pack("<5i", 0, 1, 100, 3, 4)), "label 100 is outside the model's vocabulary of 100"),
        (row(5, labels=struct.pack("<5i", 0, 1, -1, 3, 4)), "label -1 is outside the model's vocabulary of 100"),
        (row(3, position_ids=struct.pack("<3I", 0, 1, 100)), "position 100 is beyond the run's sequences of 100 tokens"),
        (row(3, position_ids=struct.pack("<3I", 0, 1, 2**32 - 1)), "position 4294967295 is beyond"),
        (
            row(4, sequence_lengths=((2, 2),), position_ids=struct.pack("<4I", 0, 1, 2, 3)),
            "position_ids of sample 0 do not restart at 0 where its sequence_lengths say that another text begins",
        ),
        (row(101), "2 to 100 tokens"),
        (Samples(b"", 0, 5, 2), "at least one sequence"),
        (Samples(struct.pack("<2I", 1, 2**32 - 1), 1, 2, 4), "token id 4294967295"),
    ],
)
def test_samples_that_do_not_fit_are_refused(samples: Samples, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        read(samples)
