"""Rows of Parquet files as numbered samples: `inputs` and, if present, `labels`, `position_ids`, `sequence_lengths`.

A row is a sample; files are in the order given, all with the same columns. Rows are read on request, a block of a row group at a
time. The blocks read last are cached, up to a limit in bytes; the whole data set is never in memory. A row group larger than
that limit is read from its beginning to the requested block; reading continues from there while blocks are requested in order.
Files written with row groups of some thousand rows avoid this. Tokens have 4 bytes, whatever the files hold.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from psyche_core.data.ordering.dataset_index import FileContents, FileStamp, dataset_index
from psyche_core.data.parquet.reading import COLUMNS, TOKEN_SIZE, columns_of, group_blocks, row_groups
from psyche_core.data.sample_rows import picked
from psyche_core.data.token_files import SequenceIndex
from psyche_core.errors import DataError
from psyche_core.interfaces.data import Samples

CACHE_BYTES = 256 << 20
BLOCK_BYTES = 8 << 20
"""Decoded size, in bytes, of the rows that are read at once."""


@dataclass(frozen=True, slots=True, order=True)
class Block:
    """Some rows that are read together: number `number` of row group `group` of file `file`."""

    file: int
    group: int
    number: int


class ParquetRows:
    """The samples of Parquet files. Blocking: call it in a worker thread.

    paths: at least one, in order. sequence_length: tokens per sample. shuffle_seed: 32 bytes, or None for file order. cache:
    folder for the data set's index if the data's own folder is read-only. cache_bytes: size of the decoded rows kept in memory.
    block_bytes: size of the decoded rows read at once. Raises DataError if files are malformed, have different columns or no
    row, and if pyarrow is not installed.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        sequence_length: int,
        shuffle_seed: bytes | None = None,
        cache: Path | None = None,
        cache_bytes: int = CACHE_BYTES,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.sequence_length = sequence_length
        self.files: tuple[FileStamp, ...] = tuple(FileStamp.of(path) for path in paths)
        self.columns: tuple[str, ...] = columns_of(self.files[0])
        key = {"kind": "parquet", "columns": list(self.columns)}
        index = dataset_index(self.files, self._examined, key=key, seed=shuffle_seed, cache=cache)
        if not any(index.counts):
            message = f"the {len(self.files)} Parquet files from {paths[0]} on have no rows; expected a row per sample"
            raise DataError(message)

        self._groups = [(file, group) for file, each in enumerate(index.contents) for group in range(len(each.counts))]
        self._index = SequenceIndex(index.counts, order=index.order)
        self._block_rows = max(1, block_bytes // (sequence_length * TOKEN_SIZE * len(self.columns)))
        self._cache_bytes = cache_bytes
        self._kept: OrderedDict[Block, Samples] = OrderedDict()
        self._kept_bytes = 0
        self._stream: _GroupStream | None = None
        self._lock = Lock()

    def __len__(self) -> int:
        """Number of rows in all files."""
        return len(self._index)

    def read(self, indices: Iterable[int]) -> Samples:
        """The given samples in order. Raises DataError."""
        rows = [self._row(place) for place in self._index.places(indices)]
        wanted: dict[Block, dict[int, int]] = {}
        for block, row in rows:
            kept = wanted.setdefault(block, {})
            kept.setdefault(row, len(kept))

        if not rows:
            return self._nothing()

        with self._lock:
            files = [self.files[number] for number in sorted({block.file for block in wanted})]
            for file in files:
                file.check()
            parts = {block: picked({0: self._block(block)}, [(0, row) for row in wanted[block]]) for block in sorted(wanted)}
            for file in files:
                file.check()

        return picked(parts, [(block, wanted[block][row]) for block, row in rows])

    def _nothing(self) -> Samples:
        labels, positions, lengths = (name in self.columns for name in COLUMNS[1:])
        return Samples(
            b"", 0, self.sequence_length, TOKEN_SIZE, b"" if labels else None, b"" if positions else None, () if lengths else None
        )

    def _row(self, place: int) -> tuple[Block, int]:
        group = bisect_right(self._index.ends, place)
        number, row = divmod(place - (self._index.ends[group - 1] if group else 0), self._block_rows)
        return Block(*self._groups[group], number), row

    def _block(self, block: Block) -> Samples:
        """The rows of a block, from the cache or read now."""
        samples = self._kept.get(block)
        if samples is not None:
            self._kept.move_to_end(block)
            return samples

        stream = self._stream
        if stream is None or (stream.file, stream.group) != (block.file, block.group) or stream.next_number > block.number:
            stream = self._stream = _GroupStream(block.file, block.group, self._blocks_of(block.file, block.group))

        while True:
            try:
                samples = next(stream.blocks)
            except StopIteration:
                self._stream = None
                message = f"{self.files[block.file].path} has fewer rows than it says; write it again"
                raise DataError(message) from None
            except BaseException:
                self._stream = None
                raise

            number = stream.next_number
            stream.next_number += 1
            self._keep(Block(block.file, block.group, number), samples)
            if number == block.number:
                return samples

    def _blocks_of(self, file: int, group: int) -> Iterator[Samples]:
        return group_blocks(
            self.files[file],
            group,
            columns=self.columns,
            sequence_length=self.sequence_length,
            block_rows=self._block_rows,
        )

    def _keep(self, block: Block, samples: Samples) -> None:
        if block in self._kept:
            self._kept_bytes -= _size(self._kept.pop(block))
        self._kept[block] = samples
        self._kept_bytes += _size(samples)
        while self._kept_bytes > self._cache_bytes and self._kept:
            self._kept_bytes -= _size(self._kept.popitem(last=False)[1])

    def _examined(self, file: FileStamp) -> FileContents:
        columns = columns_of(file)
        if columns != self.columns:
            message = (
                f"{file.path} has the columns {', '.join(columns)} but {self.files[0].path} has {', '.join(self.columns)}; "
                "files of one data set must have the same"
            )
            raise DataError(message)

        return FileContents(0, row_groups(file))


@dataclass(slots=True)
class _GroupStream:
    """An iterator over the blocks of one row group, from its beginning. next_number: number of the next block."""

    file: int
    group: int
    blocks: Iterator[Samples]
    next_number: int = 0


def _size(samples: Samples) -> int:
    lengths = sum(map(len, samples.sequence_lengths)) * 32 if samples.sequence_lengths else 0
    return len(samples.tokens) + len(samples.labels or b"") + len(samples.position_ids or b"") + lengths
