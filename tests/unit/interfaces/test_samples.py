"""What `Samples` hold: tokens, and the optional columns of prepared data."""

from typing import Any

import pytest

from psyche_core.interfaces.data import Samples


def test_columns_are_optional() -> None:
    samples = Samples(bytes(12), 2, 3, 2)

    assert (samples.labels, samples.position_ids, samples.sequence_lengths) == (None, None, None)


def test_all_columns_fit() -> None:
    Samples(bytes(12), 2, 3, 2, labels=bytes(24), position_ids=bytes(24), sequence_lengths=((1, 2), (2,)))
    Samples(b"", 0, 3, 2, labels=b"", position_ids=b"", sequence_lengths=())


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"tokens": bytes(13)}, "2 sequences of 3 tokens of 2 bytes are 12 bytes, got 13"),
        ({"token_size": 3}, "token_size must be 2 or 4 bytes, got 3"),
        ({"labels": bytes(12)}, r"labels of 6 tokens are 24 bytes \(4 each\), got 12"),
        ({"position_ids": bytes(25)}, r"position_ids of 6 tokens are 24 bytes \(4 each\), got 25"),
        ({"sequence_lengths": ((3,),)}, "sequence_lengths has 1 rows, expected one for each of 2 samples"),
        ({"sequence_lengths": ((3,), ())}, "sequence_lengths of sample 1 must be one or more lengths from 1, together at most 3"),
        ({"sequence_lengths": ((0, 3), (3,))}, "sequence_lengths of sample 0"),
        ({"sequence_lengths": ((3,), (2, 2))}, "got 2 lengths, together 4"),
    ],
)
def test_what_does_not_fit_is_refused(columns: dict[str, Any], sentence: str) -> None:
    usual: dict[str, Any] = {"tokens": bytes(12), "count": 2, "sequence_length": 3, "token_size": 2}
    with pytest.raises(ValueError, match=sentence):
        Samples(**(usual | columns))
