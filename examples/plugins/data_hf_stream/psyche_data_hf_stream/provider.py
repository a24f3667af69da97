"""Samples from a stream of Hugging Face datasets: texts one after another, tokenized as they are read, cut into rows.

A stream has no numbers, and a run asks for samples by number. So entering reads and tokenizes all of it once, and keeps a place,
which is the stream's own `state_dict`, each so many tokens. A sample is read from the last place before it. The tokens are never
kept. Every member gets the same row for a number, as long as they have the same files and the same tokenizer.
"""

from __future__ import annotations

import bisect
import threading
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import anyio
import anyio.to_thread
import datasets
from tokenizers import Tokenizer

from psyche_core.errors import DataError
from psyche_core.interfaces.data import DataProvider, Samples
from psyche_core.types import BatchId
from psyche_data_hf_stream.settings import HfStreamSettings

SUFFIXES = {"json": ".jsonl", "text": ".txt"}

Stamps = list[tuple[int, int]]
"""Size and time of change of each file."""


class HfStream(DataProvider):
    """See the module. base: where relative paths start. cache: a folder for the lock files of datasets; None for its own."""

    def __init__(self, settings: HfStreamSettings, *, base: Path, cache: Path | None, sequence_length: int) -> None:
        self._settings, self._base, self._cache, self._sequence_length = settings, base, cache, sequence_length
        self._files: list[Path] = []
        self._stamps: Stamps = []
        self._stream: Any = None
        self._tokenizer: Any = None
        self._separator: list[int] = []
        self._token_size = 2
        self._lock = threading.Lock()
        self._places: list[dict[str, Any]] = []  # states of the stream
        self._before = array("Q")  # of each place: number of tokens before it
        self._total = 0

    async def __aenter__(self) -> Self:
        """Read and tokenize everything once. Raises DataError for what cannot be read and for too little text."""
        await anyio.to_thread.run_sync(self._look)
        return self

    @property
    def sequence_length(self) -> int:
        """Tokens per sample."""
        return self._sequence_length

    @property
    def num_sequences(self) -> int:
        """Number of distinct samples; what remains at the end is left out."""
        return self._total // self._sequence_length

    async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
        """Read in a thread, so that nothing else waits for the tokenizer. Raises DataError, TimeoutError."""
        with anyio.fail_after(timeout):
            ids = await anyio.to_thread.run_sync(lambda: self._batches(batches), abandon_on_cancel=True)
        tokens = b"".join(token.to_bytes(self._token_size, "little") for token in ids)
        return Samples(tokens, len(ids) // self._sequence_length, self._sequence_length, self._token_size)

    async def aclose(self) -> None:
        """Nothing stays open between reads."""

    def _look(self) -> None:
        self._tokenizer = self._load_tokenizer()
        self._files = self._find_files()
        self._stamps = self._stamp()
        self._stream = self._open()
        total, places, before = 0, [self._stream.state_dict()], array("Q", [0])
        for text in self._texts():
            total += len(self._tokens(text))
            if total - before[-1] >= self._settings.index_tokens:
                places.append(self._stream.state_dict())  # the text behind this one comes next
                before.append(total)
        self._check_unchanged()
        if total < self._sequence_length:
            where = f"{self._base / self._settings.location} has {total} tokens in {len(self._files)} files"
            message = f"{where}, a sample needs {self._sequence_length}; is it right?"
            raise DataError(message)
        self._places, self._before, self._total = places, before, total

    def _load_tokenizer(self) -> Any:
        path, separator = self._base / self._settings.tokenizer, self._settings.separator
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises Exception itself
            message = f"cannot read the tokenizer {path}: {error}"
            raise DataError(message) from error
        if separator is not None:
            number = tokenizer.token_to_id(separator)
            if number is None:
                message = f"the tokenizer {path} has no token {separator!r}, which is to end each text"
                raise DataError(message)
            self._separator = [number]
        self._token_size = 2 if max(tokenizer.get_vocab().values()) < 2**16 else 4
        return tokenizer

    def _find_files(self) -> list[Path]:
        """Local ones only, whatever the run file says: it may be a stranger's."""
        place, suffix = self._base / self._settings.location, SUFFIXES[self._settings.form]
        files = sorted(place.glob(f"*{suffix}")) if place.is_dir() else [place]
        if not files or not all(path.is_file() for path in files):
            message = f"{place} is neither a file nor a folder of files *{suffix}"
            raise DataError(message)
        return files

    def _open(self) -> Any:
        """The stream. Not load_dataset: that reports each use to a server, also of local files."""
        opened = {"json": datasets.Dataset.from_json, "text": datasets.Dataset.from_text}[self._settings.form]
        cache = str(self._cache) if self._cache else None
        try:
            stream = opened([str(path.absolute()) for path in self._files], streaming=True, cache_dir=cache)
        except Exception as error:  # of datasets, pyarrow, fsspec
            message = f"datasets cannot open {self._files[0]} and what is beside it: {error}"
            raise DataError(message) from error
        if stream.num_shards != len(self._files):  # it takes names for patterns
            message = f"datasets finds {stream.num_shards} files instead of {len(self._files)}; are *, ? or [ in their names?"
            raise DataError(message)
        return stream

    def _texts(self) -> Iterator[str]:
        """The texts from where the stream is. Raises DataError."""
        try:
            for row in self._stream:
                text = row.get(self._settings.field)
                if not isinstance(text, str):
                    kind, has = type(text).__name__, ", ".join(map(str, row))
                    message = f"{self._settings.field} of a row must be a text, got {kind}; the row has {has}"
                    raise DataError(message)
                yield text
        except DataError:
            raise
        except Exception as error:  # of datasets, pyarrow, fsspec
            message = f"datasets cannot read {self._base / self._settings.location}: {error}"
            raise DataError(message) from error

    def _tokens(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids + self._separator

    def _batches(self, batches: Sequence[BatchId]) -> list[int]:
        """The tokens of all samples; consecutive ones are read in one go. Numbers past the end wrap around."""
        ids: list[int] = []
        with self._lock:  # a read that was given up may still use the stream
            self._check_unchanged()
            for batch in batches:
                number = batch.first
                while number <= batch.last:
                    first = number % self.num_sequences
                    count = min(batch.last - number + 1, self.num_sequences - first)
                    ids += self._stretch(first * self._sequence_length, count * self._sequence_length)
                    number += count
            self._check_unchanged()
        return ids

    def _stretch(self, start: int, count: int) -> list[int]:
        """Tokens from the last place before `start`. Raises DataError."""
        at = bisect.bisect_right(self._before, start) - 1
        self._stream.load_state_dict(self._places[at])
        skip, ids = start - self._before[at], list[int]()
        for text in self._texts():
            tokens = self._tokens(text)
            ids += tokens[skip:]
            skip = max(0, skip - len(tokens))
            if len(ids) >= count:
                return ids[:count]
        message = f"the stream ends before token {start + count}, and had {self._total}; start again"
        raise DataError(message)

    def _stamp(self) -> Stamps:
        try:
            return [(found.st_size, found.st_mtime_ns) for found in (path.stat() for path in self._files)]
        except OSError as error:
            message = f"cannot read {error.filename}: {error.strerror}"
            raise DataError(message) from error

    def _check_unchanged(self) -> None:
        """Places are worth nothing in other files. Raises DataError."""
        for path, now, then in zip(self._files, self._stamp(), self._stamps, strict=True):
            if now != then:
                message = f"{path} changed since it was read first; start again"
                raise DataError(message)
