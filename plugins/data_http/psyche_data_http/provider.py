"""The `Http` data location: numbered sequences from flat token files on web servers.

Decided: sizes are asked for once, on entering; of a file every whole sequence counts; samples past the last wrap around;
neighbouring samples are one request, at most RUN_BYTES long; several requests run at once, up to `connections`. Nothing is
cached: a batch is read once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Self, TypeVar

import anyio
import anyio.to_thread

from psyche_core.errors import DataError
from psyche_core.formats.data_shuffle import shuffle_seed
from psyche_core.formats.token_files import MAX_NPY_HEADER, SequenceIndex, adjacent_runs, npy_data_start, token_bytes
from psyche_core.hookspecs import DataContext
from psyche_core.interfaces.data import DataProvider, Samples
from psyche_core.types import BatchId
from psyche_data_http.client import RangeClient, RemoteFile, shown
from psyche_data_http.settings import HttpSettings

RUN_BYTES = 4 << 20
"""Longest single request; longer runs of samples are cut so that they load in parallel."""

OPEN_SECONDS = 120.0
STALL_SECONDS = 20.0
CONNECTIONS = 8

_Result = TypeVar("_Result")


class HttpData(DataProvider):
    """Samples from files at `urls`, in their order; sizes are asked for on entering.

    sequence_length: tokens per sample. token_size: bytes per token, 2 or 4. seed: 32 bytes to shuffle with, None for file order.
    open_seconds: limit for entering. stall_seconds: silence of a server that counts as a cut connection. connections: at once.
    Entering raises DataError and TimeoutError.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        sequence_length: int,
        token_size: int,
        seed: bytes | None = None,
        open_seconds: float = OPEN_SECONDS,
        stall_seconds: float = STALL_SECONDS,
        connections: int = CONNECTIONS,
    ) -> None:
        self._urls = tuple(urls)
        self._sequence_length = sequence_length
        self._token_size = token_size
        self._seed = seed
        self._open_seconds = open_seconds
        self._slots = anyio.Semaphore(connections)  # thousands waiting in the HTTP library's own queue are slow
        self._client = RangeClient(connections=connections, stall_seconds=stall_seconds)
        self._files: list[tuple[RemoteFile, int]] = []
        self._index: SequenceIndex | None = None

    @classmethod
    def from_context(cls, context: DataContext) -> Self:
        """The provider a run configuration asks for; context.settings are HttpSettings."""
        settings: HttpSettings = context.settings
        return cls(
            settings.location.urls,
            sequence_length=context.sequence_length,
            token_size=token_bytes(settings.token_size_in_bytes),
            seed=shuffle_seed(settings.shuffle),
        )

    @property
    def sequence_length(self) -> int:
        """Tokens per sample."""
        return self._sequence_length

    @property
    def num_sequences(self) -> int:
        """Whole sequences in all files. Valid while entered."""
        return len(self._entered)

    async def __aenter__(self) -> Self:
        try:
            async with self._deadline(self._open_seconds):
                await self._client.open()
                self._files = await self._together([partial(self._find, url) for url in self._urls])
                counts = [max(0, file.size - start) // self._sequence_bytes for file, start in self._files]
                if not any(counts):
                    message = (
                        f"{len(counts)} files ({shown(self._urls[0])}, …) have not one whole sequence of {self._sequence_length} "
                        f"tokens ({self._sequence_bytes} bytes); use a shorter max_seq_len or longer files"
                    )
                    raise DataError(message)

                self._index = await anyio.to_thread.run_sync(
                    partial(SequenceIndex, counts, shuffle_seed=self._seed), abandon_on_cancel=True
                )
        except BaseException:
            await self._client.aclose()
            raise

        return self

    async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
        """The samples of the intervals in order, concatenated. Raises DataError, TimeoutError."""
        index = self._entered
        size = self._sequence_bytes
        places = [index.locate(number) for batch in batches for number in range(batch.first, batch.last + 1)]
        runs = list(adjacent_runs(sorted(set(places)), at_most=max(1, RUN_BYTES // size)))
        async with self._deadline(timeout):
            contents = await self._together([partial(self._read_run, *run) for run in runs])

        found = {
            (file, first + step): content[step * size : (step + 1) * size]
            for (file, first, count), content in zip(runs, contents, strict=True)
            for step in range(count)
        }
        tokens = b"".join(found[place] for place in places)
        return Samples(tokens, len(places), self._sequence_length, self._token_size)

    async def aclose(self) -> None:
        """Close all connections; idempotent."""
        self._index = None
        await self._client.aclose()

    @property
    def _sequence_bytes(self) -> int:
        return self._sequence_length * self._token_size

    @property
    def _entered(self) -> SequenceIndex:
        if self._index is None:
            message = "enter the provider (async with) before reading from it"
            raise RuntimeError(message)

        return self._index

    async def _find(self, url: str) -> tuple[RemoteFile, int]:
        """The file and the byte its tokens start at."""
        file = await self._client.find(url)
        if not shown(url).endswith(".npy") or file.size == 0:
            return file, 0

        head = await self._client.read(file, 0, min(MAX_NPY_HEADER, file.size))
        return file, npy_data_start(head, token_size=self._token_size, name=shown(url))

    async def _read_run(self, number: int, first: int, count: int) -> bytes:
        file, start = self._files[number]
        return await self._client.read(file, start + first * self._sequence_bytes, count * self._sequence_bytes)

    async def _together(self, jobs: Sequence[Callable[[], Awaitable[_Result]]]) -> list[_Result]:
        """Results in the order of the jobs; the first DataError stops the others and is raised as it is."""
        results: dict[int, _Result] = {}
        failures: list[DataError] = []

        async def run(number: int, job: Callable[[], Awaitable[_Result]]) -> None:
            async with self._slots:
                try:
                    results[number] = await job()
                except DataError as error:
                    failures.append(error)
                    tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for number, job in enumerate(jobs):
                tasks.start_soon(run, number, job)

        if failures:
            raise failures[0]

        return [results[number] for number in range(len(jobs))]

    @asynccontextmanager
    async def _deadline(self, seconds: float) -> AsyncIterator[None]:
        """Raise TimeoutError after `seconds`, with the last trouble as its reason."""
        self._client.last_trouble = ""
        try:
            with anyio.fail_after(seconds):
                yield
        except TimeoutError as error:
            reason = self._client.last_trouble or "the server is slow"
            message = f"training data did not arrive within {seconds:g} s; {reason}"
            raise TimeoutError(message) from error
