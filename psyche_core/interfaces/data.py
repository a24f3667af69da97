"""Contract of a data provider: numbered training sequences.

A sample is one sequence of exactly `sequence_length` token ids. Sample numbers count over the whole run. Past its end a provider
must wrap around (`index mod num_sequences`), so that every member reads the same tokens.

Plain text needs tokens alone. Prepared conversations may also say which tokens to predict (`labels`), and where in a row one of
several packed texts ends and the next begins (`position_ids`, `sequence_lengths`). Absent fields cost nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from anyio.abc import AsyncResource

from psyche_core.types import BatchId

IGNORED_LABEL = -100
"""The label of a token that is not predicted: it has neither loss nor gradient."""

LABEL_BYTES = 4
POSITION_BYTES = 4


@dataclass(frozen=True, slots=True)
class Samples:
    """Raw tokens: `count` sequences of `sequence_length` tokens, row by row.

    Attributes:
        tokens: little-endian unsigned integers of `token_size` bytes each; len(tokens) == count * sequence_length * token_size.
        labels: None, or little-endian int32 in the shape of the tokens, ALIGNED with them: labels[i] is token i itself or
            IGNORED_LABEL. The model shifts them itself (the tokens before position i predict labels[i]), and ignored positions
            have neither loss nor gradient. None means every token is its own label.
        position_ids: None, or little-endian unsigned 32-bit integers in the shape of the tokens: each token's position in its own
            text. None means 0, 1, 2, ….
        sequence_lengths: None, or for each sample the lengths in tokens of the texts packed in its row, from the left. Each
            length is at least 1, and their sum at most sequence_length (the rest of the row is padding). Tokens of one text do
            not attend to those of another. None means that every row is one text.
    """

    tokens: bytes
    count: int
    sequence_length: int
    token_size: int
    labels: bytes | None = None
    position_ids: bytes | None = None
    sequence_lengths: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        if self.token_size not in (2, 4):
            message = f"token_size must be 2 or 4 bytes, got {self.token_size}"
            raise ValueError(message)

        places = self.count * self.sequence_length
        if len(self.tokens) != places * self.token_size:
            message = (
                f"{self.count} sequences of {self.sequence_length} tokens of {self.token_size} bytes are "
                f"{places * self.token_size} bytes, got {len(self.tokens)}"
            )
            raise ValueError(message)

        for name, column, size in (("labels", self.labels, LABEL_BYTES), ("position_ids", self.position_ids, POSITION_BYTES)):
            if column is not None and len(column) != places * size:
                message = f"{name} of {places} tokens are {places * size} bytes ({size} each), got {len(column)}"
                raise ValueError(message)

        if self.sequence_lengths is not None:
            self._check_sequence_lengths(self.sequence_lengths)

    def _check_sequence_lengths(self, rows: tuple[tuple[int, ...], ...]) -> None:
        if len(rows) != self.count:
            message = f"sequence_lengths has {len(rows)} rows, expected one for each of {self.count} samples"
            raise ValueError(message)

        for number, lengths in enumerate(rows):
            if not lengths or min(lengths) < 1 or sum(lengths) > self.sequence_length:
                message = (
                    f"sequence_lengths of sample {number} must be one or more lengths from 1, together at most "
                    f"{self.sequence_length}; got {len(lengths)} lengths, together {sum(lengths)}"
                )
                raise ValueError(message)


class DataProvider(AsyncResource):
    """Reads samples by number. It is an async context manager: entering it opens files or connections.

    Guaranteed: the same number gives the same tokens to every member; a batch that cannot be read raises DataError and is never
    shortened or skipped. The client checks that it received exactly the samples it asked for, and trains on nothing else. Not
    guaranteed: the speed of the first read, or that two reads may run at the same time (callers serialise them).
    """

    @property
    @abstractmethod
    def sequence_length(self) -> int:
        """Tokens per sample."""

    @property
    @abstractmethod
    def num_sequences(self) -> int:
        """Number of distinct samples, at least 1. Valid after entering."""

    @abstractmethod
    async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
        """Read the samples of all intervals, concatenated in order. timeout: seconds. Raises DataError, TimeoutError."""

    @abstractmethod
    async def aclose(self) -> None:
        """Release files and connections; idempotent."""
