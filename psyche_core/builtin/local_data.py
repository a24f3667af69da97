"""The `Local` data location: token files of this machine.

If a folder has a sub-folder `train`, that sub-folder is used (`data.text_corpus` writes it, beside `validation`). Sample numbers
past the last wrap around. The disk is used only in a worker thread. The same provider serves a data server's `data.toml`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, ClassVar, Self

import anyio
import anyio.to_thread
from pydantic import BaseModel, ConfigDict, Field

from psyche_core.config.run_config import DataFile
from psyche_core.data.ordering.data_shuffle import Shuffle, shuffle_seed
from psyche_core.data.token_files import TRAINING_FOLDER, TokenFiles, TokenSizeName, token_bytes
from psyche_core.hookspecs import DataContext
from psyche_core.interfaces.data import DataProvider, Samples
from psyche_core.types import BatchId, total_samples


class LocalSettings(BaseModel):
    """`data_location.Local`: `"folder"`, or a table with these keys."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    location: Annotated[str, Field(min_length=1)]
    """Token file or folder; a relative path starts at the client's base folder."""

    token_size: TokenSizeName = "TwoBytes"  # noqa: S105  # a token of text, not a secret
    """Bytes of a token in the files."""

    shuffle: Shuffle = "DontShuffle"
    """In which order the samples come: "DontShuffle" or {Seeded = [32 numbers]}."""


def token_place(location: Path) -> Path:
    """The folder or file with the token files of a location: its sub-folder `train` if there is one, else the location itself."""
    training = location / TRAINING_FOLDER
    return training if training.is_dir() else location


class LocalData(DataProvider):
    """Samples from a token file or a folder of token files; opened on entering.

    location: file or folder. sequence_length: tokens per sample. token_size: bytes per token, 2 or 4. seed: 32 bytes to shuffle
    with, None for file order. cache: folder for the data set's index if the data's own folder is read-only. Entering raises
    DataError if there is nothing to read.
    """

    def __init__(
        self,
        location: Path,
        *,
        sequence_length: int,
        token_size: int,
        seed: bytes | None = None,
        cache: Path | None = None,
    ) -> None:
        self._location = location
        self._sequence_length = sequence_length
        self._token_size = token_size
        self._seed = seed
        self._cache = cache
        self._files: TokenFiles | None = None

    @classmethod
    def from_context(cls, context: DataContext) -> Self:
        """The provider for a run configuration; context.settings are LocalSettings."""
        settings: LocalSettings = context.settings
        return cls(
            context.base / settings.location,
            sequence_length=context.sequence_length,
            token_size=token_bytes(settings.token_size),
            seed=shuffle_seed(settings.shuffle),
            cache=context.cache,
        )

    @classmethod
    def from_data_file(cls, data_file: DataFile, *, cache: Path | None = None) -> Self:
        """The provider for a `data.toml` with resolved paths; always shuffled, with the file's seed. cache: as for the class."""
        length, size = data_file.seq_len, data_file.token_bytes
        return cls(data_file.dir, sequence_length=length, token_size=size, seed=data_file.seed, cache=cache)

    @property
    def sequence_length(self) -> int:
        """Tokens per sample."""
        return self._sequence_length

    @property
    def num_sequences(self) -> int:
        """Number of whole sequences in all files. Valid while entered."""
        return len(self._opened)

    async def __aenter__(self) -> Self:
        self._files = await anyio.to_thread.run_sync(self._open)
        return self

    async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
        """The samples of the intervals in order, concatenated. Raises DataError, TimeoutError."""
        files = self._opened
        count = total_samples(tuple(batches))

        def read_all() -> bytes:
            return files.read(chain.from_iterable(range(batch.first, batch.last + 1) for batch in batches))

        with anyio.fail_after(timeout):
            tokens = await anyio.to_thread.run_sync(read_all, abandon_on_cancel=True)

        return Samples(tokens, count, self._sequence_length, self._token_size)

    async def aclose(self) -> None:
        """Close the files."""
        self._files = None

    @property
    def _opened(self) -> TokenFiles:
        if self._files is None:
            message = "enter the provider (async with) before reading from it"
            raise RuntimeError(message)

        return self._files

    def _open(self) -> TokenFiles:
        return TokenFiles(
            token_place(self._location),
            sequence_length=self._sequence_length,
            token_size=self._token_size,
            shuffle_seed=self._seed,
            cache=self._cache,
        )
