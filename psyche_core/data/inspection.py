"""Reports the contents of training data: files, counts, the range of ids, a sample, and problems.

Every file is read completely, since a single id outside the vocabulary ends training; nothing is changed or saved. Data that
training could not use is a problem, described in a sentence. A file that cannot be read is also a problem; the other files are
still reported. If no token size is given, it comes from `dataset.json`, a numpy header, or a guess that is marked as one.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from psyche_core.data.ordering.dataset_index import FileStamp
from psyche_core.data.parquet import reading as parquet_reading
from psyche_core.data.parquet.files import ENDING
from psyche_core.data.text.tokenizing import TRAINING, VALIDATION, described
from psyche_core.data.token_files import EXTENSIONS, MAX_NPY_HEADER, NPY_MAGIC, npy_data_start, token_paths
from psyche_core.errors import DataError

SAMPLE_TOKENS = 64
CHUNK_TOKENS = 1 << 22
GUESS_TOKENS = 1 << 16

_CODES = {2: "H", 4: "I"}


@dataclass(slots=True)
class InspectedFile:
    """One file. tokens: number in a token file. rows: number in a Parquet file. ids: lowest and highest, None if there are none.

    lengths: shortest and longest row of a Parquet file, in tokens. unlabelled: share of its labels that are ignored.
    """

    path: Path
    size: int
    tokens: int = 0
    rows: int | None = None
    sequences: int | None = None
    ids: tuple[int, int] | None = None
    lengths: tuple[int, int] | None = None
    columns: tuple[str, ...] = ()
    row_groups: int | None = None
    unlabelled: float | None = None


@dataclass(slots=True)
class Inspection:
    """Everything about one folder or file.

    token_size_from: source of the token size. sample: some ids. problems: sentences, empty if there are none.
    """

    kind: Literal["tokens", "parquet"]
    files: list[InspectedFile] = field(default_factory=list)
    token_size: int | None = None
    token_size_from: str | None = None
    sample: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Number of tokens in all files."""
        return sum(file.tokens for file in self.files)

    @property
    def sequences(self) -> int | None:
        """Number of whole sequences in all files; None if no length was given."""
        counts = [file.sequences for file in self.files if file.sequences is not None]
        return sum(counts) if counts else None

    @property
    def ids(self) -> tuple[int, int] | None:
        """The lowest and highest id in all files."""
        found = [file.ids for file in self.files if file.ids is not None]
        return (min(low for low, _ in found), max(high for _, high in found)) if found else None


def inspect_data(
    place: Path,
    *,
    sequence_length: int | None = None,
    token_size: int | None = None,
    vocabulary: int | None = None,
    sample_at: int = 0,
) -> dict[str, Inspection]:
    """Inspect a file or folder; returns a result per part ("train", "validation", or "" if there are no parts). Blocking.

    sequence_length: tokens per sequence, None to count only tokens. token_size: 2 or 4 bytes, None to detect it. vocabulary: ids
    must be below it. sample_at: number of the token (in Parquet files, the row) where the sample begins. Raises DataError if
    there is nothing to inspect.
    """
    options: dict[str, Any] = {"sequence_length": sequence_length, "vocabulary": vocabulary, "sample_at": sample_at}
    if _parquet_files(place):
        return {"": _parquet(_parquet_files(place), **options)}

    if token_size is None:
        says = next(filter(None, map(described, (place, *place.absolute().parents[:2]))), None)
        if says is not None:
            options |= {"token_size": says["token_size"], "token_size_from": "dataset.json"}
    else:
        options |= {"token_size": token_size, "token_size_from": "--token-size"}
    parts = [part for part in (TRAINING, VALIDATION) if _has_tokens(place / part)]
    return {part: _tokens(token_paths(place / part), **options) for part in parts or [""]}


def _has_tokens(folder: Path) -> bool:
    try:
        return any(path.suffix in EXTENSIONS for path in folder.iterdir())
    except OSError:
        return False


def _parquet_files(place: Path) -> list[Path]:
    try:
        if place.is_file():
            return [place] if place.suffix.lower() == ENDING else []
        return sorted(path for path in place.rglob("*") if path.suffix.lower() == ENDING and path.is_file())
    except (OSError, ValueError) as error:
        message = f"cannot look for data in {str(place)!r}: {error}"
        raise DataError(message) from error


def _tokens(
    paths: Sequence[Path],
    *,
    sequence_length: int | None,
    vocabulary: int | None,
    sample_at: int,
    token_size: int | None = None,
    token_size_from: str | None = None,
) -> Inspection:
    found = Inspection("tokens")
    if token_size is None:
        token_size, token_size_from = _guessed_size(paths)
    found.token_size, found.token_size_from = token_size, token_size_from
    for path in paths:
        try:
            _token_file(found, path, token_size, sequence_length, sample_at)
        except (DataError, OSError) as error:
            text = f"cannot read {path}: {error.strerror}" if isinstance(error, OSError) else str(error)
            found.problems.append(text)

    _check_ids(found, vocabulary)
    if sequence_length is not None and not found.sequences:
        found.problems.append(f"there is not one whole sequence of {sequence_length} tokens; use a shorter max_seq_len")
    return found


def _token_file(found: Inspection, path: Path, token_size: int, sequence_length: int | None, sample_at: int) -> None:
    stamp = FileStamp.of(path)
    with path.open("rb") as stream:
        head = stream.read(MAX_NPY_HEADER) if path.suffix == ".npy" else b""
        start = npy_data_start(head, token_size=token_size, name=str(path), size=stamp.size)
        tokens, over = divmod(stamp.size - start, token_size)
        ids = None
        stream.seek(start)
        while chunk := stream.read(CHUNK_TOKENS * token_size):
            values = _numbers(chunk[: len(chunk) // token_size * token_size], token_size)
            if values:
                low, high = _range(values)
                ids = (low, high) if ids is None else (min(low, ids[0]), max(high, ids[1]))

        first = sample_at - found.tokens  # in this file, if it begins here
        if not found.sample and 0 <= first < tokens:
            stream.seek(start + first * token_size)
            size = min(SAMPLE_TOKENS, tokens - first) * token_size
            found.sample = _numbers(stream.read(size), token_size).tolist()

    sequences = None if sequence_length is None else tokens // sequence_length
    found.files.append(InspectedFile(path, stamp.size, tokens, sequences=sequences, ids=ids))
    if over:
        found.problems.append(
            f"{path} has {over} bytes after its last whole token of {token_size} bytes; was it cut, or is the token size another?"
        )
    if sequences == 0:
        found.problems.append(f"{path} has {tokens} tokens, not one whole sequence of {sequence_length}; none of it is used")


def _guessed_size(paths: Sequence[Path]) -> tuple[int, str]:
    """The token size from the first numpy header, else guessed from the first file.

    In the guess, ids have 4 bytes if most of their high halves are zero.
    """
    for path in paths:
        try:
            with path.open("rb") as stream:
                head = stream.read(4 * GUESS_TOKENS)
                size = path.stat().st_size
        except OSError:
            continue  # reported when the file is inspected
        if head.startswith(NPY_MAGIC):
            four = b"'<u4'" in head[:MAX_NPY_HEADER]
            return (4 if four else 2), "the numpy header"

        halves = _numbers(head[: len(head) // 4 * 4], 2)
        high = halves[1::2]
        if size % 4 == 0 and len(high) and sum(half < 16 for half in high) > 0.9 * len(high) and any(halves[::2]):
            low_too = sum(half < 16 for half in halves[::2]) > 0.9 * len(high)
            return (2 if low_too else 4), "a guess"
        return 2, "a guess"

    return 2, "a guess"


def _numbers(content: bytes, size: int) -> array[int]:
    values = array(_CODES[size], content)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _range(values: array[int]) -> tuple[int, int]:
    try:
        import numpy as np
    except ModuleNotFoundError:
        return min(values), max(values)

    numbers = np.frombuffer(values, dtype=f"u{values.itemsize}")
    return int(numbers.min()), int(numbers.max())


def _check_ids(found: Inspection, vocabulary: int | None) -> None:
    if vocabulary is None:
        return

    found.problems.extend(
        f"{file.path} has token id {file.ids[1]}, but the tokenizer's ids are below {vocabulary}; "
        "was it made with another tokenizer, or with another token size?"
        for file in found.files
        if file.ids is not None and file.ids[1] >= vocabulary
    )


def _parquet(paths: Sequence[Path], *, sequence_length: int | None, vocabulary: int | None, sample_at: int) -> Inspection:
    found = Inspection("parquet")
    for path in paths:
        try:
            _parquet_file(found, path, sequence_length, sample_at)
        except DataError as error:
            found.problems.append(str(error))

    _check_ids(found, vocabulary)
    return found


def _parquet_file(found: Inspection, path: Path, sequence_length: int | None, sample_at: int) -> None:
    stamp = FileStamp.of(path)
    columns = parquet_reading.columns_of(stamp)
    groups = parquet_reading.row_groups(stamp)
    file = InspectedFile(path, stamp.size, rows=0, columns=columns, row_groups=len(groups))
    before = sum(other.rows or 0 for other in found.files)
    ignored = labels = 0
    for batch in parquet_reading.raw_batches(stamp, columns):
        summary = parquet_reading.summary(batch, columns)
        first = sample_at - before - (file.rows or 0)
        if not found.sample and 0 <= first < batch.num_rows:
            found.sample = (batch.column(parquet_reading.INPUTS)[first].as_py() or [])[:SAMPLE_TOKENS]
        file.rows = (file.rows or 0) + batch.num_rows
        file.tokens += summary.tokens
        file.ids = _wider(file.ids, summary.ids)
        file.lengths = _wider(file.lengths, summary.lengths)
        ignored, labels = ignored + summary.ignored, labels + summary.labels

    file.unlabelled = ignored / labels if labels else None
    file.sequences = file.rows
    found.files.append(file)
    if file.ids is not None and file.ids[0] < 0:
        found.problems.append(f"{path} has token id {file.ids[0]}; ids must not be negative")
    if file.lengths is not None and file.lengths != (file.lengths[1],) * 2:
        found.problems.append(
            f"{path} has rows of {file.lengths[0]} to {file.lengths[1]} tokens; all must have exactly max_seq_len"
        )
    elif sequence_length is not None and file.lengths is not None and file.lengths[0] != sequence_length:
        found.problems.append(
            f"{path} has rows of {file.lengths[0]} tokens, not of {sequence_length}; prepare it for this length"
        )


def _wider(one: tuple[int, int] | None, other: tuple[int, int] | None) -> tuple[int, int] | None:
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])
