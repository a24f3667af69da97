"""The `Dummy` data location: zeros, for runs that test everything but training data.

Sequences have the run's length (the reference implementation always returned 2048 tokens), with two bytes per token. All samples
are equal, so there is one distinct sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import anyio
import anyio.lowlevel

from psyche_core.hookspecs import DataContext
from psyche_core.interfaces.data import DataProvider, Samples
from psyche_core.types import BatchId, total_samples

_TOKEN_SIZE = 2


class DummyData(DataProvider):
    """Sequences of zeros. sequence_length: tokens per sample."""

    def __init__(self, *, sequence_length: int) -> None:
        self._sequence_length = sequence_length

    @classmethod
    def from_context(cls, context: DataContext) -> Self:
        """The provider for a run configuration."""
        return cls(sequence_length=context.sequence_length)

    @property
    def sequence_length(self) -> int:
        """Tokens per sample."""
        return self._sequence_length

    @property
    def num_sequences(self) -> int:
        """One: all samples are the same zeros."""
        return 1

    async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
        """Zeros for every sample of the intervals. Raises TimeoutError only if `timeout` leaves no time at all."""
        with anyio.fail_after(timeout):
            await anyio.lowlevel.checkpoint()

        count = total_samples(tuple(batches))
        return Samples(bytes(count * self._sequence_length * _TOKEN_SIZE), count, self._sequence_length, _TOKEN_SIZE)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""
