"""The `Http` data location: numbered sequences from flat token files on web servers and in buckets.

The list of files and their sizes is fetched once, on entering. Every whole sequence of a file is used; samples after the last one
start again at the first. Two reads may run at once. To read ahead, call `read` early: sequences common to two reads are fetched
only once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Self

import anyio
import anyio.to_thread

from psyche_core.data.ordering.data_shuffle import shuffle_seed
from psyche_core.data.token_files import MAX_NPY_HEADER, SequenceIndex, npy_data_start, token_bytes
from psyche_core.errors import DataError
from psyche_core.hookspecs import DataContext
from psyche_core.interfaces.data import DataProvider, Samples
from psyche_core.types import BatchId
from psyche_data_http.fetch.client import RangeClient
from psyche_data_http.fetch.sequences import SequenceFetcher, TokenFile
from psyche_data_http.file_source import FileSource, RemoteFile, read_range
from psyche_data_http.retries import LastFailure, deadline, gather
from psyche_data_http.settings import HttpSettings
from psyche_data_http.shared_resources import SharedResources
from psyche_data_http.sources.factory import make_source
from psyche_data_http.sources.web_files import WebFiles

OPEN_SECONDS = 120.0


class HttpData(DataProvider):
    """Samples from the files of a source; files and sizes are fetched on entering.

    resources: entered and left by the provider, may be shared. sequence_length: tokens per sample. token_size: bytes per token,
    2 or 4. seed: 32 bytes for shuffling, None keeps the files' order. open_seconds: timeout for entering. Entering raises
    DataError and TimeoutError.
    """

    def __init__(
        self,
        source: FileSource,
        resources: SharedResources,
        *,
        sequence_length: int,
        token_size: int,
        seed: bytes | None = None,
        open_seconds: float = OPEN_SECONDS,
    ) -> None:
        self._source = source
        self._resources = resources
        self._sequence_length = sequence_length
        self._token_size = token_size
        self._seed = seed
        self._open_seconds = open_seconds
        self._holds_toolbox = False
        self._index: SequenceIndex | None = None
        self._fetcher: SequenceFetcher | None = None

    @classmethod
    def of_urls(
        cls, urls: Sequence[str], resources: SharedResources | None = None, *, sequence_length: int, token_size: int
    ) -> Self:
        """Return a provider of the files at `urls`, in their order. resources: None makes its own, without a cache."""
        resources = resources or SharedResources(RangeClient())
        return cls(WebFiles(urls, resources.client), resources, sequence_length=sequence_length, token_size=token_size)

    @classmethod
    def from_context(cls, context: DataContext) -> Self:
        """Return the provider for a run configuration; context.settings are HttpSettings."""
        settings: HttpSettings = context.settings
        resources = SharedResources(RangeClient(), cache=context.cache, cache_bytes=settings.cache_bytes)
        return cls(
            make_source(settings.location, resources.client, base=context.base),
            resources,
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
        return len(self._entered[0])

    async def __aenter__(self) -> Self:
        await self._resources.__aenter__()
        self._holds_toolbox = True
        try:
            async with deadline(self._open_seconds) as last_failure:
                remotes = await self._source.files(last_failure)
                files = await gather([partial(self._token_file, remote, last_failure) for remote in remotes])
                self._index = await self._indexed(files)
                self._fetcher = SequenceFetcher(self._source, files, size=self._sequence_bytes, cache=self._resources.cache)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.aclose()
            raise

        return self

    async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
        """Return the samples of the intervals in order, concatenated. Raises DataError, TimeoutError."""
        index, fetcher = self._entered
        places = [place for batch in batches for place in index.located(range(batch.first, batch.last + 1))]
        async with deadline(timeout) as last_failure:
            contents = await fetcher.fetch(places, last_failure)

        tokens = b"".join([contents[place] for place in places])
        return Samples(tokens, len(places), self._sequence_length, self._token_size)

    async def aclose(self) -> None:
        """Close connections and write what the cache has queued; idempotent."""
        self._index = self._fetcher = None
        if self._holds_toolbox:
            self._holds_toolbox = False
            await self._resources.__aexit__(None, None, None)

    @property
    def _sequence_bytes(self) -> int:
        return self._sequence_length * self._token_size

    @property
    def _entered(self) -> tuple[SequenceIndex, SequenceFetcher]:
        if self._index is None or self._fetcher is None:
            message = "enter the provider (async with) before reading from it"
            raise RuntimeError(message)

        return self._index, self._fetcher

    async def _token_file(self, remote: RemoteFile, last_failure: LastFailure) -> TokenFile:
        """Return the file and the position of its first token."""
        if not remote.name.endswith(".npy") or remote.size == 0:
            return TokenFile(remote, 0)

        head = await read_range(self._source, remote, 0, min(MAX_NPY_HEADER, remote.size), last_failure)
        return TokenFile(remote, npy_data_start(bytes(head), token_size=self._token_size, name=remote.name, size=remote.size))

    async def _indexed(self, files: Sequence[TokenFile]) -> SequenceIndex:
        counts = [max(0, file.remote.size - file.start) // self._sequence_bytes for file in files]
        if not any(counts):
            message = (
                f"{len(counts)} files ({files[0].remote.name}, …) contain no whole sequence of {self._sequence_length} "
                f"tokens ({self._sequence_bytes} bytes); use a shorter max_seq_len or longer files"
            )
            raise DataError(message)

        make = partial(SequenceIndex, counts, shuffle_seed=self._seed)
        return await anyio.to_thread.run_sync(make, abandon_on_cancel=True)
