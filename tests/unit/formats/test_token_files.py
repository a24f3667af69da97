"""Flat token files: counts, order, headers, damage."""

import io
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.errors import DataError
from psyche_core.formats.token_files import SequenceIndex, TokenFiles, adjacent_runs, npy_data_start, token_paths


def write(path: Path, values, dtype="<u2") -> None:
    path.write_bytes(numpy.asarray(values, dtype=dtype).tobytes())


def rows(files: TokenFiles) -> list[list[int]]:
    tokens = numpy.frombuffer(files.read(range(len(files))), dtype=f"<u{files.token_size}")
    return tokens.reshape(len(files), files.sequence_length).tolist()


@pytest.mark.parametrize(("tokens", "sequences"), [(4, 1), (5, 1), (7, 1), (8, 2), (12, 3), (13, 3)])
def test_b55_exact_multiples_keep_their_last_sequence(tmp_path, tokens, sequences):
    write(tmp_path / "a.bin", range(tokens))

    files = TokenFiles(tmp_path, sequence_length=4, token_size=2)

    assert rows(files) == [list(range(at, at + 4)) for at in range(0, 4 * sequences, 4)]


def test_b55_files_count_in_the_order_of_their_names(tmp_path):
    for name in ("b.bin", "a.ds", "c.npy", "B.bin"):
        write(tmp_path / name, [ord(name[0])] * 2)
    write(tmp_path / "notes.txt", [0, 0])

    assert [row[0] for row in rows(TokenFiles(tmp_path, sequence_length=2, token_size=2))] == [ord(letter) for letter in "Babc"]


def test_b55_a_file_shorter_than_a_sequence_gives_none(tmp_path):
    write(tmp_path / "a.bin", [1, 2, 3])
    write(tmp_path / "b.bin", [4, 5, 6, 7])

    assert rows(TokenFiles(tmp_path, sequence_length=4, token_size=2)) == [[4, 5, 6, 7]]


def test_only_short_files_are_a_clear_error(tmp_path):
    write(tmp_path / "a.bin", [1, 2, 3])

    with pytest.raises(DataError, match=r"1 token files but not one whole sequence of 4 tokens \(8 bytes\); use a shorter"):
        TokenFiles(tmp_path, sequence_length=4, token_size=2)


def test_folder_without_token_files_is_a_clear_error(tmp_path):
    with pytest.raises(DataError, match=r"has no token files; expected files named \*\.bin, \*\.ds, \*\.npy"):
        token_paths(tmp_path)


def test_a_single_file_of_any_name_is_taken(tmp_path):
    write(tmp_path / "tokens", [1, 2])

    assert rows(TokenFiles(tmp_path / "tokens", sequence_length=2, token_size=2)) == [[1, 2]]


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize(("dtype", "size"), [("<u2", 2), ("<u4", 4)])
def test_numpy_header_is_not_tokens(tmp_path, dtype, size, version):
    tokens = numpy.arange(12, dtype=dtype).reshape(3, 4)
    with (tmp_path / "a.npy").open("wb") as stream:
        numpy.lib.format.write_array(stream, tokens, version=version)

    assert rows(TokenFiles(tmp_path, sequence_length=4, token_size=size)) == tokens.tolist()


def npy_bytes(array) -> bytes:
    stream = io.BytesIO()
    numpy.save(stream, array)
    return stream.getvalue()


@pytest.mark.parametrize("dtype", [">u2", "<i2", "<u4", "<f2"])
def test_numpy_file_of_another_type_is_refused(dtype):
    with pytest.raises(DataError, match=r"x\.npy holds numpy type .*, expected '<u2'"):
        npy_data_start(npy_bytes(numpy.zeros(8, dtype)), token_size=2, name="x.npy")


def test_numpy_file_in_columns_is_refused():
    with pytest.raises(DataError, match="column by column"):
        npy_data_start(npy_bytes(numpy.asfortranarray(numpy.zeros((3, 4), "<u2"))), token_size=2, name="x.npy")


@given(st.binary(max_size=80))
def test_a_broken_numpy_header_is_a_data_error(tail):
    head = b"\x93NUMPY\x01\x00" + tail
    with pytest.raises(DataError):
        npy_data_start(head, token_size=2, name="x.npy")


@pytest.mark.parametrize("damage", ["cut", "rewritten", "removed"])
def test_a_file_that_changed_is_refused(tmp_path, damage):
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


@given(st.lists(st.integers(0, 6), min_size=1, max_size=8).filter(any), st.none() | st.binary(min_size=32, max_size=32))
def test_every_place_is_found_once(counts, seed):
    index = SequenceIndex(counts, shuffle_seed=seed)

    places = [index.locate(number) for number in range(len(index))]

    assert sorted(places) == [(file, at) for file, count in enumerate(counts) for at in range(count)]
    assert index.locate(len(index) + 1) == places[1 % len(index)]
    if seed is None:
        assert places == sorted(places)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=40), st.integers(1, 5))
def test_runs_unfold_to_the_places(places, at_most):
    runs = list(adjacent_runs(places, at_most=at_most))

    assert [(file, first + step) for file, first, count in runs for step in range(count)] == places
    assert all(count <= at_most for _, _, count in runs)


def test_neighbours_are_one_run():
    assert list(adjacent_runs([(0, 3), (0, 4), (1, 5), (1, 7)], at_most=10)) == [(0, 3, 2), (1, 5, 1), (1, 7, 1)]
