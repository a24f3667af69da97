"""The journal and what may happen around it: a killed process, a second one, a full disk, something else in its place."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from psyche_core.errors import ConfigError, ModelError
from psyche_core.training.checkpoints.journal.lock import journal_path
from psyche_core.training.checkpoints.journal_records import AppliedRound
from tests.unit.training.journal_cases import DIGEST, add_results, add_round, open_journal, payload_of, play, read, result

# ------------------------------------------------------------------------------------------------------------------ processes

WRITER = """
import itertools, sys
from pathlib import Path
from psyche_core.training.checkpoints.journal.journal import Journal
from tests.unit.training.journal_cases import DIGEST, INSTANCE, add_results, add_round
journal = Journal.open(Path(sys.argv[1]), "a run", instance=INSTANCE, limit_bytes=2**30)
journal.read()
journal.begin(0, DIGEST, 0)
print("begun", flush=True)
for step in itertools.count(1):
    add_results(journal, step)
    journal.sync()
    add_round(journal, step)
    journal.sync()
    print(step, flush=True)
"""


@contextmanager
def writer(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that fills a journal for ever, and says each step when it is synced."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("rounds", [1, 17, 60])
def test_a_process_killed_while_it_writes_leaves_every_round_that_it_synced(tmp_path: Path, rounds: int) -> None:
    with writer(tmp_path) as process:
        assert process.stdout is not None
        said = [int(process.stdout.readline()) for _ in range(rounds)]
        process.send_signal(signal.SIGKILL)
        said += [int(line) for line in process.stdout.read().splitlines()]
    found = read(tmp_path)
    assert found is not None
    assert found.last_step >= said[-1]
    with open_journal(tmp_path) as journal:
        found = journal.read()
        assert found is not None
        for each in found.rounds:
            assert [found.payload(one) for one in each.payload_hashes] == [payload_of(each.step, slot) for slot in (3, 0, 2)]


def test_a_second_process_is_told_that_the_journal_is_taken(tmp_path: Path) -> None:
    with writer(tmp_path), pytest.raises(ConfigError, match=r"another process uses the journal .*a_run-journal.bin"):
        open_journal(tmp_path)
    assert read(tmp_path) is not None, "the lock ended with its process"


# ------------------------------------------------------------------------------------------------------------------ a full disk


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Files may not become larger than so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("more", [0, 1, 16, 17, 300])
def test_on_a_full_disk_the_journal_stays_readable_and_goes_on_when_there_is_room(tmp_path: Path, more: int) -> None:
    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 0)
        written = play(journal, 1, 4)
        size = journal.path.stat().st_size
        with room_for(size + more):
            for step in (5, 6):
                add_results(journal, step)
                add_round(journal, step)
                with pytest.raises(
                    ModelError, match=r"was not written: .*; make room on its disk, until then the rounds after step 4"
                ):
                    journal.sync()
                assert journal.path.stat().st_size == size
                assert journal.payload(result(step, 0).payload_hash) == payload_of(step, 0)
            content = journal.path.read_bytes()
            with pytest.raises(ModelError, match="was not written"):
                journal.rewind(3)
        journal.sync()
    told: list[str] = []
    found = read(tmp_path, told)
    assert found is not None
    assert found.last_step == 6
    assert told == []
    (tmp_path / "copy").mkdir()
    journal_path(tmp_path / "copy", "a run").write_bytes(content)
    copied = read(tmp_path / "copy", told)
    assert copied is not None
    assert copied.rounds == tuple(each for each in written if isinstance(each, AppliedRound))
    assert told == []


def test_what_cannot_be_flushed_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed fsync nobody knows what is on the disk."""
    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 0)
        play(journal, 1, 2)
        add_results(journal, 3)

        def refuse(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", refuse)
            with pytest.raises(ModelError, match="No space left on device"):
                journal.sync()
        add_round(journal, 3)
        journal.sync()
    told: list[str] = []
    found = read(tmp_path, told)
    assert found is not None
    assert (found.last_step, told) == (3, [])


def test_on_a_disk_that_stays_full_memory_is_bounded_and_the_next_base_begins_anew(tmp_path: Path) -> None:
    limit = 10_000_000
    with open_journal(tmp_path, limit=limit) as journal:
        journal.begin(0, DIGEST, 0)
        with room_for(1000):
            for step in range(1, 11):
                payload = step.to_bytes(4, "little") * 250_000
                try:
                    journal.add_result(result(step, 0, payload), payload)
                except ModelError as error:
                    assert "has a gap, because its disk was full for too long; it restarts with the next" in str(error)  # noqa: PT017
                    break
                with pytest.raises(ModelError, match="was not written"):
                    journal.sync()
            assert step == 10
            assert journal.broken
            journal.sync()
            with pytest.raises(ModelError, match="has a gap"):
                add_round(journal, 1)
        journal.begin(7, DIGEST, 0)
        add_results(journal, 8)
        add_round(journal, 8)
        journal.sync()
    found = read(tmp_path)
    assert found is not None
    assert [each.step for each in found.rounds] == [8]


def test_a_new_base_that_the_disk_refuses_leaves_the_old_one(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 0)
        play(journal, 1, 2)
        content = journal.path.read_bytes()
        with room_for(50), pytest.raises(ModelError, match="could not be restarted with step 2: File too large"):
            journal.begin(2, DIGEST, 0)
        assert journal.path.read_bytes() == content
        assert sorted(path.name for path in tmp_path.iterdir()) == [".a_run-journal.bin.lock", "a_run-journal.bin"]
        add_results(journal, 3)
        add_round(journal, 3)
        journal.sync()
    found = read(tmp_path)
    assert found is not None
    assert (found.header.base_step, found.last_step) == (0, 3)


# ------------------------------------------------------------------------------------------------- what is no file in its place


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["a_run-journal.bin", ".a_run-journal.bin.new", ".a_run-journal.bin.lock"])
@pytest.mark.parametrize(
    ("make", "kind"),
    [(os.mkfifo, "a named pipe"), (os.mkdir, "a folder"), (lambda path: path.symlink_to("/dev/zero"), "a device")],
    ids=["pipe", "folder", "device"],
)
def test_what_is_no_file_in_the_place_of_one_of_the_journals_is_one_sentence_and_stays(
    tmp_path: Path, name: str, make: Callable[[Path], None], kind: str
) -> None:
    path = tmp_path / name
    make(path)
    with pytest.raises(ConfigError) as caught:
        open_journal(tmp_path)
    said = f"the journal {tmp_path / 'a_run-journal.bin'} cannot be used: {path} is {kind}, expected a regular file; move it away"
    assert str(caught.value) == said
    assert path.lstat() is not None
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink()
    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 0)


@pytest.mark.timeout(20)
def test_a_pipe_that_takes_the_place_of_a_journal_in_use_is_one_sentence(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 0)
        os.rename(journal.path, tmp_path / "kept")  # noqa: PTH104
        os.mkfifo(journal.path)
        with pytest.raises(ModelError, match=r"cannot be read: it is a named pipe, expected a regular file"):
            journal.read()
