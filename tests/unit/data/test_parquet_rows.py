"""Rows of Parquet files: every integer type, lengths, blocks kept and dropped, damage."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.data.ordering.data_shuffle import shuffled_order
from psyche_core.data.parquet import reading as parquet_reading
from psyche_core.data.parquet import rows as room
from psyche_core.data.parquet.rows import ParquetRows
from psyche_core.errors import DataError
from psyche_core.interfaces.data import Samples

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

LENGTH = 4
SEED = bytes(range(1, 33))


def little(values: Iterable[int], signed: bool = False) -> bytes:
    return b"".join(value.to_bytes(4, "little", signed=signed) for value in values)


def row(number: int) -> list[int]:
    return [100 * number + step for step in range(LENGTH)]


def write(path: Path, numbers: Iterable[int], *, kind: Any = None, group: int = 3, **columns: Any) -> Path:
    kind = kind or pa.list_(pa.int32())
    table = {"inputs": pa.array([row(number) for number in numbers], type=kind)}
    table |= {name: pa.array(values) for name, values in columns.items()}
    pq.write_table(pa.table(table), path, row_group_size=group)
    return path


def opened(*paths: Path, **options: Any) -> ParquetRows:
    return ParquetRows(list(paths), sequence_length=LENGTH, **options)


@pytest.mark.parametrize("value", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("lists", ["list", "large", "fixed"])
def test_any_integer_lists_are_taken(tmp_path: Path, value: str, lists: str) -> None:
    kind = pa.type_for_alias(value)
    kind = {"list": pa.list_(kind), "large": pa.large_list(kind), "fixed": pa.list_(kind, LENGTH)}[lists]
    pq.write_table(pa.table({"inputs": pa.array([[1, 2, 3, 4], [5, 6, 7, 100]], type=kind)}), tmp_path / "a.parquet")

    assert opened(tmp_path / "a.parquet").read([1, 0]).tokens == little([5, 6, 7, 100, 1, 2, 3, 4])


def test_all_columns_arrive(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.parquet",
        range(2),
        labels=[[-100, -100, 2, 3], [100, 101, 102, -100]],
        position_ids=[[0, 1, 0, 1], [0, 1, 2, 3]],
        sequence_lengths=[[2, 2, 0], [4]],
        text=["other columns", "do not matter"],
    )

    assert opened(path).read([0, 1]) == Samples(
        little(row(0) + row(1)),
        2,
        LENGTH,
        4,
        labels=little([-100, -100, 2, 3, 100, 101, 102, -100], signed=True),
        position_ids=little([0, 1, 0, 1, 0, 1, 2, 3]),
        sequence_lengths=((2, 2), (4,)),
    )
    assert opened(path).read([]) == Samples(b"", 0, LENGTH, 4, b"", b"", ())


@settings(max_examples=50, deadline=None)
@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=3).filter(any),
    group=st.integers(1, 5),
    block_rows=st.integers(1, 4),
    kept_rows=st.integers(0, 12),
    seed=st.none() | st.just(SEED),
    reads=st.lists(st.lists(st.integers(0, 60), max_size=12), max_size=4),
)
def test_every_read_gives_the_rows_asked_for(
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    group: int,
    block_rows: int,
    kept_rows: int,
    seed: bytes | None,
    reads: list[list[int]],
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    numbers = iter(range(100))
    paths = [
        write(folder / f"{file}.parquet", [next(numbers) for _ in range(count)], group=group) for file, count in enumerate(counts)
    ]
    bytes_a_row = 4 * LENGTH
    rows = opened(*paths, shuffle_seed=seed, block_bytes=block_rows * bytes_a_row, cache_bytes=kept_rows * bytes_a_row)
    total = sum(counts)
    order = range(total) if seed is None else shuffled_order(total, seed)

    assert len(rows) == total
    for wanted in reads:
        samples = rows.read(wanted)
        assert samples.tokens == little(token for index in wanted for token in row(order[index % total]))
        assert rows._kept_bytes == sum(len(block.tokens) for block in rows._kept.values()) <= kept_rows * bytes_a_row


def test_rows_are_read_once_while_they_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", range(40), group=10)
    rows = opened(path, block_bytes=5 * 4 * LENGTH)
    started = []
    real = parquet_reading.group_blocks
    monkeypatch.setattr(
        room, "group_blocks", lambda file, group, **options: (started.append(group), real(file, group, **options))[1]
    )

    for index in range(40):
        rows.read([index])
    rows.read(range(40))
    assert started == [0, 1, 2, 3]

    small = opened(path, block_bytes=5 * 4 * LENGTH, cache_bytes=0)
    started.clear()
    small.read([0, 7, 12])
    small.read([0])
    assert started == [0, 1, 0]
    small.read([7])  # goes on in the same row group
    assert small.read([1]).tokens == little(row(1))  # and back
    assert started == [0, 1, 0, 0]


def test_a_big_row_group_is_never_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", range(3000), group=3000)
    rows = opened(path, block_bytes=100 * 4 * LENGTH, cache_bytes=300 * 4 * LENGTH)
    sizes = []
    real = parquet_reading._samples
    monkeypatch.setattr(parquet_reading, "_samples", lambda table, *rest: (sizes.append(table.num_rows), real(table, *rest))[1])

    assert rows.read([2999]).tokens == little(row(2999))
    assert sizes == [100] * 30
    assert rows._kept_bytes <= 300 * 4 * LENGTH


def test_parts_of_columns_are_their_own_numbers() -> None:
    lists = pa.array([[1, 2], [3, 4], [5, 6]], type=pa.list_(pa.uint32()))

    flat = parquet_reading._flat(pa.chunked_array([lists.slice(1)]), "inputs", pa.uint32(), 2)

    assert flat == little([3, 4, 5, 6])


def test_row_counts_are_saved_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psyche_core.data.ordering.dataset_index.WORTH_FILES", 1)
    path = write(tmp_path / "a.parquet", range(5))
    opened(path)
    calls = []
    real = parquet_reading.row_groups
    monkeypatch.setattr(room, "row_groups", lambda file: (calls.append(file), real(file))[1])

    assert len(opened(path)) == 5
    assert calls == []
    write(path, range(7))
    assert len(opened(path)) == 7
    assert len(calls) == 1


TOKENS = {"inputs": [[1, 2, 3, 4]]}


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"tokens": [[1, 2]]}, "has no column inputs, only tokens"),
        ({"inputs": ["text"]}, "the column inputs of .* is of type string, expected lists of integers"),
        ({"inputs": [[1.5] * 4]}, "is of type list<.*double>, expected lists of integers"),
        (TOKENS | {"labels": [7]}, "the column labels of .* is of type int64"),
    ],
)
def test_columns_of_another_kind_are_refused(tmp_path: Path, columns: Any, sentence: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")

    with pytest.raises(DataError, match=sentence):
        opened(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"inputs": [[1, 2, 3, 4], [1, 2, 3]]}, "inputs in .* has 3 numbers in its row 1, expected 4; prepare the data"),
        ({"inputs": [[1, 2, 3, 4, 5]]}, "inputs in .* has 5 numbers in its row 0, expected 4"),
        ({"inputs": [[1, 2, 3, 4], None]}, "has nothing in its row 1, expected 4"),
        ({"inputs": [[1, None, 3, 4]]}, "has gaps"),
        ({"inputs": [[1, -2, 3, 4]]}, "has a number that does not fit uint32"),
        ({"inputs": [[1, 2**32, 3, 4]]}, "has a number that does not fit uint32"),
        (TOKENS | {"labels": [[1, 2]]}, "labels in .* has 2 numbers"),
        (TOKENS | {"labels": [[2**31] * 4]}, "labels in .* does not fit int32"),
        (TOKENS | {"position_ids": [[-1] * 4]}, "position_ids in .* does not fit uint32"),
        (TOKENS | {"sequence_lengths": [[3, 2]]}, "sequence_lengths of sample 0 must be one or more lengths"),
        (TOKENS | {"sequence_lengths": [[-1, 2]]}, "sequence_lengths of sample 0"),
        (TOKENS | {"sequence_lengths": [[0, 0]]}, "sequence_lengths of sample 0"),
    ],
)
def test_rows_of_another_form_are_refused_when_read(tmp_path: Path, columns: Any, sentence: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    rows = opened(tmp_path / "a.parquet")

    for _ in range(2):
        with pytest.raises(DataError, match=sentence):
            rows.read([0, 1])


def test_a_file_without_the_columns_of_the_first_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [1], labels=[[1, 2, 3, 4]])
    write(tmp_path / "b.parquet", [2])

    with pytest.raises(DataError, match=r"b\.parquet has the columns inputs but .*a\.parquet has inputs, labels"):
        opened(tmp_path / "a.parquet", tmp_path / "b.parquet")


def test_no_rows_are_a_clear_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"inputs": pa.array([], type=pa.list_(pa.int32()))}), tmp_path / "a.parquet")

    with pytest.raises(DataError, match=r"the 1 Parquet files .* have no rows"):
        opened(tmp_path / "a.parquet")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"rubbish" * 100])
def test_what_is_no_parquet_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(content)

    with pytest.raises(DataError, match=r"a\.parquet cannot be read as a Parquet file .*; is it whole\?"):
        opened(tmp_path / "a.parquet")


def test_damage_inside_is_a_data_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", range(2000), group=2000)
    content = bytearray(path.read_bytes())
    content[10 : len(content) // 2] = bytes(len(content) // 2 - 10)
    path.write_bytes(content)
    rows = opened(path)

    with pytest.raises(DataError, match=r"a\.parquet cannot be read as a Parquet file"):
        rows.read(range(2000))


def test_a_file_that_changed_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", range(5))
    rows = opened(path)
    rows.read([0])
    write(path, range(50, 60))

    with pytest.raises(DataError, match=r"a\.parquet changed while it was in use"):
        rows.read([0])


def test_missing_pyarrow_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", range(5))
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)

    with pytest.raises(DataError, match=r"needs pyarrow; get it with: pip install 'psyche-core\[parquet\]'"):
        opened(path)
