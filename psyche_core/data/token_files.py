"""Flat files of tokens, read as numbered sequences: `.bin`, `.ds` and `.npy` with little-endian 2- or 4-byte unsigned integers.

Files of a folder are read in the order of their names. A file of n tokens contains n // sequence_length sequences, including the
last whole one (the reference implementation lost that one, and read files in directory order). Sequences never cross files. A
valid numpy header is read as a header and must describe plain little-endian unsigned integers of the right size; a `.npy`
without one holds raw tokens. Files are mapped into memory, and data is copied once. A file that changed since it was opened is
an error, because the same number must always give the same tokens.
"""

from __future__ import annotations

import ast
import logging
import math
import shlex
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Literal

from psyche_core.config.run_config import load_data_file
from psyche_core.data.mapped_files import MOST_OPEN, MappedFiles
from psyche_core.data.ordering.data_shuffle import shuffled_order
from psyche_core.data.ordering.dataset_index import FileContents, FileStamp, dataset_index
from psyche_core.errors import ConfigError, DataError, InputError

EXTENSIONS = (".bin", ".ds", ".npy")

TRAINING_FOLDER = "train"
"""The folder of the training tokens where a folder holds others, too."""

TokenSizeName = Literal["TwoBytes", "FourBytes"]
"""The size of a token, as a run configuration spells it."""

NPY_MAGIC = b"\x93NUMPY"
MAX_NPY_HEADER = 4096
"""Number of bytes at a file's beginning that `npy_data_start` needs."""


logger: logging.Logger = logging.getLogger("psyche.data")


def token_bytes(name: TokenSizeName) -> int:
    """2 for "TwoBytes", 4 for "FourBytes"."""
    return 2 if name == "TwoBytes" else 4


class SequenceIndex:
    """Finds the file and position of sequence i from cumulative counts and, if there is a seed, the shuffled order.

    counts: whole sequences per file. shuffle_seed: 32 bytes, or None for file order. order: the shuffled order, if it is known
    already.
    """

    def __init__(self, counts: Sequence[int], *, shuffle_seed: bytes | None = None, order: array[int] | None = None) -> None:
        self.ends: list[int] = list(accumulate(counts))
        self._order = order
        if shuffle_seed is not None and order is None:
            self._order = shuffled_order(len(self), shuffle_seed)

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def locate(self, index: int) -> tuple[int, int]:
        """(file, sequence within the file) of sample `index`; indices past the end wrap around."""
        place = index % len(self)
        if self._order is not None:
            place = self._order[place]

        file = bisect_right(self.ends, place)
        return file, place - (self.ends[file - 1] if file else 0)

    def located(self, indices: range) -> list[tuple[int, int]]:
        """`locate` of every index, in order; fast for consecutive sequences of one file."""
        count = len(self)
        if self._order is not None or indices.step != 1 or indices.start < 0 or indices.stop > count:
            return [self.locate(index) for index in indices]

        found: list[tuple[int, int]] = []
        before = 0
        for file, end in enumerate(self.ends):
            first, past = max(indices.start, before), min(indices.stop, end)
            found += [(file, place) for place in range(first - before, past - before)]
            before = end
            if end >= indices.stop:
                break

        return found

    def places(self, indices: Iterable[int]) -> list[int]:
        """The samples' places among all sequences in file order; indices past the end wrap around."""
        count = len(self)
        order = self._order
        return [index % count for index in indices] if order is None else [order[index % count] for index in indices]


class TokenFiles:
    """The sequences of one token file or of a folder's token files. Blocking: call it in a worker thread.

    location: file or folder (not searched deeper). sequence_length: tokens per sequence. token_size: bytes per token, 2 or 4.
    shuffle_seed: 32 bytes, or None for file order. cache: folder for the data set's index if the data's own folder is read-only.
    Raises DataError if there is nothing to read or a file is malformed.
    """

    def __init__(
        self,
        location: Path,
        *,
        sequence_length: int,
        token_size: int,
        shuffle_seed: bytes | None = None,
        cache: Path | None = None,
        most_open: int = MOST_OPEN,
    ) -> None:
        self.sequence_length = sequence_length
        self.token_size = token_size
        self._sequence_bytes = sequence_length * token_size
        self.files: tuple[FileStamp, ...] = tuple(FileStamp.of(path) for path in token_paths(location))
        key = {"kind": "tokens", "sequence_length": sequence_length, "token_size": token_size}
        index = dataset_index(self.files, self._examined, key=key, seed=shuffle_seed, cache=cache)
        if not any(index.counts):
            raise InputError(_too_short(location, self.files, sequence_length=sequence_length, token_size=token_size))

        self._index = SequenceIndex(index.counts, order=index.order)
        # For each file, the byte where sequence 0 of the whole folder would be if the file contained all earlier sequences, too.
        before = (0, *self._index.ends)
        self._origins = [file.start - first * self._sequence_bytes for file, first in zip(index.contents, before, strict=False)]
        self._maps = MappedFiles(most_open=most_open)

    def __len__(self) -> int:
        """Number of whole sequences in all files."""
        return len(self._index)

    def read(self, indices: Iterable[int]) -> bytes:
        """The tokens of the given samples, concatenated in order. Raises DataError."""
        size, ends, origins = self._sequence_bytes, self._index.ends, self._origins
        views: dict[int, memoryview] = {}
        pieces: list[memoryview | bytes] = []
        for place in self._index.places(indices):
            file = bisect_right(ends, place)
            view = views.get(file)
            if view is None:
                if len(views) >= self._maps.most_open:  # a held view keeps its file open: copy the data and release it
                    pieces = [self._copied(views, pieces)]
                    views.clear()
                view = views[file] = self._maps.view(self.files[file])
            at = origins[file] + place * size
            pieces.append(view[at : at + size])

        return self._copied(views, pieces)

    def _copied(self, views: Iterable[int], pieces: Sequence[memoryview | bytes]) -> bytes:
        tokens = b"".join(pieces)
        for file in views:
            self.files[file].check()

        return tokens

    def _examined(self, file: FileStamp) -> FileContents:
        return _examined(file, sequence_length=self.sequence_length, token_size=self.token_size)


def count_sequences(location: Path, *, sequence_length: int, token_size: int) -> int:
    """Number of whole sequences in a token file or a folder's token files, from the files' sizes; writes nothing. Blocking.

    Raises DataError if there is nothing to read, a file is malformed, or there is no whole sequence.
    """
    files = [FileStamp.of(path) for path in token_paths(location)]
    read = (_examined(file, sequence_length=sequence_length, token_size=token_size) for file in files)
    counted = sum(count for contents in read for count in contents.counts)
    if not counted:
        raise InputError(_too_short(location, files, sequence_length=sequence_length, token_size=token_size))

    return counted


def _examined(file: FileStamp, *, sequence_length: int, token_size: int) -> FileContents:
    try:
        with file.path.open("rb") as stream:
            head = stream.read(MAX_NPY_HEADER) if file.path.suffix == ".npy" else b""
    except OSError as error:
        message = f"cannot read the token file {file.path}: {error.strerror}"
        raise DataError(message) from error

    start = npy_data_start(head, token_size=token_size, name=str(file.path), size=file.size)
    over = (file.size - start) % token_size
    if over:
        text = "%s ends with %d bytes that are not a whole token of %d bytes; was the file cut, or is the token size wrong?"
        logger.warning(text, file.path, over, token_size)
    return FileContents(start, (max(0, file.size - start) // (sequence_length * token_size),))


def _too_short(location: Path, files: Sequence[FileStamp], *, sequence_length: int, token_size: int) -> str:
    longest = max(file.size for file in files)
    return (
        f"{location} has {len(files)} token files but not one whole sequence of {sequence_length} tokens "
        f"({sequence_length * token_size} bytes); the longest has {longest} bytes; use a shorter max_seq_len or more text"
    )


def _made_by(location: Path) -> str:
    """What makes token files that are not there, if a data.toml beside their folder describes them; else nothing."""
    place = location.resolve()
    for folder in (place, place.parent):
        run_file, described = folder.parent / "state.toml", folder.parent / "data.toml"
        try:
            data = load_data_file(described) if described.is_file() and run_file.is_file() else None
        except (ConfigError, OSError):
            continue
        if data is not None and data.text is not None and data.dir.resolve() == folder:
            given = f"--state {shlex.quote(str(run_file))} --data {shlex.quote(str(folder))}"
            return f", or make those of {described} with `psyche train-local {given} --steps 1`"

    return ""


def token_paths(location: Path) -> list[Path]:
    """The token files at `location`: the file itself, or those directly in the folder, by name.

    Raises InputError if there are none.
    """
    try:
        if location.is_file():
            return [location]

        found = sorted((path for path in location.iterdir() if path.suffix in EXTENSIONS and path.is_file()), key=_name)
    except OSError as error:
        message = (
            f"cannot look for token files in {location}: {error.strerror}; name the folder that holds them{_made_by(location)}"
        )
        raise InputError(message) from error
    except ValueError as error:  # a NUL character
        message = f"cannot look for token files in {str(location)!r}: it is not a path"
        raise InputError(message) from error

    if not found:
        names = f"*{', *'.join(EXTENSIONS)}"
        message = f"{location} has no token files; expected files named {names}; `psyche data tokenize` makes them from text"
        raise InputError(message)

    return found


def _name(path: Path) -> str:
    return path.name


def npy_data_start(head: bytes, *, token_size: int, name: str, size: int | None = None) -> int:
    """Offset of the first token in a file that starts with `head`: 0 unless it is a numpy header (NEP 1, versions 1.0 to 3.0).

    head: the first MAX_NPY_HEADER bytes, or the whole file if it is shorter. size: bytes of the whole file, if known. Raises
    DataError for a header of another dtype, order or form, and for a file shorter than its header says.
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

    if size is not None:
        _check_npy_size(shape, size - start, token_size=token_size, name=name)

    return start


def _check_npy_size(shape: object, size: int, *, token_size: int, name: str) -> None:
    if not isinstance(shape, tuple) or not all(type(length) is int and 0 <= length < 2**63 for length in shape):
        message = f"{name} begins like a numpy file but its header has no shape; write it again with numpy.save"
        raise DataError(message)

    tokens = math.prod(shape)
    if tokens * token_size > size:
        message = f"{name} is cut short: its header promises {tokens} tokens, {size // token_size} are there; copy it again"
        raise DataError(message)
