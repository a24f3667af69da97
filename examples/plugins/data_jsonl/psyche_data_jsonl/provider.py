"""Samples from JSON lines: the texts one after another with a byte 0 behind each, cut into rows; a token for each byte.

Entering reads every line once, to learn how long its text is, and keeps where each line begins. A sample opens only the lines of
its own row, so that the data may be larger than the memory. Every member gets the same row for a number, as long as they have the
same files.
"""

from __future__ import annotations

import bisect
import json
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Self

import anyio
import anyio.to_thread

from psyche_core.errors import DataError
from psyche_core.interfaces.data import DataProvider, Samples
from psyche_core.types import BatchId

TOKEN_SIZE = 2
"""Bytes of a token in samples; ids are those of bytes, 0 to 255."""

SEPARATOR = b"\0"
MAX_LINE_BYTES = 64 * 2**20


class Jsonl(DataProvider):
    """location: file or folder. field: key of the text. sequence_length: tokens per sample."""

    def __init__(self, location: Path, *, field: str, sequence_length: int) -> None:
        self._location, self._field, self._sequence_length = location, field, sequence_length
        self._files: list[Path] = []
        self._file = array("I")  # of each text: number of its file
        self._offset = array("Q")  # of each text: where its line begins there
        self._end = array("Q")  # of each text: number of tokens up to its separator, from the first text on

    async def __aenter__(self) -> Self:
        """Read every line once. Raises DataError for a line that is none and for too little text."""
        await anyio.to_thread.run_sync(self._look)
        return self

    @property
    def sequence_length(self) -> int:
        """Tokens per sample."""
        return self._sequence_length

    @property
    def num_sequences(self) -> int:
        """Number of distinct samples; what remains at the end is left out."""
        return self._end[-1] // self._sequence_length

    async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
        """Read in a thread, so that nothing else waits for the disk. Raises DataError, TimeoutError."""
        numbers = [number for batch in batches for number in range(batch.first, batch.last + 1)]
        with anyio.fail_after(timeout):
            rows = await anyio.to_thread.run_sync(lambda: [self._row(number) for number in numbers], abandon_on_cancel=True)
        tokens = b"".join(byte.to_bytes(TOKEN_SIZE, "little") for row in rows for byte in row)
        return Samples(tokens, len(rows), self._sequence_length, TOKEN_SIZE)

    async def aclose(self) -> None:
        """Nothing stays open between reads."""

    def _look(self) -> None:
        folder = self._location
        try:
            files = sorted(folder.glob("*.jsonl")) if folder.is_dir() else [folder]
            total = 0
            kept_file, kept_offset, kept_end = array("I"), array("Q"), array("Q")
            for number, path in enumerate(files):
                with path.open("rb") as file:
                    for offset, line in _lines(file, path):
                        total += len(self._text(line, path, offset)) + len(SEPARATOR)
                        kept_file.append(number)
                        kept_offset.append(offset)
                        kept_end.append(total)
        except OSError as error:
            message = f"cannot read {error.filename or folder}: {error.strerror}"
            raise DataError(message) from error
        if total < self._sequence_length:
            message = f"{folder} has {total} tokens in {len(files)} files, a sample needs {self._sequence_length}; is it right?"
            raise DataError(message)
        self._files, self._file, self._offset, self._end = files, kept_file, kept_offset, kept_end

    def _row(self, number: int) -> bytes:
        """The bytes of a sample. Numbers past the end wrap around. Raises DataError."""
        start = number % self.num_sequences * self._sequence_length
        at = bisect.bisect_right(self._end, start)
        row, skip = b"", start - (self._end[at - 1] if at else 0)
        while len(row) < self._sequence_length:
            row += self._stored(at)[skip : skip + self._sequence_length - len(row)]
            at, skip = at + 1, 0
        return row

    def _stored(self, at: int) -> bytes:
        """A text with its separator. Raises DataError if it is not as it was."""
        path, offset = self._files[self._file[at]], self._offset[at]
        try:
            with path.open("rb") as file:
                file.seek(offset)
                text = self._text(file.readline(MAX_LINE_BYTES), path, offset) + SEPARATOR
        except OSError as error:
            message = f"cannot read {path}: {error.strerror}"
            raise DataError(message) from error
        length = self._end[at] - (self._end[at - 1] if at else 0)
        if len(text) != length:
            message = f"{path} changed: the text at byte {offset} has {len(text)} bytes and had {length}; start again"
            raise DataError(message)
        return text

    def _text(self, line: bytes, path: Path, offset: int) -> bytes:
        try:
            text = json.loads(line)[self._field]
        except (ValueError, KeyError, TypeError) as error:
            message = f"{path}: the line at byte {offset} is no JSON object with {self._field}: {error}"
            raise DataError(message) from error
        if not isinstance(text, str):
            message = f"{path}: {self._field} of the line at byte {offset} must be a text, got a {type(text).__name__}"
            raise DataError(message)
        return text.encode(errors="replace")


def _lines(file: BinaryIO, path: Path) -> Iterator[tuple[int, bytes]]:
    """Each line that is not empty, with where it begins. Raises DataError for one that is too long."""
    offset = 0
    while line := file.readline(MAX_LINE_BYTES):
        if len(line) == MAX_LINE_BYTES:
            message = f"{path}: the line at byte {offset} has {MAX_LINE_BYTES} bytes or more"
            raise DataError(message)
        if line.strip():
            yield offset, line
        offset += len(line)
