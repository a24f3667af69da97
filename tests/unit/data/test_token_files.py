"""Flat token files: counts, order, headers, damage."""

import io
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.data.mapped_files import MappedFiles
from psyche_core.data.ordering.data_shuffle import shuffled_order
from psyche_core.data.token_files import SequenceIndex, TokenFiles, npy_data_start, token_paths
from psyche_core.errors import DataError


def write(path: Path, values: Iterable[int], dtype: str = "<u2") -> None:
    path.write_bytes(numpy.asarray(values, dtype=dtype).tobytes())


def rows(files: TokenFiles) -> list[list[int]]:
    tokens = numpy.frombuffer(files.read(range(len(files))), dtype=f"<u{files.token_size}")
    return tokens.reshape(len(files), files.sequence_length).tolist()


@pytest.mark.parametrize(("tokens", "sequences"), [(4, 1), (5, 1), (7, 1), (8, 2), (12, 3), (13, 3)])
def test_b55_exact_multiples_keep_their_last_sequence(tmp_path: Path, tokens: int, sequences: int) -> None:
    write(tmp_path / "a.bin", range(tokens))

    files = TokenFiles(tmp_path, sequence_length=4, token_size=2)

    assert rows(files) == [list(range(at, at + 4)) for at in range(0, 4 * sequences, 4)]


def test_b55_files_count_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.bin", "a.ds", "c.npy", "B.bin"):
        write(tmp_path / name, [ord(name[0])] * 2)
    write(tmp_path / "notes.txt", [0, 0])

    assert [row[0] for row in rows(TokenFiles(tmp_path, sequence_length=2, token_size=2))] == [ord(letter) for letter in "Babc"]


def test_b55_a_file_shorter_than_a_sequence_gives_none(tmp_path: Path) -> None:
    write(tmp_path / "a.bin", [1, 2, 3])
    write(tmp_path / "b.bin", [4, 5, 6, 7])

    assert rows(TokenFiles(tmp_path, sequence_length=4, token_size=2)) == [[4, 5, 6, 7]]


def test_only_short_files_are_a_clear_error(tmp_path: Path) -> None:
    write(tmp_path / "a.bin", [1, 2, 3])

    with pytest.raises(
        DataError, match=r"1 token files but not one whole sequence of 4 tokens \(8 bytes\); the longest has 6 bytes"
    ):
        TokenFiles(tmp_path, sequence_length=4, token_size=2)


def test_folder_without_token_files_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no token files; expected files named \*\.bin, \*\.ds, \*\.npy"):
        token_paths(tmp_path)


def test_a_single_file_of_any_name_is_taken(tmp_path: Path) -> None:
    write(tmp_path / "tokens", [1, 2])

    assert rows(TokenFiles(tmp_path / "tokens", sequence_length=2, token_size=2)) == [[1, 2]]


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize(("dtype", "size"), [("<u2", 2), ("<u4", 4)])
def test_numpy_header_is_not_tokens(tmp_path: Path, dtype: str, size: int, version: tuple[int, int]) -> None:
    tokens = numpy.arange(12, dtype=dtype).reshape(3, 4)
    with (tmp_path / "a.npy").open("wb") as stream:
        numpy.lib.format.write_array(stream, tokens, version=version)

    assert rows(TokenFiles(tmp_path, sequence_length=4, token_size=size)) == tokens.tolist()


def npy_bytes(array: numpy.ndarray[Any, Any]) -> bytes:
    stream = io.BytesIO()
    numpy.save(stream, array)
    return stream.getvalue()


@pytest.mark.parametrize("dtype", [">u2", "<i2", "<u4", "<f2"])
def test_numpy_file_of_another_type_is_refused(dtype: str) -> None:
    with pytest.raises(DataError, match=r"x\.npy holds numpy type .*, expected '<u2'"):
        npy_data_start(npy_bytes(numpy.zeros(8, dtype)), token_size=2, name="x.npy")


def test_numpy_file_in_columns_is_refused() -> None:
    with pytest.raises(DataError, match="column by column"):
        npy_data_start(npy_bytes(numpy.asfortranarray(numpy.zeros((3, 4), "<u2"))), token_size=2, name="x.npy")


@given(st.binary(max_size=80))
def test_a_broken_numpy_header_is_a_data_error(tail: bytes) -> None:
    head = b"\x93NUMPY\x01\x00" + tail
    with pytest.raises(DataError):
        npy_data_start(head, token_size=2, name="x.npy")


@pytest.mark.parametrize("damage", ["cut", "rewritten", "removed"])
def test_a_file_that_changed_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.bin"
    write(path, range(8))
    files = TokenFiles(tmp_path, sequence_length=4, token_size=2)

    if damage == "cut":
        path.write_bytes(path.read_bytes()[:9])
    elif damage == "rewritten":
        write(path, range(100, 120))
    else:
        path.unlink()

    with pytest.raises(DataError, match=r"a\.bin"):
        files.read([1])


def test_half_a_token_at_the_end_is_said_and_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.bin").write_bytes(bytes([1, 0, 2, 0, 3, 0, 4]))

    assert rows(TokenFiles(tmp_path, sequence_length=1, token_size=2)) == [[1], [2], [3]]
    assert "a.bin ends with 1 bytes that are not a whole token of 2 bytes; was the file cut" in caplog.text


def test_a_numpy_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    numpy.save(tmp_path / "a.npy", numpy.arange(100, dtype="<u2").reshape(20, 5))
    content = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(content[:-51])

    with pytest.raises(DataError, match=r"a\.npy is cut short: its header promises 100 tokens, 74 are there"):
        TokenFiles(tmp_path, sequence_length=5, token_size=2)


@pytest.mark.parametrize("shape", ["(-1,)", "(2.0,)", "5", "('a',)"])
def test_a_numpy_file_without_a_shape_is_refused(shape: str) -> None:
    header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': {shape}, }}".encode()
    head = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header

    with pytest.raises(DataError, match=r"x\.npy begins like a numpy file but its header has no shape"):
        npy_data_start(head, token_size=2, name="x.npy", size=1000)


def test_an_unreadable_file_of_a_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.bin", range(8))
    write(tmp_path / "b.bin", range(8))
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: not str(path).endswith("b.bin") and real(path, mode)
    )  # root may read all

    with pytest.raises(DataError, match=r"cannot read the data file .*b\.bin: Permission denied"):
        TokenFiles(tmp_path, sequence_length=4, token_size=2)


def test_a_file_cut_while_it_is_mapped_does_not_kill_the_process(tmp_path: Path) -> None:
    write(tmp_path / "a.bin", range(50_000))
    files = TokenFiles(tmp_path, sequence_length=10_000, token_size=2)
    files.read([0])
    os.truncate(tmp_path / "a.bin", 8192)  # touching what is gone would be SIGBUS

    with pytest.raises(DataError, match=r"a\.bin changed while it was in use \(it had 100000 bytes, now 8192\)"):
        files.read([4])


@pytest.mark.parametrize("when", ["before the copy", "after the copy"])
def test_a_change_during_a_read_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    write(tmp_path / "a.bin", range(8))
    files = TokenFiles(tmp_path, sequence_length=4, token_size=2)
    real = TokenFiles._copied

    def change_meanwhile(self: Any, views: Any, pieces: list[Any]) -> Any:
        if when == "before the copy":
            os.utime(tmp_path / "a.bin", ns=(7, 7))
        copied = real(self, views, pieces)
        os.utime(tmp_path / "a.bin", ns=(8, 8))
        return copied

    monkeypatch.setattr(TokenFiles, "_copied", change_meanwhile)
    if when == "after the copy":
        files.read([0])  # complete before the change
    with pytest.raises(DataError, match=r"a\.bin changed while it was in use"):
        files.read([0])


def open_below(folder: Path) -> int:
    """Our open files in a folder, mappings included."""
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line}
    return len(mapped)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="counts mappings the way Linux shows them")
def test_few_of_many_files_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        write(tmp_path / f"{number:02}.bin", range(10 * number, 10 * number + 8))
    files = TokenFiles(tmp_path, sequence_length=4, token_size=2, most_open=5)

    most = []
    real = MappedFiles.view
    monkeypatch.setattr(MappedFiles, "view", lambda self, file: (real(self, file), most.append(open_below(tmp_path)))[0])

    everything = [10 * number + 4 * half + step for number in range(40) for half in range(2) for step in range(4)]
    assert numpy.frombuffer(files.read(range(80)), "<u2").tolist() == everything
    assert 0 < open_below(tmp_path) <= 5
    backwards = numpy.frombuffer(files.read(reversed(range(80))), "<u2").reshape(80, 4)[::-1]
    assert backwards.ravel().tolist() == everything
    assert max(most) <= 6  # the one that comes next is opened before the longest unused is let go

    del files
    assert open_below(tmp_path) == 0


def test_threads_may_read_at_once(tmp_path: Path) -> None:
    for number in range(12):
        write(tmp_path / f"{number:02}.bin", [number] * 4000)
    files = TokenFiles(tmp_path, sequence_length=4, token_size=2, most_open=2)
    expected = files.read(range(12_000))

    with ThreadPoolExecutor(4) as threads:
        for tokens in threads.map(lambda _: files.read(range(12_000)), range(16)):
            assert tokens == expected


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any),
    strays=st.integers(0, 2),
    header=st.booleans(),
    seed=st.none() | st.binary(min_size=32, max_size=32),
    wanted=st.lists(st.integers(0, 2**62), max_size=10),
)
def test_every_read_gives_the_sequences_asked_for(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], strays: int, header: bool, seed: bytes | None, wanted: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("tokens")
    sequences, token = [], 0
    for number, count in enumerate(counts):
        values = list(range(token, token + 3 * count + strays))
        token += len(values)
        if header and number % 2:
            numpy.save(folder / f"{number}.npy", numpy.array(values, "<u2"))
        else:
            write(folder / f"{number}.bin", values)
        sequences += [values[3 * at : 3 * at + 3] for at in range(count)]

    files = TokenFiles(folder, sequence_length=3, token_size=2, shuffle_seed=seed)
    order = range(len(sequences)) if seed is None else shuffled_order(len(sequences), seed)

    found = numpy.frombuffer(files.read(wanted), "<u2").reshape(len(wanted), 3).tolist()
    assert found == [sequences[order[index % len(sequences)]] for index in wanted]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=8).filter(any), st.none() | st.binary(min_size=32, max_size=32))
def test_every_place_is_found_once(counts: list[int], seed: bytes | None) -> None:
    index = SequenceIndex(counts, shuffle_seed=seed)

    places = [index.locate(number) for number in range(len(index))]

    assert sorted(places) == [(file, at) for file, count in enumerate(counts) for at in range(count)]
    assert index.locate(len(index) + 1) == places[1 % len(index)]
    if seed is None:
        assert places == sorted(places)
