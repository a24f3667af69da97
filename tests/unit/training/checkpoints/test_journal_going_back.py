"""A run that goes back: the journal forgets the rounds after that step, and keeps what may yet be accepted."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from psyche_core.errors import ModelError
from psyche_core.training.checkpoints.journal.journal import Journal
from psyche_core.training.checkpoints.journal.lock import earlier_path
from psyche_core.training.checkpoints.journal_records import AppliedRound, Header, StoredResult
from tests.unit.training.journal_cases import DIGEST, add_results, applied, open_journal, payload_of, play, result

Written = list[StoredResult | AppliedRound]


@contextmanager
def filled(folder: Path) -> Iterator[tuple[Journal, Written]]:
    """A journal of rounds 11 to 15 and the results of step 16, and what is in it."""
    with open_journal(folder) as journal:
        journal.begin(10, DIGEST, 0)
        written = play(journal, 11, 15)
        add_results(journal, 16, added=written)
        yield journal, written


def begins_by(step: int, generation: int = 0) -> Callable[[Header, Sequence[AppliedRound]], bool]:
    return lambda header, _: header.base_step <= step and header.generation == generation


def rounds_up_to(step: int, written: Written) -> tuple[AppliedRound, ...]:
    return tuple(each for each in written if isinstance(each, AppliedRound) and each.step <= step)


@pytest.mark.parametrize("step", range(10, 17))
def test_after_going_back_the_rounds_up_to_there_are_left(tmp_path: Path, step: int) -> None:
    with filled(tmp_path) as (journal, written):
        journal.rewind(step, generation=1)
        assert journal.last_step == min(step, 15)
        journal.add_applied(applied(min(step, 15) + 1))
        journal.sync()
    told: list[str] = []
    with open_journal(tmp_path, told) as journal:
        found = journal.read(generation=1)
        assert found is not None
        assert found.rounds[:-1] == rounds_up_to(step, written)
        assert all(each.step <= step for each in found.pending)
        assert all(found.payload(each) for one in found.rounds for each in one.payload_hashes)
    assert told == []
    assert all(payload_of(later, 0) not in journal.path.read_bytes() for later in range(step + 1, 17))


@pytest.mark.parametrize("step", range(10, 17))
def test_after_going_back_within_a_generation_results_of_later_steps_are_left(tmp_path: Path, step: int) -> None:
    """An older state of the coordinator may yet decide that they are accepted, and no running member may have them."""
    with filled(tmp_path) as (journal, written):
        journal.rewind(step)
    told: list[str] = []
    with open_journal(tmp_path, told) as journal:
        found = journal.read(generation=0)
        assert found is not None
        assert found.rounds == rounds_up_to(step, written)
        assert list(found.pending) == [each for each in written if isinstance(each, StoredResult) and each.step > min(step, 15)]
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
                commitment, payload_hash = hashlib.sha256(content + b"!").digest(), hashlib.sha256(content).digest()
                journal.add_result(replace(result(12, slot), commitment=commitment, payload_hash=payload_hash), content)
            journal.rewind(10)
            sizes.append(journal.size)
    assert sizes[0] < sizes[1]
    assert len(set(sizes[1:])) == 1, sizes


def test_before_its_base_a_journal_cannot_go_back(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        with pytest.raises(ModelError, match="is empty, so it cannot go back"):
            journal.rewind(9)
        journal.begin(10, DIGEST, 0)
        play(journal, 11, 12)
        content = journal.path.read_bytes()
        with pytest.raises(ModelError, match="begins with step 10, and the run went back to step 9"):
            journal.rewind(9)
        assert journal.path.read_bytes() == content


def test_the_journal_before_the_last_checkpoint_stays_and_can_be_gone_back_to(tmp_path: Path) -> None:
    """A coordinator that was restored from an older state may be at a step before the last checkpoint."""
    told: list[str] = []
    with open_journal(tmp_path, told) as journal:
        journal.begin(10, DIGEST, 0)
        written = play(journal, 11, 15)  # not synced yet
        add_results(journal, 16, added=written)
        journal.begin(15, b"e" * 32, 0)
        journal.add_applied(applied(16))
        play(journal, 17, 17)
        newer = journal.path.read_bytes()
        found = journal.read_earlier(begins_by(12))
        assert found is not None
        assert found.header.base_step == 10
        assert found.rounds == rounds_up_to(15, written)
        assert [found.payload(each) for one in found.rounds for each in one.payload_hashes]
        assert [each.step for each in journal.pending] == [16] * 4
        journal.rewind(12)
        journal.add_applied(applied(13))
    (aside,) = tmp_path.glob("*-abandoned")
    assert aside.read_bytes().startswith(newer[:64])
    assert "begins with step 10 is used" in told[0]
    with open_journal(tmp_path) as journal:
        assert journal.read() is not None
        assert journal.read_earlier(begins_by(12)) is None, "there is one before the present one, not a chain"


@pytest.mark.parametrize(
    ("at_most", "generation", "begun_again_in"), [(9, 0, 0), (12, 1, 0), (12, 1, 1)], ids=["before", "generation", "begun again"]
)
def test_a_journal_that_does_not_help_is_not_gone_back_to(
    tmp_path: Path, at_most: int, generation: int, begun_again_in: int
) -> None:
    with open_journal(tmp_path) as journal:
        journal.begin(10, DIGEST, 0)
        play(journal, 11, 15)
        journal.begin(15, b"e" * 32, begun_again_in)
        content = journal.path.read_bytes()
        assert journal.read_earlier(begins_by(at_most, generation)) is None
        assert journal.path.read_bytes() == content
        journal.add_applied(applied(16)) if begun_again_in else play(journal, 16, 17)
    assert not list(tmp_path.glob("*-abandoned"))


def test_a_damaged_earlier_journal_helps_nobody(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.begin(10, DIGEST, 0)
        journal.begin(15, b"e" * 32, 0)
        earlier_path(journal.path).write_bytes(b"no journal")
        assert journal.read_earlier(begins_by(12)) is None
        assert journal.last_step == 15


def test_a_process_that_dies_between_the_two_renames_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old journal has its new name by then, and the new one does not."""
    renamed = os.replace

    def dies(source: Path, target: Path) -> None:
        if target == journal.path:
            raise KeyboardInterrupt
        renamed(source, target)

    with open_journal(tmp_path) as journal, monkeypatch.context() as patch:
        journal.begin(10, DIGEST, 0)
        play(journal, 11, 15)
        patch.setattr(Path, "unlink", lambda *_, **__: None)  # nobody tidies up after a process that is gone
        patch.setattr(os, "replace", dies)
        with pytest.raises(KeyboardInterrupt):
            journal.begin(15, b"e" * 32, 0)
    assert not journal.path.exists()
    with open_journal(tmp_path) as journal:
        found = journal.read()
        assert found is not None
        assert (found.header.base_step, found.header.base_digest) == (15, b"e" * 32)
        assert journal.read_earlier(begins_by(12)) is not None


def test_a_disk_that_refuses_the_second_rename_leaves_the_old_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = os.replace
    refused: list[Path] = []

    def refuses(source: Path, target: Path) -> None:
        if target == journal.path and not refused:
            refused.append(source)
            raise OSError(errno.EIO, "Input/output error")
        renamed(source, target)

    with open_journal(tmp_path) as journal, monkeypatch.context() as patch:
        journal.begin(10, DIGEST, 0)
        play(journal, 11, 15)
        patch.setattr(os, "replace", refuses)
        with pytest.raises(ModelError, match="could not be restarted with step 15"):
            journal.begin(15, b"e" * 32, 0)
        play(journal, 16, 17)
        assert journal.last_step == 17
    with open_journal(tmp_path) as journal:
        found = journal.read()
        assert found is not None
        assert (found.header.base_step, found.last_step) == (10, 17)
