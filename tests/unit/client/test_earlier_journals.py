"""When the journal before the present one counts: if the run went back before the present base, or left the history of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from psyche_core.coordinator.state import CoordinatorState, EpochEnd, Round
from psyche_core.storage.checkpoint_names import checkpoint_path
from psyche_core.training.checkpoints.checkpoint import save_checkpoint
from psyche_core.training.checkpoints.manifest import CheckpointFacts, read_manifest
from psyche_core.types import Decision
from tests.unit.client.restoring_cases import INSTANCE, RUN, Masters, Member, state_at
from tests.unit.training.journal_cases import applied, history

OTHER = "other"
"""The branch of the run's history that `_contradicting` states have; `journal_cases.applied` has the one that it has left."""


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    one = Member(tmp_path)
    yield one
    one.restorer.close()


def _fetches(member: Member, step: int, *, decision: Decision | None = None, begins: bool = True) -> bytes:
    """The member gets the masters after a step from others; returns their digest. begins: whether its journal begins there."""
    member.masters = Masters(step=step, content=b"others' masters")
    member.contents[step], digest = member.masters.content, member.masters.full_digest()
    facts = CheckpointFacts(
        run_id=RUN, step=step, epoch=1, data_index=0, digest=digest, instance=INSTANCE, mid_epoch=True, decision=decision
    )
    save_checkpoint(checkpoint_path(member.folder, RUN, step), facts, write=Path.mkdir)
    journal = member.restorer.journal
    assert journal is not None
    if begins:
        journal.begin(step, digest, 0)
    return digest


def _contradicting(step: int, *ends: EpochEnd) -> CoordinatorState:
    """A state before `step` of another history than the member's: it stores what led to step 3 and to its last step."""
    state = state_at(step)
    rounds = (Round(height=0, step=4, seed=0, slots=(), batches=(), history=history(3, branch=OTHER)),)
    return replace(state, history=history(step - 1, branch=OTHER), ends=ends, epoch=replace(state.epoch, rounds=rounds))


def _decided(step: int) -> Decision:
    """What decided a step for this member."""
    last = applied(step)
    return Decision(step, last.epoch, last.height, last.statements, last.history)


def _names(folder: Path) -> list[str]:
    return sorted(path.name.removeprefix(f"{RUN}-") for path in folder.iterdir() if "step" in path.name)


@pytest.mark.parametrize("is_signed", [True, False])
def test_the_base_of_a_model_of_others_is_not_refused_for_the_journal_before_it(
    member: Member, tmp_path: Path, is_signed: bool
) -> None:
    """That journal is of a history that was left, and leads nowhere near; the right, signed checkpoint was set aside for it."""
    member.train(3)
    digest = _fetches(member, 5)
    state = _contradicting(6, *([EpochEnd(step=5, digest=digest)] if is_signed else []))
    member.restorer.close()
    member.restorer.look_back(state)
    assert _names(tmp_path) == ["step5"]
    assert member.restorer.base_of_history(state) == (5, digest)
    assert member.start(state, step=5) == 5


def test_a_signed_checkpoint_has_its_name_back_and_keeps_it(member: Member, tmp_path: Path) -> None:
    member.train(3)
    digest = _fetches(member, 3)
    place = checkpoint_path(tmp_path, RUN, 3)
    place.rename(place.with_name(f"{place.name}-abandoned"))
    member.restorer.close()
    member.restorer.look_back(_contradicting(4, EpochEnd(step=3, digest=digest)))
    assert _names(tmp_path) == ["step3"]
    assert not any("is not used" in said for said in member.told), member.told


def test_a_signed_checkpoint_keeps_its_name_though_the_journal_begins_with_another_of_its_step(
    member: Member, tmp_path: Path
) -> None:
    """It was set aside for the base of a journal, which no start could use."""
    member.train(3)
    digest = member.masters.full_digest()
    member.end_epoch()
    place = checkpoint_path(tmp_path, RUN, 3)
    place.rename(place.with_name(f"{place.name}-abandoned"))
    _fetches(member, 3)
    member.restorer.close()
    state = replace(state_at(4), ends=(EpochEnd(step=3, digest=digest),))
    member.restorer.look_back(state)
    manifest = read_manifest(place)
    assert manifest is not None
    assert manifest.digest == digest.hex()
    assert member.restorer.base_of_history(state) is None


@pytest.mark.parametrize("branch", [OTHER, ""])
def test_of_one_step_the_decision_tells_whether_the_journal_before_leads_to_the_base(
    member: Member, tmp_path: Path, branch: str
) -> None:
    member.train(3)
    _fetches(member, 3, decision=replace(_decided(3), history=history(3, branch=branch)))
    member.restorer.close()
    member.restorer.look_back(_contradicting(4))
    assert _names(tmp_path) == (["step3"] if branch == OTHER else ["step3-abandoned"])


def test_where_the_decision_is_unknown_the_journal_before_leads_to_the_base(member: Member, tmp_path: Path) -> None:
    member.train(3)
    _fetches(member, 3)
    assert member.start(_contradicting(4), step=0) == 0, "its first round already is of a history that was left"
    assert _names(tmp_path) == ["step3-abandoned"]


def test_a_base_that_was_decided_otherwise_is_not_taken_for_an_equal_model_of_the_step_before(member: Member) -> None:
    """No result of the base's step was accepted, so its digest is that of the run's first model, which the member loads."""
    member.restorer.close()
    restorer = member.restorer
    assert restorer.restore(_any(Masters()), state_at(1), step=0, use_journal=True) == 0
    digest = Masters().full_digest()
    decision = _decided(3)
    facts = CheckpointFacts(
        run_id=RUN, step=3, epoch=1, data_index=0, digest=digest, instance=INSTANCE, mid_epoch=True, decision=decision
    )
    save_checkpoint(checkpoint_path(member.folder, RUN, 3), facts, write=Path.mkdir)
    assert restorer.journal is not None
    restorer.journal.begin(3, digest, 0)
    restorer.close()
    assert restorer.restore(_any(Masters()), _contradicting(4), step=None, use_journal=True) is None


def _any(value: Any) -> Any:
    return value


def test_where_members_signed_another_base_the_journal_before_counts(member: Member, tmp_path: Path) -> None:
    member.train(3)
    _fetches(member, 5)
    assert member.start(_contradicting(6, EpochEnd(step=5, digest=b"d" * 32)), step=0) == 0
    assert _names(tmp_path) == ["step5-abandoned"]


def test_what_members_signed_is_not_set_aside_with_what_came_later(member: Member, tmp_path: Path) -> None:
    member.train(3)
    end = EpochEnd(step=4, digest=_fetches(member, 4, begins=False))
    _fetches(member, 9)
    member.restorer.close()
    member.restorer.look_back(_contradicting(6, end))
    assert _names(tmp_path) == ["step4", "step9-abandoned"]


def test_a_journal_of_the_generation_before_counts_where_another_base_is_signed(member: Member, tmp_path: Path) -> None:
    """The run went back to a step of it, and came further without us."""
    member.train(3)
    second = EpochEnd(step=2, digest=hashlib.sha256(member.contents[2]).digest())
    _fetches(member, 5)
    state = replace(state_at(6, generation=1), ends=(second, EpochEnd(step=5, digest=b"d" * 32)))
    assert member.start(state, step=0) == 2
    assert _names(tmp_path) == ["step5-abandoned"]


def test_signed_steps_of_both_journals_are_held(member: Member) -> None:
    """A journal that was full hid them: the run went back further than its only disk."""
    member.train(4)
    member.end_epoch()
    member.train(6)
    digests = {step: hashlib.sha256(content).digest() for step, content in member.contents.items()}
    state = replace(
        state_at(7), ends=tuple(EpochEnd(step=step, digest=digests[step], history=history(step)) for step in (2, 4, 5))
    )
    assert member.start(state, step=4) == 6
    assert member.restorer.held(state) == tuple((step, digests[step]) for step in (2, 4, 5))
    back = replace(state_at(3, generation=1), ends=(EpochEnd(step=2, digest=digests[2], history=history(2)),))
    assert member.start(back, step=0) == 2, "and the run may go back to them"


def test_a_journal_of_a_history_that_was_left_holds_nothing_for_the_present_one(member: Member) -> None:
    member.train(3)
    digest = _fetches(member, 5)
    state = replace(state_at(6), ends=(EpochEnd(step=2, digest=b"d" * 32), EpochEnd(step=5, digest=digest)))
    assert member.start(state, step=5) == 5
    assert member.restorer.held(state) == ((5, digest),)
