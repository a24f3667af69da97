"""Converts samples to tensors: token ids, labels to predict, and positions.

- The tokens before index i predict label i. The first token of a text (of a row, or of a text packed into a row), padding, and
  labels of -100 are not predicted. So packed texts give the same loss and gradient as separate texts.
- The model recognises texts packed in one row only by their positions: if a position is not the previous one plus 1, another text
  begins. transformers then uses block-diagonal attention.

Samples that do not fit the model raise ModelError: ids outside its vocabulary, sequences or positions beyond the run's length, or
no token to predict.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from psyche_core.errors import ModelError
from psyche_core.interfaces.data import IGNORED_LABEL, Samples


@dataclass(frozen=True, slots=True)
class Batch:
    """B sequences of T tokens on the CPU, int64.

    ids: (B, T). targets: (B, T - 1), the label of index i + 1, or IGNORED_LABEL. positions: (B, T), None for 0, 1, 2, … in every
    row. packed: whether some row contains several texts.
    """

    ids: torch.Tensor
    targets: torch.Tensor
    positions: torch.Tensor | None
    packed: bool

    @property
    def count(self) -> int:
        """Number of sequences B."""
        return int(self.ids.shape[0])

    @property
    def predictions(self) -> int:
        """Number of predicted tokens."""
        return int((self.targets != IGNORED_LABEL).sum())

    def split(self, size: int) -> Iterator[Batch]:
        """Yield parts of `size` sequences; the last one may be smaller."""
        for start in range(0, self.count, size):
            rows = slice(start, start + size)
            positions = None if self.positions is None else self.positions[rows]
            yield Batch(self.ids[rows], self.targets[rows], positions, self.packed)


def read_batch(samples: Samples, *, vocab_size: int, max_seq_len: int) -> Batch:
    """Return samples as a batch. Raises ModelError if they do not fit the model. max_seq_len: in tokens."""
    if samples.count < 1 or not 2 <= samples.sequence_length <= max_seq_len:
        message = (
            f"a batch needs at least one sequence of 2 to {max_seq_len} tokens, got {samples.count} of {samples.sequence_length}"
        )
        raise ModelError(message)

    ids = _table(samples, samples.tokens, f"<u{samples.token_size}")  # (B, T)
    _check_ids(ids, vocab_size, what="token id")
    labels = ids if samples.labels is None else _table(samples, samples.labels, "<i4")  # (B, T)
    if samples.labels is not None:
        _check_ids(labels[labels != IGNORED_LABEL], vocab_size, what="label")
    positions = _positions(samples, max_seq_len=max_seq_len)  # (B, T) or None
    if positions is None:
        return _batch(ids, labels[:, 1:], None, packed=False)

    breaks = np.diff(positions, axis=1) != 1  # (B, T - 1): position i + 1 is not position i plus 1
    targets = np.where(breaks | _padding(samples)[:, 1:], IGNORED_LABEL, labels[:, 1:])
    return _batch(ids, targets, positions, packed=bool(breaks.any()))


def _batch(ids: NDArray[np.int64], targets: NDArray[np.int64], positions: NDArray[np.int64] | None, *, packed: bool) -> Batch:
    plain = positions is None or bool((positions == np.arange(ids.shape[1])).all())
    batch = Batch(
        torch.from_numpy(ids),
        torch.from_numpy(np.ascontiguousarray(targets)),
        None if plain else torch.from_numpy(positions),
        packed,
    )
    if batch.predictions == 0:
        message = f"none of {batch.count} sequences has a token to predict: every label is {IGNORED_LABEL}"
        raise ModelError(message)
    return batch


def _table(samples: Samples, column: bytes, dtype: str) -> NDArray[np.int64]:
    """Return the raw values of a column in the shape of the tokens (B, T)."""
    return np.frombuffer(column, dtype=dtype).astype(np.int64).reshape(samples.count, samples.sequence_length)


def _check_ids(ids: NDArray[np.int64], vocab_size: int, *, what: str) -> None:
    for worst in (int(ids.max(initial=0)), int(ids.min(initial=0))):
        if not 0 <= worst < vocab_size:
            message = f"{what} {worst} is outside the model's vocabulary of {vocab_size}; was the data made for this model?"
            raise ModelError(message)


def _positions(samples: Samples, *, max_seq_len: int) -> NDArray[np.int64] | None:
    """Return each token's position in its own text (B, T), or None if the samples contain no information about positions."""
    if samples.position_ids is None and samples.sequence_lengths is None:
        return None
    if samples.position_ids is None:
        return np.stack([_counting(lengths, samples.sequence_length) for lengths in _texts(samples)])

    positions = _table(samples, samples.position_ids, "<u4")
    if int(positions.max()) >= max_seq_len:
        message = f"position {int(positions.max())} is beyond the run's sequences of {max_seq_len} tokens"
        raise ModelError(message)
    for row, lengths in enumerate(_texts(samples)):
        starts = np.cumsum(lengths)[:-1]  # start of every text except the first
        if bool((positions[row, starts] == positions[row, starts - 1] + 1).any()):
            message = f"position_ids of sample {row} do not restart at 0 where its sequence_lengths say that another text begins"
            raise ModelError(message)
    return positions


def _texts(samples: Samples) -> tuple[tuple[int, ...], ...]:
    """Return the lengths of the texts in each row."""
    return samples.sequence_lengths or ((samples.sequence_length,),) * samples.count


def _counting(lengths: tuple[int, ...], total: int) -> NDArray[np.int64]:
    """Return 0, 1, 2, … for each text, and for the padding after them."""
    parts = (*lengths, total - sum(lengths))
    return np.concatenate([np.arange(part, dtype=np.int64) for part in parts])


def _padding(samples: Samples) -> NDArray[np.bool_]:
    """Return a mask (B, T) of the padding after the last text of each row."""
    filled = np.array([sum(lengths) for lengths in _texts(samples)])
    result: NDArray[np.bool_] = np.arange(samples.sequence_length) >= filled[:, None]
    return result
