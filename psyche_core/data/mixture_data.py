"""A data provider that mixes others by weight.

Any providers with one sequence length can be mixed, in the order of `MixtureIndex`. One read calls every source once, all at the
same time. If sources differ in the form of their samples, the richer form is used, so that nothing is lost: tokens of two bytes
are widened to four, and labels, positions and lengths that only some sources have are written out for the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Self

import anyio
import anyio.to_thread

from psyche_core.data.ordering.mixture import MixtureIndex, grouped
from psyche_core.data.sample_rows import picked
from psyche_core.errors import DataError
from psyche_core.interfaces.data import DataProvider, Samples
from psyche_core.types import BatchId


class MixtureData(DataProvider):
    """Samples of several providers in the order of a mixture. Owns the sources: entering enters them, closing closes them.

    sources: providers not yet entered, all of one sequence length. Each is entered in a separate task, so none of them may keep
    a task group or cancel scope open between entering and closing. weights: a positive number per source; None for weights
    proportional to their numbers of sequences. seed: 32 bytes to shuffle with, None for the order of drawing.
    Raises DataError if there is no source, sequence lengths differ or weights are invalid. Entering raises the errors of the
    sources, and DataError if the sources together are empty or too long.
    """

    def __init__(
        self, sources: Sequence[DataProvider], *, weights: Sequence[float] | None = None, seed: bytes | None = None
    ) -> None:
        lengths = sorted({source.sequence_length for source in sources})
        if len(lengths) != 1:
            message = f"a mixture needs sources of one sequence length, got {lengths or 'no sources'}"
            raise DataError(message)

        self._sequence_length = lengths[0]
        self._sources = tuple(sources)
        self._weights = weights
        self._seed = seed
        self._index: MixtureIndex | None = None

    @property
    def sequence_length(self) -> int:
        """Tokens per sample."""
        return self._sequence_length

    @property
    def num_sequences(self) -> int:
        """Number of samples of all sources together. Valid while entered."""
        return len(self._entered)

    async def __aenter__(self) -> Self:
        try:
            await _together([source.__aenter__ for source in self._sources])
            lengths = [source.num_sequences for source in self._sources]
            make_index = partial(MixtureIndex, lengths, self._weights, shuffle_seed=self._seed)
            self._index = await anyio.to_thread.run_sync(make_index, abandon_on_cancel=True)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.aclose()
            raise

        return self

    async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
        """The samples of the intervals in order, concatenated. Raises DataError, TimeoutError."""
        index = self._entered
        places = [index.locate(number) for batch in batches for number in range(batch.first, batch.last + 1)]
        wanted = grouped(places) or {0: []}  # for an empty read, the first source determines the form
        parts: dict[int, Samples] = {}

        async def fetch(source: int, samples: list[int]) -> None:
            parts[source] = await self._sources[source].read(_intervals(samples), timeout=timeout)

        # Each source enforces the time limit itself, and reports why it was exceeded.
        await _together([partial(fetch, source, samples) for source, samples in wanted.items()])

        row_of = {source: {sample: row for row, sample in enumerate(samples)} for source, samples in wanted.items()}
        return picked(parts, [(source, row_of[source][sample]) for source, sample in places])

    async def aclose(self) -> None:
        """Close every source, even if closing another one fails; idempotent."""
        self._index = None
        async with AsyncExitStack() as sources:
            for source in self._sources:
                sources.push_async_callback(source.aclose)

    @property
    def _entered(self) -> MixtureIndex:
        if self._index is None:
            message = "enter the provider (async with) before reading from it"
            raise RuntimeError(message)

        return self._index


def _intervals(samples: Sequence[int]) -> list[BatchId]:
    """Ascending distinct numbers as closed intervals."""
    found: list[BatchId] = []
    for sample in samples:
        if found and found[-1].last + 1 == sample:
            found[-1] = BatchId(found[-1].first, sample)
        else:
            found.append(BatchId(sample, sample))

    return found


async def _together(jobs: Sequence[Callable[[], Awaitable[Any]]]) -> None:
    """Run all jobs concurrently. The first exception cancels the others and is raised unchanged."""
    failures: list[Exception] = []

    async def run(job: Callable[[], Awaitable[Any]]) -> None:
        try:
            await job()
        except Exception as error:  # raised below, once the others have stopped
            failures.append(error)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for job in jobs:
            tasks.start_soon(run, job)

    if failures:
        raise failures[0]
