"""A run that goes back: the journal forgets the rounds after that step, and keeps what may yet be accepted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from psyche_core.errors import ModelError
from psyche_core.training.checkpoints.journal import Journal
from psyche_core.training.checkpoints.journal_records import AppliedRound, StoredResult
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
