"""The `Preprocessed` data location: Parquet files whose rows are whole samples, from a folder or a data set on the hub.

A path that exists is read from the file system. Every other name is a data set on the hub, which is downloaded completely before
the first read (files already in the hub's cache are not fetched again, and work without a network). Rows are read on request;
see `data.parquet.rows`. Sample numbers past the last wrap around, and a batch longer than the data set has its full number of
samples (in the reference implementation it was shorter).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, ClassVar, Self

import anyio
import anyio.to_thread
from pydantic import BaseModel, ConfigDict, Field

from psyche_core.data.ordering.data_shuffle import Shuffle, shuffle_seed
from psyche_core.data.parquet.files import ENDING, SplitName, parquet_paths
from psyche_core.data.parquet.rows import ParquetRows
from psyche_core.errors import DataError, InputError
from psyche_core.hookspecs import DataContext
from psyche_core.interfaces.data import DataProvider, Samples
from psyche_core.types import BatchId

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)


class PreprocessedSettings(BaseModel):
    """`data_location.Preprocessed`: `"folder or data set"`, or a table with these keys."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    location: Annotated[str, Field(min_length=1)]
    """Parquet file, folder (a relative path starts at the client's base folder), or a data set on the hub."""

    split: SplitName = "train"
    """The part of the data set to use."""

    shuffle: Shuffle = "DontShuffle"
    """In which order the samples come: "DontShuffle" or {Seeded = [32 numbers]}."""

    revision: Annotated[str, Field(min_length=1)] | None = None
    """Branch, tag or commit of the data set; only a commit ensures that every member reads the same data."""


def is_hub_data_set(location: str) -> bool:
    """Whether a location that is not in the file system can be a data set on the hub."""
    return _HUB_NAME.fullmatch(location) is not None


class PreprocessedData(DataProvider):
    """Samples from the rows of Parquet files, which are found, and downloaded if needed, on entering.

    location: file, folder or name of a data set. sequence_length: number of tokens in every row. base: folder that relative
    locations start from. split, revision: as in the settings. seed: 32 bytes to shuffle with, None for file order. cache: folder
    for the data set's index if the data's own folder is read-only. Entering raises DataError if there is nothing to read.
    """

    def __init__(
        self,
        location: str,
        *,
        sequence_length: int,
        base: Path | None = None,
        split: SplitName = "train",
        revision: str | None = None,
        seed: bytes | None = None,
        cache: Path | None = None,
    ) -> None:
        self._location = location
        self._sequence_length = sequence_length
        self._base = base or Path()
        self._split: SplitName = split
        self._revision = revision
        self._seed = seed
        self._cache = cache
        self._rows: ParquetRows | None = None

    @classmethod
    def from_context(cls, context: DataContext) -> Self:
        """The provider for a run configuration; context.settings are PreprocessedSettings."""
        settings: PreprocessedSettings = context.settings
        return cls(
            settings.location,
            sequence_length=context.sequence_length,
            base=context.base,
            split=settings.split,
            revision=settings.revision,
            seed=shuffle_seed(settings.shuffle),
            cache=context.cache,
        )

    @property
    def sequence_length(self) -> int:
        """Tokens per sample."""
        return self._sequence_length

    @property
    def num_sequences(self) -> int:
        """Number of rows in all files. Valid while entered."""
        return len(self._entered)

    async def __aenter__(self) -> Self:
        self._rows = await anyio.to_thread.run_sync(self._open)
        return self

    async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
        """The samples of the intervals in order, concatenated. Raises DataError, TimeoutError."""
        indices = chain.from_iterable(range(batch.first, batch.last + 1) for batch in batches)
        with anyio.fail_after(timeout):
            return await anyio.to_thread.run_sync(partial(self._entered.read, indices), abandon_on_cancel=True)

    async def aclose(self) -> None:
        """Close the files and drop cached rows."""
        self._rows = None

    @property
    def _entered(self) -> ParquetRows:
        if self._rows is None:
            message = "enter the provider (async with) before reading from it"
            raise RuntimeError(message)

        return self._rows

    def _open(self) -> ParquetRows:
        paths = parquet_paths(self._folder(), self._split)
        return ParquetRows(paths, sequence_length=self._sequence_length, shuffle_seed=self._seed, cache=self._cache)

    def _folder(self) -> Path:
        try:
            place = self._base / self._location
            if place.exists():
                return place
        except (OSError, ValueError) as error:
            message = f"cannot look for {self._location!r}: {error}; expected a folder or the name of a data set on the hub"
            raise InputError(message) from error

        if not is_hub_data_set(self._location):
            message = f"{place} does not exist, and {self._location!r} is not the name of a data set on the hub (like owner/name)"
            raise InputError(message)

        try:
            return downloaded(self._location, revision=self._revision)
        except DataError as error:
            message = f"{place} does not exist, and {error}"
            raise DataError(message) from error


def downloaded(name: str, *, revision: str | None = None) -> Path:
    """The folder with the Parquet files of a data set on the hub, downloaded unless the hub's cache has them. Blocking.

    Raises DataError if it cannot be downloaded.
    """
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError as error:
        message = f"{name} is not a folder; downloading it needs huggingface_hub: pip install 'psyche-core[hub]'"
        raise DataError(message) from error

    try:
        folder = snapshot_download(name, repo_type="dataset", revision=revision, allow_patterns=[f"*{ENDING}"])
    except Exception as error:  # the library's own errors, those of its HTTP client, and OSError
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        message = (
            f"{name} is neither a folder on this machine nor a data set that could be downloaded ({reason}); "
            "check its name and the network, or give a folder"
        )
        raise DataError(message) from error

    return Path(folder)
