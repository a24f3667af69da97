"""Contract of a data provider: numbered training sequences.

A sample is one sequence of exactly `sequence_length` token ids. Sample numbers count over the whole run; what a provider does
past its end is fixed here: it wraps around (`index mod num_sequences`), so that every member reads the same tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from psyche_core.types import BatchId


@dataclass(frozen=True, slots=True)
class Samples:
    """Raw tokens: `count` sequences of `sequence_length` tokens, row by row.

    tokens: little-endian unsigned integers of `token_size` bytes each; len(tokens) == count * sequence_length * token_size.
    """

    tokens: bytes
    count: int
    sequence_length: int
    token_size: int

    def __post_init__(self) -> None:
        if self.token_size not in (2, 4):
            message = f"token_size must be 2 or 4 bytes, got {self.token_size}"
            raise ValueError(message)

        expected = self.count * self.sequence_length * self.token_size
        if len(self.tokens) != expected:
            message = (
                f"{self.count} sequences of {self.sequence_length} tokens of {self.token_size} bytes are {expected} bytes, "
                f"got {len(self.tokens)}"
            )
            raise ValueError(message)


class DataProvider(ABC):
    """Reads samples by number. An async context manager: entering opens files or connections.

    Guaranteed: the same number gives the same tokens to everybody; a batch that cannot be read raises DataError and is never
    shortened or skipped. Not guaranteed: speed of the first read, or that two reads may run at once (callers serialise).
    """

    @property
    @abstractmethod
    def sequence_length(self) -> int:
        """Tokens per sample."""

    @property
    @abstractmethod
    def num_sequences(self) -> int:
        """Distinct samples, at least 1. Valid after entering."""

    @abstractmethod
    async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
        """The samples of the intervals in order, concatenated. Raises DataError, TimeoutError."""

    @abstractmethod
    async def aclose(self) -> None:
        """Release files and connections; idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
