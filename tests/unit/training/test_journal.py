"""The journal of applied rounds: what was synced is read again, whatever happened to process, disk and file."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.errors import ConfigError, ModelError, WireError
from psyche_core.training.journal import LEAST_LIMIT, Journal, Recovered, default_limit, journal_path
from psyche_core.training.journal_records import (
    FRAME,
    START,
    AppliedRound,
    Header,
    StoredResult,
    decode_record,
    encode_record,
    kind_of,
)
from tests.unit.training.journal_cases import (
    DIGEST,
    INSTANCE,
    add_results,
    add_round,
    applied,
    applied_rounds,
    is_beginning,
    payload_of,
    play,
    result,
    stored_results,
)

LIMIT = 2**20


def open_journal(folder: Path, told: list[str] | None = None, *, instance: bytes = INSTANCE, limit: int = LIMIT) -> Journal:
    return Journal.open(
        folder, "a run", instance=instance, limit_bytes=limit, tell=(lambda _: None) if told is None else told.append
    )


def read(folder: Path, told: list[str] | None = None, *, generation: int | None = None) -> Recovered | None:
    """What a process that starts now finds."""
    with open_journal(folder, told) as journal:
        return journal.read(generation=generation)


# ------------------------------------------------------------------------------------------------------------------ records


@given(st.one_of(stored_results, applied_rounds))
def test_a_record_is_read_as_it_was_written_bit_for_bit(record: StoredResult | AppliedRound) -> None:
    body = encode_record(record)
    assert decode_record(kind_of(record), body) == record
    if isinstance(record, AppliedRound):
        again = decode_record(kind_of(record), body)
        assert isinstance(again, AppliedRound)
        assert again.learning_rate.hex() == record.learning_rate.hex()


@pytest.mark.parametrize(
    "wrong",
    [
        Header(instance=b"short", generation=0, base_step=0, base_digest=DIGEST),
        Header(instance=INSTANCE, generation=2**32, base_step=0, base_digest=DIGEST),
        applied(1, rate=float("nan")),
        applied(1, rate=-0.5),
        applied(2**32),
    ],
)
def test_what_cannot_be_read_is_not_written(wrong: Header | AppliedRound) -> None:
    with pytest.raises(WireError):
        encode_record(wrong)


# ------------------------------------------------------------------------------------------------------------------ the file


def test_a_journal_gives_back_what_was_synced(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        assert journal.read() is None
        assert journal.broken
        journal.begin(10, DIGEST, 3)
        written = play(journal, 11, 20)
        add_results(journal, 21)
        journal.sync()
        add_results(journal, 22)  # never synced
        assert journal.size == journal.path.stat().st_size + sum(
            2 * FRAME.size + len(encode_record(result(22, slot))) + len(payload_of(22, slot)) for slot in range(3)
        ) + FRAME.size + len(encode_record(result(22, 3)))
        assert not journal.full
    with open_journal(tmp_path) as journal:
        found = journal.read(generation=3)
        assert found is not None
        assert found.header == Header(instance=INSTANCE, generation=3, base_step=10, base_digest=DIGEST)
        assert found.rounds == tuple(each for each in written if isinstance(each, AppliedRound))
        assert found.pending == tuple(result(21, slot) for slot in range(4))
        assert [found.payload(each) for each in found.rounds[4].payload_hashes] == [payload_of(15, slot) for slot in (3, 0, 2)]
        assert found.last_step == journal.last_step == 20
        assert not journal.add_result(result(21, 1), payload_of(21, 1)), "it is there already"
        add_round(journal, 21)
        assert journal.payload(result(21, 0).payload_hash) == payload_of(21, 0)
        journal.sync()
        size = journal.path.stat().st_size
        journal.sync()
        assert journal.path.stat().st_size == size
    again = read(tmp_path)
    assert again is not None
    assert (again.last_step, again.pending) == (21, ())


def test_a_payload_stands_in_the_file_once(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 0)
        play(journal, 1, 3)
        content = journal.path.read_bytes()
    assert all(content.count(payload_of(step, slot)) == 1 for step in (1, 2, 3) for slot in range(3))


def test_an_early_checkpoint_takes_along_what_is_on_its_way(tmp_path: Path) -> None:
    """A checkpoint in the middle of an epoch: results of two later steps were verified, and will be applied."""
    with open_journal(tmp_path, limit=1000) as journal:
        journal.begin(0, DIGEST, 0)
        play(journal, 1, 5)
        assert journal.full
        add_results(journal, 6)
        journal.sync()
        add_results(journal, 7)
        journal.begin(5, b"e" * 32, 0)
        for step in (6, 7):
            add_round(journal, step)
        journal.sync()
        assert payload_of(5, 0) not in journal.path.read_bytes()
    found = read(tmp_path)
    assert found is not None
    assert found.header.base_digest == b"e" * 32
    assert [each.step for each in found.rounds] == [6, 7]


def test_results_of_a_history_that_was_left_do_not_go_along(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 0)
        play(journal, 1, 2)
        add_results(journal, 3)
        journal.begin(2, DIGEST, 1)
        journal.sync()
    found = read(tmp_path)
    assert found is not None
    assert found.pending == ()


def test_only_what_fits_is_taken(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        with pytest.raises(ModelError, match="has no base yet"):
            journal.add_result(result(1, 0), payload_of(1, 0))
        with pytest.raises(ModelError, match="has no base yet"):
            add_round(journal, 1)
        journal.sync()
        journal.begin(0, DIGEST, 0)
        add_results(journal, 1)
        with pytest.raises(ModelError, match="is not what its hash names"):
            journal.add_result(result(2, 0), b"other bytes")
        with pytest.raises(ModelError, match=r"payload [0-9a-f]{16}… of step 1 is not in the journal"):
            journal.add_applied(applied(1, result(1, 0, b"unknown")))
        with pytest.raises(ModelError, match="goes on with step 1, got step 2"):
            journal.add_applied(applied(2))
        with pytest.raises(ModelError, match=r"of step 1: .*got -1"):
            journal.add_applied(AppliedRound(epoch=-1, height=1, step=1, learning_rate=0.1, results=()))
        with pytest.raises(ModelError, match="does not hold payload 0000"):
            journal.payload(bytes(32))
        add_round(journal, 1)
        journal.sync()
    found = read(tmp_path)
    assert found is not None
    assert found.last_step == 1


def test_a_round_without_results_is_a_round(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.begin(4, DIGEST, 0)
        journal.add_applied(applied(5))
        journal.sync()
    found = read(tmp_path)
    assert found is not None
    assert found.rounds == (applied(5),)


def test_the_limit_follows_the_model() -> None:
    assert default_limit(4_000_000) == LEAST_LIMIT == 64 * 2**20
    assert default_limit(4 * 10**9) == 8 * 10**9


# ------------------------------------------------------------------------------------------------------------------ damage


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[StoredResult | AppliedRound]]:
    """A journal's bytes, and the records in it."""
    folder = tmp_path_factory.mktemp("small")
    with open_journal(folder) as journal:
        journal.begin(0, DIGEST, 0)
        written = play(journal, 1, 2, members=4)
    return journal.path.read_bytes(), written


def check_beginning(folder: Path, content: bytes, written: list[StoredResult | AppliedRound], *, go_on: bool) -> bool:
    """Whether a file of that content is read; it must be read as a beginning of what was written.

    go_on: whether to see that it takes what comes next, which costs a flush of the disk.
    """
    journal_path(folder, "a run").write_bytes(content)
    told: list[str] = []
    with open_journal(folder, told) as journal:
        found = journal.read()
        if found is None:
            assert "is not used" in told[0]
            (folder / "a_run-journal.bin-abandoned").unlink()
            return False

        assert is_beginning(found, written)
        last = found.last_step
        if go_on:
            journal.add_applied(applied(last + 1))
            journal.sync()
    told.clear()
    again = read(folder, told)
    assert again is not None
    assert (again.last_step, told) == (last + go_on, [])
    return True


def test_cut_after_any_byte_it_is_read_as_far_as_it_is_whole(
    tmp_path: Path, small: tuple[bytes, list[StoredResult | AppliedRound]]
) -> None:
    content, written = small
    first = len(START) + FRAME.size + len(encode_record(Header(instance=INSTANCE, generation=0, base_step=0, base_digest=DIGEST)))
    for length in range(len(content) + 1):
        go_on = length % 16 == 0
        assert check_beginning(tmp_path, content[:length], written, go_on=go_on) == (length >= first)


def test_with_any_byte_changed_it_is_read_as_far_as_it_is_right(
    tmp_path: Path, small: tuple[bytes, list[StoredResult | AppliedRound]]
) -> None:
    content, written = small
    random = Random(1)
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= random.randrange(1, 256)
        check_beginning(tmp_path, bytes(changed), written, go_on=at % 16 == 0)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_frames_left_out_doubled_or_exchanged_end_what_is_read(
    small: tuple[bytes, list[StoredResult | AppliedRound]],
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
) -> None:
    content, written = small
    frames, at = [], len(START)
    while at < len(content):
        _, length, _ = FRAME.unpack_from(content, at)
        frames.append(content[at : at + FRAME.size + length])
        at += FRAME.size + length
    chosen = data.draw(st.lists(st.sampled_from(range(1, len(frames))), max_size=len(frames)))
    kept = data.draw(st.integers(0, len(frames)))
    mixed = [*frames[:kept], *(frames[number] for number in chosen)]
    check_beginning(tmp_path_factory.mktemp("mixed"), START + b"".join(mixed), written, go_on=True)


def test_a_torn_end_is_told_in_one_sentence(tmp_path: Path, small: tuple[bytes, list[StoredResult | AppliedRound]]) -> None:
    content, _ = small
    journal_path(tmp_path, "a run").write_bytes(content[:-1])
    told: list[str] = []
    found = read(tmp_path, told)
    assert found is not None
    assert found.last_step == 1
    assert len(told) == 1
    assert "bytes that are no whole records; they are cut off, and it counts up to step 1" in told[0]
    told.clear()
    assert read(tmp_path, told) is not None
    assert told == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda content: b"", "another version, or its beginning is damaged"),
        (lambda content: content[: len(START)], "its beginning is damaged"),
        (lambda content: content.replace(START, START[:-1] + b"\2", 1), "another version"),
        (lambda content: START + content[len(START) + 1 :], "damaged"),
    ],
)
def test_a_file_that_is_no_journal_is_set_aside_and_not_deleted(
    tmp_path: Path, small: tuple[bytes, list[StoredResult | AppliedRound]], change: object, sentence: str
) -> None:
    content = change(small[0])  # type: ignore[operator]  # a function
    for number in ("", "-2"):
        journal_path(tmp_path, "a run").write_bytes(content)
        told: list[str] = []
        assert read(tmp_path, told) is None
        assert len(told) == 1
        assert sentence in told[0]
        assert (tmp_path / f"a_run-journal.bin-abandoned{number}").read_bytes() == content
    told.clear()
    assert read(tmp_path, told) is None
    assert told == []


def test_a_journal_of_another_run_of_this_name_is_set_aside(tmp_path: Path) -> None:
    with open_journal(tmp_path, instance=b"i" * 32) as journal:
        journal.begin(0, DIGEST, 0)
    told: list[str] = []
    assert read(tmp_path, told) is None
    assert "it is of another run" in told[0]


def test_a_journal_of_another_generation_is_set_aside_where_one_is_asked_for(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 2)
    assert read(tmp_path) is not None, "without a generation it is the caller who looks at the header"
    told: list[str] = []
    assert read(tmp_path, told, generation=3) is None
    assert "generation 2 of the run, which is in generation 3" in told[0]


# ------------------------------------------------------------------------------------------------------------------ going back


@pytest.mark.parametrize("step", range(10, 17))
def test_after_going_back_the_rounds_up_to_there_are_left(tmp_path: Path, step: int) -> None:
    with open_journal(tmp_path) as journal:
        journal.begin(10, DIGEST, 0)
        written = play(journal, 11, 15)
        add_results(journal, 16)
        journal.rewind(step, generation=1)
        assert journal.last_step == min(step, 15)
        journal.add_applied(applied(min(step, 15) + 1))
        journal.sync()
    told: list[str] = []
    with open_journal(tmp_path, told) as journal:
        found = journal.read(generation=1)
        assert found is not None
        assert found.rounds[:-1] == tuple(each for each in written if isinstance(each, AppliedRound) and each.step <= step)
        assert all(each.step <= step for each in found.pending)
        assert all(found.payload(each) for one in found.rounds for each in one.payload_hashes)
    assert told == []
    assert all(payload_of(later, 0) not in journal.path.read_bytes() for later in range(step + 1, 17))


@pytest.mark.parametrize("step", range(10, 17))
def test_after_going_back_within_a_generation_results_of_later_steps_are_left(tmp_path: Path, step: int) -> None:
    """An older state of the coordinator may yet decide that they are accepted, and no running member may have them."""
    with open_journal(tmp_path) as journal:
        journal.begin(10, DIGEST, 0)
        written = play(journal, 11, 15)
        add_results(journal, 16)
        journal.rewind(step)
    told: list[str] = []
    with open_journal(tmp_path, told) as journal:
        found = journal.read(generation=0)
        assert found is not None
        assert found.rounds == tuple(each for each in written if isinstance(each, AppliedRound) and each.step <= step)
        later = [each for each in written if isinstance(each, StoredResult) and each.step > step]
        assert list(found.pending) == [*later, *(result(16, slot) for slot in range(4))]
        assert [journal.payload(each.payload_hash) for each in found.pending]
        if step < 15:
            journal.add_applied(applied(step + 1))
            assert journal.last_step == step + 1
    assert told == []


def test_a_run_that_goes_back_again_and_again_leaves_a_bounded_journal(tmp_path: Path) -> None:
    sizes = []
    with open_journal(tmp_path) as journal:
        journal.begin(10, DIGEST, 0)
        for history in range(8):
            for slot in range(3):
                content = b"%d/%d" % (history, slot) * 1000
                named = {"commitment": hashlib.sha256(content + b"!").digest(), "payload_hash": hashlib.sha256(content).digest()}
                journal.add_result(replace(result(12, slot), **named), content)
            journal.rewind(10)
            sizes.append(journal.size)
    assert sizes[0] < sizes[1]
    assert len(set(sizes[1:])) == 1, sizes


def test_before_its_base_a_journal_cannot_go_back(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        with pytest.raises(ModelError, match="holds nothing to go back in"):
            journal.rewind(9)
        journal.begin(10, DIGEST, 0)
        play(journal, 11, 12)
        content = journal.path.read_bytes()
        with pytest.raises(ModelError, match="begins with step 10, and the run went back to step 9"):
            journal.rewind(9)
        assert journal.path.read_bytes() == content


# ------------------------------------------------------------------------------------------------------------------ processes

WRITER = """
import itertools, sys
from pathlib import Path
from psyche_core.training.journal import Journal
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
    with writer(tmp_path), pytest.raises(ConfigError, match=r"another process keeps the journal .*a_run-journal.bin"):
        open_journal(tmp_path)
    assert read(tmp_path) is not None, "the lock ended with its process"


def test_other_runs_have_journals_of_their_own(tmp_path: Path) -> None:
    with open_journal(tmp_path), Journal.open(tmp_path, "../b", instance=INSTANCE, limit_bytes=1) as other:
        other.begin(0, DIGEST, 0)
        assert other.path == tmp_path / ".._b-journal.bin"


def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be opened: .*; give a folder that can be written"):
        open_journal(tmp_path / "file")


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
    found = read(tmp_path, told := [])
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
    found = read(tmp_path, told := [])
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
                    assert "has a gap, since its disk was full for too long; it begins anew with the next" in str(error)  # noqa: PT017
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
        with room_for(50), pytest.raises(ModelError, match="could not begin anew with step 2: File too large"):
            journal.begin(2, DIGEST, 0)
        assert journal.path.read_bytes() == content
        assert sorted(path.name for path in tmp_path.iterdir()) == [".a_run-journal.bin.lock", "a_run-journal.bin"]
        add_results(journal, 3)
        add_round(journal, 3)
        journal.sync()
    found = read(tmp_path)
    assert found is not None
    assert (found.header.base_step, found.last_step) == (0, 3)


def test_what_changed_on_the_disk_meanwhile_is_noticed(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 0)
        play(journal, 1, 1)
        content = journal.path.read_bytes()
        journal.path.write_bytes(content.replace(payload_of(1, 0), b"x" * len(payload_of(1, 0))))
        with pytest.raises(ModelError, match=r"cannot be read: payload .* is not the one that was written"):
            journal.payload(hashlib.sha256(payload_of(1, 0)).digest())


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
