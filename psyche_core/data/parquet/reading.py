"""Reading Parquet files: their columns, their row groups, and rows as samples. Needs pyarrow (extra `parquet`).

`inputs`, `labels` and `position_ids` must have exactly the run's sequence length. `sequence_lengths` gives the lengths of texts
packed in the row (zeros in it are padding and dropped). Any integer lists are accepted; for values that do not fit, the error
names their position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psyche_core.data.ordering.dataset_index import FileStamp
from psyche_core.errors import DataError
from psyche_core.interfaces.data import IGNORED_LABEL, Samples

if TYPE_CHECKING:
    import pyarrow as pa

TOKEN_SIZE = 4
READ_BUFFER = 1 << 20

INPUTS, LABELS, POSITIONS, LENGTHS = COLUMNS = ("inputs", "labels", "position_ids", "sequence_lengths")
EXTRA = "reading Parquet files needs pyarrow; get it with: pip install 'psyche-core[parquet]'"


def columns_of(file: FileStamp) -> tuple[str, ...]:
    """The columns of a file that are also in COLUMNS, in that order. Raises DataError."""
    pa = _pyarrow()
    with _opened(file) as parquet:
        schema = parquet.schema_arrow
    found = tuple(name for name in COLUMNS if name in schema.names)
    if INPUTS not in found:
        message = f"{file.path} has no column {INPUTS}, only {', '.join(schema.names[:8])}; expected lists of token ids there"
        raise DataError(message)

    for name in found:
        kind = schema.field(name).type
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        if not is_list or not pa.types.is_integer(kind.value_type):
            message = f"the column {name} of {file.path} is of type {kind}, expected lists of integers"
            raise DataError(message)

    return found


def row_groups(file: FileStamp) -> tuple[int, ...]:
    """Number of rows in each row group of a file. Raises DataError."""
    with _opened(file) as parquet:
        return tuple(parquet.metadata.row_group(group).num_rows for group in range(parquet.metadata.num_row_groups))


def group_blocks(
    file: FileStamp, group: int, *, columns: Sequence[str], sequence_length: int, block_rows: int
) -> Iterator[Samples]:
    """The rows of a row group in blocks of `block_rows`; the last block may be shorter. Raises DataError."""
    pa = _pyarrow()
    first = 0
    pending: list[Any] = []
    with _opened(file) as parquet:
        batches = parquet.iter_batches(batch_size=block_rows, row_groups=[group], columns=list(columns), use_threads=False)
        for batch in batches:
            pending.append(batch)
            while sum(part.num_rows for part in pending) >= block_rows:
                table = pa.Table.from_batches(pending)
                pending = table.slice(block_rows).to_batches()
                yield _samples(table.slice(0, block_rows), file, f"row {first} of row group {group}", sequence_length)
                first += block_rows

        if any(part.num_rows for part in pending):
            yield _samples(pa.Table.from_batches(pending), file, f"row {first} of row group {group}", sequence_length)


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of some rows. tokens: number in their inputs. ids, lengths: lowest and highest, None if there are none.

    labels: number of labels. ignored: number of ignored labels.
    """

    tokens: int
    ids: tuple[int, int] | None
    lengths: tuple[int, int] | None
    labels: int
    ignored: int


def raw_batches(file: FileStamp, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """All rows of a file in batches, without checks of their values. Raises DataError."""
    with _opened(file) as parquet:
        yield from parquet.iter_batches(batch_size=1024, columns=list(columns), use_threads=False)


def summary(batch: pa.RecordBatch, columns: Sequence[str]) -> Summary:
    """Figures of rows for inspection. Rows that training would reject are counted, too."""
    import pyarrow.compute as pc

    inputs = batch.column(INPUTS)
    ids, lengths = (pc.min_max(numbers) for numbers in (inputs.flatten(), pc.fill_null(pc.list_value_length(inputs), 0)))
    labels = batch.column(LABELS).flatten() if LABELS in columns else []
    ignored = pc.sum(pc.equal(labels, IGNORED_LABEL)).as_py() or 0 if len(labels) else 0
    low, high = ids["min"].as_py(), ids["max"].as_py()
    shortest, longest = lengths["min"].as_py(), lengths["max"].as_py()
    return Summary(
        tokens=len(inputs.flatten()),
        ids=None if low is None else (low, high),
        lengths=None if shortest is None else (shortest, longest),
        labels=len(labels),
        ignored=ignored,
    )


def _samples(table: pa.Table, file: FileStamp, first: str, sequence_length: int) -> Samples:
    """A table as samples. first: name of its first row in messages."""
    pa = _pyarrow()
    where = f"{file.path} (from {first} on)"
    flat = {
        name: _flat(table.column(name), f"{name} in {where}", pa.int32() if name == LABELS else pa.uint32(), sequence_length)
        for name in (INPUTS, LABELS, POSITIONS)
        if name in table.column_names
    }
    lengths = None
    if LENGTHS in table.column_names:
        lengths = tuple(tuple(length for length in row or () if length) for row in table.column(LENGTHS).to_pylist())
    try:
        return Samples(flat[INPUTS], table.num_rows, sequence_length, TOKEN_SIZE, flat.get(LABELS), flat.get(POSITIONS), lengths)
    except (ValueError, TypeError) as error:
        message = f"{where}: {error}; prepare the data for max_seq_len = {sequence_length}"
        raise DataError(message) from error


def _flat(column: pa.ChunkedArray, name: str, wanted: pa.DataType, sequence_length: int) -> bytes:
    """The numbers of a column of lists, concatenated. Each list must have `sequence_length` numbers. name: for messages."""
    import pyarrow.compute as pc

    pa = _pyarrow()
    lists = pa.concat_arrays(column.chunks)
    right = pc.fill_null(pc.equal(pc.list_value_length(lists), sequence_length), fill_value=False)
    if not pc.all(right).as_py():
        row = pc.index(right, value=False).as_py()
        length = pc.list_value_length(lists)[row].as_py()
        got = "nothing" if length is None else f"{length} numbers"
        message = f"{name} has {got} in its row {row}, expected {sequence_length}; prepare the data for this max_seq_len"
        raise DataError(message)

    numbers = lists.flatten()
    if numbers.null_count:
        message = f"{name} has gaps (nulls) among its numbers; expected {sequence_length} numbers in every row"
        raise DataError(message)

    try:
        numbers = numbers.cast(wanted)
    except pa.ArrowInvalid as error:
        message = f"{name} has a number that does not fit {wanted}: {error}"
        raise DataError(message) from error

    content = memoryview(numbers.buffers()[1])
    size = wanted.bit_width // 8
    return content[numbers.offset * size : (numbers.offset + len(numbers)) * size].tobytes()


@contextmanager
def _opened(file: FileStamp) -> Iterator[Any]:
    """An open Parquet file. Every error in the block, also while reading it, becomes a DataError."""
    pa = _pyarrow()
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file.path, buffer_size=READ_BUFFER, pre_buffer=False) as parquet:
            yield parquet
    except (pa.ArrowException, OSError, OverflowError) as error:
        message = f"{file.path} cannot be read as a Parquet file ({_first_line(error)}); is it whole?"
        raise DataError(message) from error


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ModuleNotFoundError as error:
        raise DataError(EXTRA) from error

    return pyarrow
