"""Flat files of tokens, read as numbered sequences: `.bin`, `.ds` and `.npy` with little-endian 2- or 4-byte unsigned integers.

Decided: files of a folder count in the order of their names; a file of n tokens holds n // sequence_length sequences, the last
whole one included (defects 55 of the reference: it lost that one, and took files in directory order); sequences never cross
files; a real numpy header is read as a header and must describe plain little-endian unsigned integers of the right size, a
`.npy` without one holds raw tokens. Files are read at known places instead of being mapped: a mapped file that is cut kills the
process with SIGBUS, a short read is a DataError. A file that changed since it was opened is refused, because the same number
must give the same tokens.
"""

from __future__ import annotations

import ast
import os
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Literal

from psyche_core.errors import DataError
from psyche_core.formats.data_shuffle import shuffled_order

EXTENSIONS = (".bin", ".ds", ".npy")

TokenSizeName = Literal["TwoBytes", "FourBytes"]
"""A run configuration's spelling of the size of a token."""

NPY_MAGIC = b"\x93NUMPY"
MAX_NPY_HEADER = 4096
"""Bytes of a file's beginning that `npy_data_start` needs to see."""


def token_bytes(name: TokenSizeName) -> int:
    """2 for "TwoBytes", 4 for "FourBytes"."""
    return 2 if name == "TwoBytes" else 4


class SequenceIndex:
    """Which file holds sequence i, and where: cumulative counts, and the shuffled order when there is a seed.

    counts: whole sequences per file. shuffle_seed: 32 bytes or None for the files' own order.
    """

    def __init__(self, counts: Sequence[int], *, shuffle_seed: bytes | None = None) -> None:
        self._ends = list(accumulate(counts))
        self._order: array[int] | None = None
        if shuffle_seed is not None:
            self._order = shuffled_order(len(self), shuffle_seed)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def locate(self, index: int) -> tuple[int, int]:
        """(file, sequence within the file) of sample `index`; past the end it wraps around."""
        place = index % len(self)
        if self._order is not None:
            place = self._order[place]

        file = bisect_right(self._ends, place)
        return file, place - (self._ends[file - 1] if file else 0)


def adjacent_runs(places: Iterable[tuple[int, int]], *, at_most: int) -> Iterator[tuple[int, int, int]]:
    """Join places that follow each other in one file: (file, first sequence, count), in order; `at_most` sequences per run."""
    run: tuple[int, int, int] | None = None
    for file, sequence in places:
        if run is not None and (file, sequence) == (run[0], run[1] + run[2]) and run[2] < at_most:
            run = (file, run[1], run[2] + 1)
            continue

        if run is not None:
            yield run
        run = (file, sequence, 1)

    if run is not None:
        yield run


@dataclass(frozen=True, slots=True)
class TokenFile:
    """One file as it was when opened. start: byte where tokens begin; sequences: whole ones; stamp: modification time in ns."""

    path: Path
    start: int
    sequences: int
    size: int
    stamp: int


class TokenFiles:
    """The sequences of one token file or of a folder's token files. Blocking: call it in a worker thread.

    location: file or folder (not searched deeper). sequence_length: tokens per sequence. token_size: bytes per token, 2 or 4.
    shuffle_seed: 32 bytes, or None for file order. Raises DataError when there is nothing to read or a file is malformed.
    """

    def __init__(self, location: Path, *, sequence_length: int, token_size: int, shuffle_seed: bytes | None = None) -> None:
        self.sequence_length = sequence_length
        self.token_size = token_size
        self._sequence_bytes = sequence_length * token_size
        self.files = tuple(self._opened(path) for path in token_paths(location))
        if not any(file.sequences for file in self.files):
            message = (
                f"{location} has {len(self.files)} token files but not one whole sequence of {sequence_length} tokens "
                f"({self._sequence_bytes} bytes); use a shorter max_seq_len or more text"
            )
            raise DataError(message)

        self._index = SequenceIndex([file.sequences for file in self.files], shuffle_seed=shuffle_seed)

    def __len__(self) -> int:
        """Whole sequences in all files."""
        return len(self._index)

    def read(self, indices: Iterable[int]) -> bytes:
        """The tokens of the given samples, in order, concatenated. Raises DataError."""
        places = (self._index.locate(index) for index in indices)
        pieces = [self._read_run(*run) for run in adjacent_runs(places, at_most=max(1, (16 << 20) // self._sequence_bytes))]
        return b"".join(pieces)

    def _opened(self, path: Path) -> TokenFile:
        try:
            with path.open("rb") as stream:
                status = os.fstat(stream.fileno())
                head = stream.read(MAX_NPY_HEADER) if path.suffix == ".npy" else b""
        except OSError as error:
            message = f"cannot read the token file {path}: {error.strerror}"
            raise DataError(message) from error

        start = npy_data_start(head, token_size=self.token_size, name=str(path))
        sequences = max(0, status.st_size - start) // self._sequence_bytes
        return TokenFile(path, start, sequences, status.st_size, status.st_mtime_ns)

    def _read_run(self, number: int, first: int, count: int) -> bytes:
        file = self.files[number]
        wanted = count * self._sequence_bytes
        try:
            with file.path.open("rb") as stream:
                status = os.fstat(stream.fileno())
                stream.seek(file.start + first * self._sequence_bytes)
                tokens = stream.read(wanted)
        except OSError as error:
            message = f"cannot read sequences {first} to {first + count - 1} of {file.path}: {error.strerror}"
            raise DataError(message) from error

        if (status.st_size, status.st_mtime_ns) != (file.size, file.stamp) or len(tokens) != wanted:
            message = (
                f"{file.path} changed while it was in use (it had {file.size} bytes, now {status.st_size}); "
                "put the old file back or start again, so that everybody reads the same tokens"
            )
            raise DataError(message)

        return tokens


def token_paths(location: Path) -> list[Path]:
    """The token files at `location`: itself, or those directly in the folder, by name. Raises DataError when there are none."""
    try:
        if location.is_file():
            return [location]

        found = sorted((path for path in location.iterdir() if path.suffix in EXTENSIONS and path.is_file()), key=_name)
    except OSError as error:
        message = f"cannot look for token files in {location}: {error.strerror}"
        raise DataError(message) from error
    except ValueError as error:  # a NUL character
        message = f"cannot look for token files in {str(location)!r}: it is not a path"
        raise DataError(message) from error

    if not found:
        message = f"{location} has no token files; expected files named *{', *'.join(EXTENSIONS)}"
        raise DataError(message)

    return found


def _name(path: Path) -> str:
    return path.name


def npy_data_start(head: bytes, *, token_size: int, name: str) -> int:
    """Where tokens begin in a file that starts with `head`: 0 unless it is a numpy header (NEP 1, versions 1.0 to 3.0).

    head: the first MAX_NPY_HEADER bytes, or all. Raises DataError for a header of another dtype, order or form.
    """
    if not head.startswith(NPY_MAGIC):
        return 0

    length_bytes = 2 if head[6:7] == b"\x01" else 4
    text_start = 8 + length_bytes
    start = text_start + int.from_bytes(head[8:text_start], "little")
    try:
        header = ast.literal_eval(head[text_start:start].decode("latin-1").strip())
        dtype, fortran, shape = header["descr"], header["fortran_order"], header["shape"]
    except (ValueError, SyntaxError, KeyError, TypeError, RecursionError, MemoryError) as error:
        message = f"{name} begins like a numpy file but its header cannot be read; write it again with numpy.save"
        raise DataError(message) from error

    if dtype != f"<u{token_size}":
        got = repr(dtype) if isinstance(dtype, str) else f"of a {type(dtype).__name__}"  # repr of a number may raise
        message = (
            f"{name} holds numpy type {got}, expected '<u{token_size}' (little-endian unsigned, {token_size} bytes); "
            "convert it or change the token size"
        )
        raise DataError(message)

    if fortran and isinstance(shape, tuple) and len(shape) > 1:
        message = f"{name} is stored column by column; write it again with numpy.save(numpy.ascontiguousarray(tokens))"
        raise DataError(message)

    return start
