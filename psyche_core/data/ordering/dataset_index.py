"""An index of a data set's files, computed once and saved: where data begins, how much there is, the shuffled order.

The index is stored beside the data as `.psyche-index-<hash>`, one per way of reading (kind, sequence length, seed …), or in a
cache folder if the data's folder is not writable. If neither is, it is computed each time. It is valid only while the name, size
and modification time of every file are unchanged. A damaged or outdated index is computed again, and this is reported once. It
is written under a temporary name, synced, then renamed, so several processes may write it at the same time. The file carries its
own SHA-256, so that training never uses a damaged order; it holds only numbers and names.

    magic, 8 bytes | SHA-256 of the rest | length of the header, 4 bytes | header, JSON | order, 4 bytes a sequence
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import tempfile
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from psyche_core.data.ordering.data_shuffle import MAX_SEQUENCES, shuffled_order
from psyche_core.errors import DataError, InputError

MAGIC = b"PSYIDX1\n"
MAX_HEADER = 256 << 20
"""Maximum size of the header in bytes of JSON; a file or row group takes about fifty."""

WORTH_SEQUENCES = 50_000
WORTH_FILES = 32
"""An index with a shorter order and fewer files is computed faster than it is read, and so is not saved."""

logger: logging.Logger = logging.getLogger("psyche.data")


@dataclass(frozen=True, slots=True)
class FileStamp:
    """The recorded state of a file. size: bytes. changed: modification time in ns."""

    path: Path
    size: int
    changed: int

    @classmethod
    def of(cls, path: Path) -> FileStamp:
        """Record the state of a file. Raises DataError if it cannot be opened for reading."""
        try:
            status = path.stat()
            if not os.access(path, os.R_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            message = f"cannot read the data file {path}: {error.strerror}; make it readable or take it away"
            raise InputError(message) from error

        return cls(path, status.st_size, status.st_mtime_ns)

    def check(self) -> None:
        """Raise DataError if the file has changed since it was recorded."""
        try:
            status = self.path.stat()
        except OSError as error:
            message = f"cannot read {self.path}, which was there before: {error.strerror}; put it back or start again"
            raise DataError(message) from error

        if (status.st_size, status.st_mtime_ns) != (self.size, self.changed):
            message = (
                f"{self.path} changed while it was in use (it had {self.size} bytes, now {status.st_size}); "
                "put the old file back or start again, so that everybody reads the same tokens"
            )
            raise DataError(message)


@dataclass(frozen=True, slots=True)
class FileContents:
    """The contents of one file. start: byte where data begins. counts: sequences in each part (a flat file is one part)."""

    start: int
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DatasetIndex:
    """The contents of every file in order, and the shuffled order of all their sequences (None for file order)."""

    contents: tuple[FileContents, ...]
    order: array[int] | None

    @property
    def counts(self) -> list[int]:
        """Number of sequences in every part of every file, in one list."""
        return [count for file in self.contents for count in file.counts]


def dataset_index(
    files: Sequence[FileStamp],
    examine: Callable[[FileStamp], FileContents],
    *,
    key: Mapping[str, Any],
    seed: bytes | None,
    cache: Path | None = None,
) -> DatasetIndex:
    """The index of `files`: the saved one if it is still valid, else a new one, which is saved if reading it would save time.

    files: at least one, in order; the index is saved in the folder of the first. examine: returns the contents of one file. key:
    everything else that the contents depend on, as plain JSON values. seed: 32 bytes to shuffle with, None for file order.
    cache: folder for the index of data whose folder is read-only. Raises DataError, and the errors of `examine`.
    """
    header = {
        **key,
        "seed": None if seed is None else seed.hex(),
        "files": [[file.path.name, file.size, file.changed] for file in files],
    }
    places = _places(files, {**key, "seed": header["seed"]}, cache)
    for place in places:
        saved = _load(place, header)
        if saved is not None:
            return saved

    contents = tuple(examine(file) for file in files)
    total = sum(count for file in contents for count in file.counts)
    index = DatasetIndex(contents, None if seed is None else shuffled_order(total, seed))
    worth = len(files) >= WORTH_FILES or (seed is not None and total >= WORTH_SEQUENCES)
    if worth or any(place.exists() for place in places):  # otherwise every start would report an outdated one
        _save(places, header, index)

    return index


def _places(files: Sequence[FileStamp], key: Mapping[str, Any], cache: Path | None) -> list[Path]:
    """The possible paths of the index, best first. A file that is read alone has its own index name."""
    folder = files[0].path.parent
    alone = files[0].path.name if len(files) == 1 else ""
    own = hashlib.sha256(json.dumps([key, alone], sort_keys=True).encode()).hexdigest()[:16]
    places = [folder / f".psyche-index-{own}"]
    if cache is not None:
        there = hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:16]
        places.append(cache / "indexes" / f"{there}-{own}")

    return places


def _load(place: Path, header: Mapping[str, Any]) -> DatasetIndex | None:
    try:
        with place.open("rb") as stream:
            found, order = _read(stream)
        contents = tuple(FileContents(start, tuple(counts)) for start, counts in found.pop("contents"))
        index = DatasetIndex(contents, order)
        total = sum(index.counts)
        sound = len(contents) == len(header["files"]) and (order is None or len(order) == total)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        logger.warning("the data index %s cannot be used (%s); it is made again", place, error)
        return None

    if found != header or not sound:
        logger.warning("the data index %s is of other files than are there now; it is made again", place)
        return None

    return index


def _read(stream: BinaryIO) -> tuple[dict[str, Any], array[int] | None]:
    """Header and order of an index file. Raises ValueError if it is damaged or not an index file."""
    size = os.fstat(stream.fileno()).st_size
    head = stream.read(len(MAGIC) + 36)
    digest, length = head[len(MAGIC) : -4], int.from_bytes(head[-4:], "little")
    order_bytes = size - len(head) - length
    if not head.startswith(MAGIC) or not 0 <= length <= MAX_HEADER or not 0 <= order_bytes <= 4 * MAX_SEQUENCES:
        raise ValueError("it is not a data index of this version")

    text = stream.read(length)
    order = array("I", bytes(order_bytes // 4 * 4))
    if stream.readinto(memoryview(order).cast("B")) != order_bytes:  # type: ignore[attr-defined]  # a real file has it
        raise ValueError("it is cut short")
    if _digest(text, order) != digest:
        raise ValueError("it is damaged")
    if sys.byteorder == "big":
        order.byteswap()

    header = json.loads(text)
    return header, order if header["seed"] is not None else None


def _save(places: Sequence[Path], header: Mapping[str, Any], index: DatasetIndex) -> None:
    """Write the index to the first writable place. If there is none, nothing is saved, and the next start is slower."""
    text = json.dumps({**header, "contents": [[file.start, file.counts] for file in index.contents]}).encode()
    order = index.order if index.order is not None else array("I")
    if sys.byteorder == "big":
        order = order[:]
        order.byteswap()

    for place in places:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            _write(place, [MAGIC, _digest(text, order), len(text).to_bytes(4, "little"), text, order])
        except OSError as error:
            logger.debug("the data index is not saved to %s: %s", place, error)
        else:
            return


def _write(place: Path, pieces: Sequence[bytes | array[int]]) -> None:
    with tempfile.NamedTemporaryFile(dir=place.parent, prefix=f"{place.name}.", suffix=".partial", delete=False) as stream:
        partial = Path(stream.name)
        try:
            for piece in pieces:
                stream.write(piece)
            stream.flush()
            os.fsync(stream.fileno())
            partial.chmod(0o644)  # the folder's permissions protect it, like the data beside it
            partial.replace(place)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def _digest(text: bytes, order: array[int]) -> bytes:
    digest = hashlib.sha256(len(text).to_bytes(4, "little"))
    digest.update(text)
    digest.update(order)
    return digest.digest()
