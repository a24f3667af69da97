"""Scratch files: nobody's are lost, nobody's are taken, none outlive their use."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
import resource
import threading
import time
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.errors import ConfigError
from psyche_core.p2p.manifest import PIECE_BYTES, cut, parameter_table
from psyche_core.storage import scratch as scratch_module
from psyche_core.storage.scratch import RESUMABLE_SECONDS, Scratch, default_folder
from psyche_core.training.piece_file import PieceFile, PiecesOnDisk


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "scratch").iterdir())


# ------------------------------------------------------------------------------------------------ files


def test_what_is_written_is_read_and_a_removed_file_is_an_oserror(tmp_path: Path) -> None:
    file = Scratch(tmp_path).create("test")
    file.reserve(100, [(0, 100)])
    file.write(10, b"hello")
    assert bytes(file.read(9, 7)) == b"\0hello\0"
    assert len(left_in(tmp_path)) == 1
    file.remove()
    file.remove()
    assert left_in(tmp_path) == []
    for use in (lambda: file.read(0, 1), lambda: file.write(0, b"x"), lambda: file.reserve(1, [])):
        with pytest.raises(OSError, match="gone"):
            use()


def test_a_stamp_is_another_after_every_write_and_none_right_after_one(tmp_path: Path) -> None:
    file = Scratch(tmp_path).create("test")
    file.write(0, b"a")
    now = time.time()
    os.utime(file.path, (now + 5, now + 5))  # as if written this moment, whatever the clocks do meanwhile
    assert file.stamp() is None
    os.utime(file.path, (now - 60, now - 60))
    first = file.stamp()
    assert first is not None
    assert file.stamp() == first
    file.write(0, b"b")
    assert file.stamp() != first
    os.utime(file.path, (now - 50, now - 50))
    assert file.stamp() not in (None, first)
    file.remove()
    with pytest.raises(OSError, match="gone"):
        file.stamp()


def test_a_file_that_ends_early_is_an_oserror(tmp_path: Path) -> None:
    file = Scratch(tmp_path).create("test")
    file.reserve(100, [])
    with pytest.raises(OSError, match="ends early"):
        file.read(50, 51)
    file.remove()


def test_memory_that_was_read_is_ones_own(tmp_path: Path) -> None:
    """Large and small, as long as anybody holds it, whatever becomes of the file."""
    file = Scratch(tmp_path).create("test")
    size = scratch_module.LARGE_BYTES
    file.write(0, b"a" * size)
    views = [file.read(0, size), file.read(0, 9)]
    file.write(0, b"b" * size)
    file.remove()
    gc.collect()
    assert [bytes(view[:9]) for view in views] == [b"a" * 9] * 2


def test_memory_is_used_again_when_nobody_holds_any_part_of_it(tmp_path: Path) -> None:
    file = Scratch(tmp_path).create("test")
    size = scratch_module.LARGE_BYTES
    file.write(0, bytes(range(256)) * (size // 128))
    first = file.read(0, 2 * size)
    memory, part = first.obj, first[7:9]
    del first
    assert file.read(1, size).obj is not memory, "a part of it is held"

    assert bytes(part) == bytes((7, 8))
    del part
    again = file.read(3, size)
    assert again.obj is memory
    assert (bytes(again[:2]), len(again)) == (bytes((3, 4)), size)
    file.remove()


@pytest.mark.parametrize("held", [0, 1, 2, 5])
def test_pieces_of_all_sizes_are_read_right_whoever_holds_earlier_ones(tmp_path: Path, held: int) -> None:
    file = Scratch(tmp_path).create("test")
    size = scratch_module.LARGE_BYTES
    text = random.Random(held).randbytes(4 * size)
    file.write(0, text)
    views: deque[tuple[int, memoryview]] = deque(maxlen=held)
    chance = random.Random(held)
    for _ in range(200):
        at = chance.randrange(2 * size)
        count = chance.choice((1, size - 1, size, size + 1, 2 * size))
        view = file.read(at, count)
        assert bytes(view) == text[at : at + count]
        views.append((at, view))
        del view
        assert all(bytes(kept) == text[begin : begin + len(kept)] for begin, kept in views)
        assert len(file._spare) <= scratch_module.SPARE_BLOCKS  # what it keeps is bounded
    file.remove()


def test_many_threads_read_and_write_one_file(tmp_path: Path) -> None:
    file, wrong = Scratch(tmp_path).create("test"), []

    def work(number: int) -> None:
        for _ in range(50):
            file.write(number * 1000, bytes((number,)) * 1000)
            if bytes(file.read(number * 1000, 1000)) != bytes((number,)) * 1000:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    file.remove()


def test_room_is_taken_before_anything_is_written(tmp_path: Path) -> None:
    file = Scratch(tmp_path).create("test")
    file.reserve(10 * 2**20, [(2**20, 2**20), (0, 2**20)])
    status = file.path.stat()
    assert (status.st_size, status.st_blocks * 512) == (10 * 2**20, 2 * 2**20)
    file.remove()


def test_a_disk_without_room_is_said_before_anything_is_written(tmp_path: Path) -> None:
    file = Scratch(tmp_path).create("test")
    with pytest.raises(OSError, match="bytes are needed in") as caught:
        file.reserve(2**60, [(0, 2**60)])
    assert caught.value.errno == errno.ENOSPC
    assert file.path.stat().st_size == 0
    file.remove()


def test_what_the_system_refuses_is_an_oserror(tmp_path: Path) -> None:
    file = Scratch(tmp_path).create("test")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="large"):
            file.reserve(2000, [(0, 2000)])
        with pytest.raises(OSError, match="large"):
            file.write(0, bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    file.remove()


# ------------------------------------------------------------------------------------------------ whose they are


def test_files_in_use_are_left_alone_and_others_removed(tmp_path: Path) -> None:
    one = Scratch(tmp_path)
    used = one.create("snapshot")
    kept = one.create("model", "key", resumable=True)
    (tmp_path / "scratch" / "snapshot-0123.scratch").write_bytes(b"left behind")
    other = Scratch(tmp_path)
    assert sorted((used.path.name, kept.path.name)) == left_in(tmp_path)
    assert other.adopt("model", "key") is None
    one.close()
    assert left_in(tmp_path) == [kept.path.name]


def test_a_resumable_file_that_was_left_behind_is_found_by_its_key_alone(tmp_path: Path) -> None:
    one = Scratch(tmp_path)
    one.create("model", "key", resumable=True).write(0, b"half")
    one.close()
    other = Scratch(tmp_path)
    assert other.adopt("model", "another key") is None
    assert other.adopt("another kind", "key") is None
    found = other.adopt("model", "key")
    assert found is not None
    assert bytes(found.read(0, 4)) == b"half"
    assert Scratch(tmp_path).adopt("model", "key") is None, "it is in use"
    found.remove()
    assert left_in(tmp_path) == []


def test_what_nobody_came_back_for_goes_after_a_day(tmp_path: Path) -> None:
    one = Scratch(tmp_path)
    path = one.create("model", "key", resumable=True).path
    one.close()
    for age, there in ((RESUMABLE_SECONDS - 60, True), (RESUMABLE_SECONDS + 60, False)):
        os.utime(path, (time.time() - age,) * 2)
        Scratch(tmp_path)
        assert path.exists() is there


def test_a_key_is_any_text_and_never_part_of_a_path(tmp_path: Path) -> None:
    one = Scratch(tmp_path)
    for key in ("../../x", "a" * 5000, "\0", "*"):
        assert one.create("model", key, resumable=True).path.parent == tmp_path / "scratch"
        assert one.adopt("model", key) is None
    one.close()


def test_a_private_folder_goes_with_its_owner() -> None:
    one = Scratch()
    path = one.create("snapshot").path
    assert path.exists()
    del one
    gc.collect()
    assert not path.parent.exists()


def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ConfigError, match=r"--cache-dir .*file.*cannot be used"):
        Scratch(tmp_path / "file")


def test_the_systems_cache_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert default_folder() == tmp_path / "psyche"


# ------------------------------------------------------------------------------------------------ pieces


@settings(deadline=None)  # it writes files
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=5), st.data())
def test_pieces_come_out_as_they_went_in_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[tuple[int, int]], data: st.DataObject
) -> None:
    pieces = cut(parameter_table({f"p{n}": shape for n, shape in enumerate(shapes)}))
    contents = {piece.number: os.urandom(piece.byte_count) for piece in pieces}
    with contextlib.closing(Scratch(tmp_path_factory.mktemp("pieces"))) as folder:
        file = PieceFile(folder.create("test"), pieces)
        file.reserve(list(contents))
        for number in data.draw(st.permutations(sorted(contents))):
            file.write(number, contents[number])
        there = PiecesOnDisk(file, contents)
        assert {number: bytes(there[number]) for number in there} == contents
        assert file.total == sum(map(len, contents.values()))


def test_pieces_that_were_not_written_take_no_room_and_are_not_there(tmp_path: Path) -> None:
    pieces = cut(parameter_table({"a": (3 * PIECE_BYTES // 4,)}))
    scratch = Scratch(tmp_path)
    raw = scratch.create("test")
    file = PieceFile(raw, pieces)
    file.reserve([1])
    file.write(1, b"x" * PIECE_BYTES)
    assert raw.path.stat().st_blocks * 512 == PIECE_BYTES
    there = PiecesOnDisk(file, [1])
    assert list(there) == [1]
    assert 0 not in there
    with pytest.raises(KeyError):
        there[0]
    with pytest.raises(ValueError, match="piece 0 has 4194304 bytes, got 3"):
        file.write(0, b"abc")
    scratch.close()
