"""The saved index of a data set: used while it fits, made again and said once when it does not."""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psyche_core.data.ordering import dataset_index as room
from psyche_core.data.ordering.data_shuffle import shuffled_order
from psyche_core.data.ordering.dataset_index import DatasetIndex, FileContents, FileStamp, dataset_index
from psyche_core.errors import DataError

SEED = bytes(range(1, 33))


@pytest.fixture(autouse=True)
def _always_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "WORTH_SEQUENCES", 0)


class Folder:
    """A folder of files whose contents are their own lengths, and how often one was examined."""

    def __init__(self, path: Path, count: int = 3) -> None:
        self.path = path
        self.examined = 0
        for number in range(count):
            (path / f"{number}.bin").write_bytes(bytes(number + 1))

    def index(self, *, seed: bytes | None = SEED, cache: Path | None = None, kind: str = "test") -> DatasetIndex:
        def examine(file: FileStamp) -> FileContents:
            self.examined += 1
            return FileContents(start=7, counts=(file.size, 0))

        files = [FileStamp.of(path) for path in sorted(self.path.glob("*.bin"))]
        return dataset_index(files, examine, key={"kind": kind}, seed=seed, cache=cache)

    def saved(self) -> list[Path]:
        return sorted(self.path.glob(".psyche-index-*"))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    path = tmp_path / "data"
    path.mkdir()
    return Folder(path)


def test_a_second_look_examines_no_file(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    first = folder.index()
    again = folder.index()

    assert folder.examined == 3
    assert again == first
    assert again.counts == [1, 0, 2, 0, 3, 0]
    assert again.order == shuffled_order(6, SEED)
    assert not caplog.records


def test_without_a_seed_there_is_no_order(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "WORTH_FILES", 0)
    folder.index(seed=None)

    assert folder.index(seed=None).order is None
    assert folder.examined == 3


@pytest.mark.parametrize("change", ["size", "time", "removed", "added", "renamed"])
def test_changed_files_are_examined_again_and_it_is_said_once(
    folder: Folder, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    folder.index()
    target = folder.path / "1.bin"
    if change == "size":
        status = target.stat()
        target.write_bytes(bytes(9))
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "time":
        os.utime(target, ns=(1, 1))
    elif change == "removed":
        target.unlink()
    elif change == "added":
        (folder.path / "9.bin").write_bytes(b"x")
    else:
        target.rename(folder.path / "1b.bin")

    folder.examined = 0
    second = folder.index()
    assert folder.examined == len(second.contents)
    assert folder.index() == second
    assert folder.examined == len(second.contents)
    assert ["of other files" in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize("seed", [SEED, None])
@pytest.mark.parametrize("kind", ["test", "other"])
def test_every_way_of_reading_has_an_index_of_its_own(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, seed: bytes | None, kind: str
) -> None:
    monkeypatch.setattr(room, "WORTH_FILES", 0)
    folder.index()
    folder.index(seed=seed, kind=kind)

    assert len(folder.saved()) == (1 if (seed, kind) == (SEED, "test") else 2)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_index_is_made_again(folder: Folder, data: st.DataObject) -> None:
    good = folder.index()
    (place,) = folder.saved()
    content = place.read_bytes()
    kind = data.draw(st.sampled_from(["flip", "cut", "append", "replace"]))
    at = data.draw(st.integers(0, len(content) - 1))
    if kind == "flip":
        damaged = content[:at] + bytes([content[at] ^ (1 << data.draw(st.integers(0, 7)))]) + content[at + 1 :]
    elif kind == "cut":
        damaged = content[:at]
    elif kind == "append":
        damaged = content + data.draw(st.binary(min_size=1, max_size=8))
    else:
        damaged = data.draw(st.binary(max_size=200))

    place.write_bytes(damaged)
    folder.examined = 0

    assert folder.index() == good
    assert folder.examined == 3, "a damaged index was believed"
    assert place.read_bytes() == content


def test_damage_is_said_once(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    folder.index()
    (place,) = folder.saved()
    place.write_bytes(b"rubbish")

    folder.index()
    folder.index()

    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "cannot be used (it is not a data index of this version); it is made again" in caplog.text


def test_a_read_only_folder_has_its_index_in_the_cache(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = room._write

    def refuse_the_folder(place: Path, pieces: Sequence[bytes | array[int]]) -> None:
        if place.parent == folder.path:
            raise PermissionError(13, "Permission denied")  # root may write anywhere, so the mode would not do
        real(place, pieces)

    monkeypatch.setattr(room, "_write", refuse_the_folder)
    cache = tmp_path / "cache"

    assert folder.index(cache=cache) == folder.index(cache=cache)
    assert folder.examined == 3
    assert len(list((cache / "indexes").iterdir())) == 1
    assert folder.saved() == []


def test_where_nothing_can_be_written_it_still_works(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(place: Path, pieces: Sequence[bytes | array[int]]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(room, "_write", refuse)

    assert folder.index() == folder.index()
    assert folder.examined == 6


def test_an_unfinished_write_leaves_nothing_behind(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    folder.index()

    assert sorted(path.name for path in folder.path.iterdir()) == ["0.bin", "1.bin", "2.bin"]


def test_small_data_sets_leave_no_index(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "WORTH_SEQUENCES", 7)
    folder.index()

    assert folder.saved() == []


def test_an_outdated_index_of_a_data_set_that_shrank_is_complained_of_once(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder.index()
    monkeypatch.setattr(room, "WORTH_SEQUENCES", 1000)
    (folder.path / "2.bin").unlink()

    folder.index()
    folder.index()

    assert len(caplog.records) == 1


def test_two_ways_to_one_file_do_not_overwrite_each_other(tmp_path: Path) -> None:
    for name in ("a.bin", "b.bin"):
        (tmp_path / name).write_bytes(bytes(4))
    for name in ("a.bin", "b.bin"):
        dataset_index([FileStamp.of(tmp_path / name)], lambda file: FileContents(0, (4,)), key={}, seed=SEED)

    assert len(list(tmp_path.glob(".psyche-index-*"))) == 2


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read the data file .*gone\.bin: No such file"):
        FileStamp.of(tmp_path / "gone.bin")
