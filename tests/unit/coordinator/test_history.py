"""Signed epoch ends and steps (F18). After every command `run_checks.check` balances the books of all samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from psyche_core.coordinator.commands import (
    EpochSigned,
    Pause,
)
from psyche_core.coordinator.history import signed_digests
from psyche_core.coordinator.state import NO_DIGEST, EpochEnd
from psyche_core.types import RunState
from tests.unit.coordinator.epoch_ends import FIRST, LIMITS, OTHER, SECOND, THIRD, digest_of, ended, played, store, warming


# ---------------------------------------------------------------- signing an end
def test_a_quorum_signs_an_end(play: Any) -> None:
    run = play(4, **LIMITS)
    run.play_epoch()
    assert run.do(run.end_digest(0, FIRST)) == []
    assert run.do(run.end_digest(1, FIRST)) == []
    assert run.state.ends == ()
    assert run.do(run.end_digest(3, FIRST)) == [EpochSigned(step=2, digest=FIRST)]
    assert run.state.ends == (EpochEnd(step=2, data_index=16, digest=FIRST, history=run.state.history),)
    assert run.do(run.end_digest(2, FIRST)) == []
    assert [client.end_digest for client in run.state.epoch.clients] == [FIRST] * 4


def test_the_quorum_is_of_the_healthy(play: Any) -> None:
    run = play(4, **LIMITS)
    run.play_epoch()
    run.do(run.end_digest(3, FIRST))
    run.withdraw(3)
    run.do(run.end_digest(0, FIRST))
    assert run.state.ends == ()
    assert run.do(run.end_digest(1, FIRST)) == [EpochSigned(step=2, digest=FIRST)]


def test_halves_that_disagree_sign_nothing(play: Any) -> None:
    run = play(4, **LIMITS)
    run.play_epoch()
    for slot, digest in enumerate((FIRST, FIRST, OTHER, OTHER)):
        assert run.do(run.end_digest(slot, digest)) == []
    assert run.do(run.end_digest(2, FIRST)) == [EpochSigned(step=2, digest=FIRST)]


def test_one_member_signs_no_end_alone_and_keeps_none_from_it(play: Any) -> None:
    run = play(4, **LIMITS)
    run.play_epoch()
    run.sign_end(FIRST)
    assert run.do(run.end_digest(3, OTHER)) == []
    assert run.state.ends[-1].digest == FIRST


def test_what_is_signed_is_never_signed_otherwise(play: Any) -> None:
    run = play(4, **LIMITS)
    run.play_epoch()
    run.sign_end(FIRST)
    assert run.sign_end(OTHER) == []
    assert [(end.step, end.digest) for end in run.state.ends] == [(2, FIRST)]


def test_who_stays_alone_signs_nothing_alone(play: Any) -> None:
    """The quorum is of those who began the epoch's last round, wherever they are by now: a liar need only wait for them to go."""
    run = play(4, **LIMITS)
    run.play_epoch()
    run.cool_down()
    for slot in (0, 1, 2):
        run.withdraw(slot)
    assert run.do(run.end_digest(3, OTHER)) == []
    assert run.state.ends == ()


@pytest.mark.parametrize("phase", ["Cooldown", "WaitingForMembers", "Paused", "Finished"])
def test_an_end_is_signed_in_the_cooldown_and_after_it(play: Any, phase: str) -> None:
    run = play(4, **{**LIMITS, "total_steps": 2 if phase == "Finished" else 100})
    if phase == "Paused":
        run.do(Pause())
    run.play_epoch()
    if phase != "Cooldown":
        run.cool_down()
    assert run.phase == phase
    run.sign_end(FIRST)
    assert run.state.ends[-1] == EpochEnd(
        run.state.progress.step - 1, run.state.progress.data_index, FIRST, history=run.state.history
    )


def test_no_end_is_signed_before_the_rounds_are_over(play: Any) -> None:
    run = play(4, **LIMITS)
    run.refused(run.end_digest(0, FIRST), "InvalidRunState")
    run.play_signed_epoch(FIRST)
    warming(run)
    run.refused(run.end_digest(0, SECOND), "InvalidRunState")
    run.state = replace(run.state, run_state=RunState.Uninitialized)
    run.refused(run.end_digest(0, SECOND), "InvalidRunState")


def test_no_end_is_signed_by_the_members_of_an_epoch_that_was_not_played(play: Any) -> None:
    run = warming(ended(play, FIRST))
    run.tick(after=20)
    assert run.phase == "WaitingForMembers"
    run.refused(run.end_digest(0, SECOND), "InvalidRunState")


def test_whose_digest_is_refused(play: Any, members: Any) -> None:
    run = play(4, **LIMITS)
    run.play_epoch()
    good = run.end_digest(0, FIRST)
    wrong = [
        replace(good, epoch=1),
        replace(good, index=1),
        replace(good, index=99),
        replace(good, sender=members(9)),
        replace(good, digest=NO_DIGEST),
        replace(good, digest=FIRST[:31]),
        replace(good, digest=b""),
    ]
    for command in wrong:
        run.refused(command, "InvalidWitness")
    run.do(good)
    run.refused(good, "DuplicateWitness")
    run.withdraw(0)
    run.refused(run.end_digest(0, OTHER), "InvalidWitness")
    run.cool_down()
    run.refused(replace(good, epoch=1, sender=run.state.epoch.clients[1].id, index=1), "InvalidWitness")


def test_the_last_four_ends_are_kept(play: Any) -> None:
    digests = [bytes([place + 1]) * 32 for place in range(6)]
    run = ended(play, *digests)
    assert [(end.step, end.digest) for end in run.state.ends] == [(2 * place + 2, digests[place]) for place in range(2, 6)]


def test_an_end_that_is_signed_again_has_the_queue_and_losses_of_then(play: Any) -> None:
    """A share may turn out to be void after the end was signed."""
    run = play(4, **LIMITS)
    run.play_epoch()
    for slot in (0, 1, 2):
        run.do(run.end_digest(slot, FIRST))
    assert run.state.ends == (EpochEnd(2, 16, FIRST, history=run.state.history),)
    run.do(run.evidence(3, 1, by=0))
    assert run.state.lost_samples == 2
    assert run.do(run.end_digest(0, SECOND)) == []
    assert run.do(run.end_digest(0, FIRST)) == []
    assert run.state.ends == (EpochEnd(2, 16, FIRST, lost=2, history=run.state.history),)


# ---------------------------------------------------------------- the stored checkpoint
def test_a_new_run_begins_with_the_stored_checkpoint(play: Any) -> None:
    run = play(0)
    assert run.state.from_checkpoint
    assert run.state.stored == EpochEnd()


def test_after_an_epoch_with_steps_the_members_model_goes_on(play: Any) -> None:
    run = ended(play, FIRST)
    assert not run.state.from_checkpoint


def test_an_epoch_without_steps_leaves_the_stored_model_in_use(play: Any) -> None:
    run = play(4, **LIMITS)
    run.tick(after=30)
    run.tick(after=11)
    assert run.phase == "Cooldown"
    run.cool_down()
    assert (run.state.progress.step, run.state.from_checkpoint) == (1, True)


@pytest.mark.parametrize("signed_first", [True, False])
def test_what_is_stored_is_the_present_end(play: Any, members: Any, signed_first: bool) -> None:
    run = play(4, **LIMITS, checkpointers=[members(number).signer.hex() for number in range(4)])
    run.play_epoch()
    if signed_first:
        run.sign_end(FIRST)
    store(run)
    history = run.state.history
    assert run.state.stored == EpochEnd(2, 16, FIRST if signed_first else NO_DIGEST, history=history)
    if not signed_first:
        run.sign_end(FIRST)
    assert run.state.stored == EpochEnd(2, 16, FIRST, history=history)


def test_another_end_leaves_the_stored_one(play: Any) -> None:
    run = play(4, **LIMITS)
    run.play_epoch()
    run.sign_end(FIRST)
    store(run)
    history = run.state.history
    run.cool_down()
    run.warm_up()
    run.play_signed_epoch(SECOND)
    assert run.state.stored == EpochEnd(2, 16, FIRST, history=history)
    assert run.state.history != history


# ---------------------------------------------------------------- what a member says in warmup
def test_a_model_other_than_the_signed_one_is_refused(play: Any) -> None:
    run = warming(ended(play, FIRST))
    run.refused(run.ready(0, digest=OTHER), "InvalidWitness")
    run.do(run.ready(0, digest=FIRST))
    assert run.state.epoch.ready == (0,)


def test_without_a_signed_end_nobody_knows_the_right_model(play: Any) -> None:
    run = play(4, **LIMITS)
    run.play_epoch()
    run.cool_down()
    warming(run)
    run.do(run.ready(0, digest=OTHER))
    assert run.state.epoch.ready == (0,)


def test_the_newest_report_of_a_slot_counts(play: Any) -> None:
    run = warming(ended(play, FIRST, SECOND, THIRD))
    run.do(run.lacking(0))
    run.refused(run.lacking(0), "DuplicateWitness")
    run.do(run.lacking(0, held=FIRST))
    assert (run.state.epoch.lacking, run.state.epoch.held_step) == ((0,), 2)
    run.refused(run.lacking(0, held=FIRST), "DuplicateWitness")
    run.do(run.lacking(0, held=SECOND))
    assert run.state.epoch.held_step == 4
    run.do(run.ready(0))
    assert (run.state.epoch.lacking, run.state.epoch.ready) == ((), (0,))
    run.refused(run.ready(0), "DuplicateWitness")
    run.do(run.lacking(0, held=SECOND))
    assert (run.state.epoch.lacking, run.state.epoch.ready) == ((0,), ())
    run.do(run.ready(0))
    run.do(run.lacking(0))
    assert (run.state.epoch.lacking, run.state.epoch.ready) == ((0,), ())


def test_the_statements_of_the_last_rounds_sign_their_steps(play: Any) -> None:
    run = played(play)
    assert run.state.progress.step == 5
    assert dict(signed_digests(run.state)) == {step: digest_of(step) for step in (1, 2, 3)}
    assert [stored.step for stored in run.state.epoch.rounds] == [2, 3, 4, 5]


def test_a_step_whose_next_round_is_no_longer_stored_is_not_signed(play: Any) -> None:
    """Nobody could say any more which of its samples are to be assigned again."""
    run = played(play, rounds_per_epoch=5)
    assert [stored.step for stored in run.state.epoch.rounds] == [3, 4, 5, 6]
    assert sorted(signed_digests(run.state)) == [2, 3, 4]


@pytest.mark.parametrize("short", [1, 2])
def test_a_step_is_signed_by_two_thirds_of_all_who_played(play: Any, short: int) -> None:
    run = played(play, said={2: dict.fromkeys(range(short), OTHER), 3: dict.fromkeys(range(short), NO_DIGEST)})
    assert sorted(signed_digests(run.state)) == ([1, 2, 3] if short == 1 else [1])
    assert OTHER not in signed_digests(run.state).values()


def test_who_is_left_alone_signs_nothing_alone(play: Any) -> None:
    run = play(4, **{**LIMITS, "rounds_per_epoch": 6, "min_clients": 1})
    for _ in range(3):
        run.play_round(digest=digest_of(run.round.step))
    for slot in (1, 2, 3):
        run.withdraw(slot)
    run.play_round(digest=OTHER)
    assert OTHER not in signed_digests(run.state).values()


def test_a_small_committee_of_many_signs_nothing(play: Any) -> None:
    run = play(12, **{**LIMITS, "rounds_per_epoch": 6, "witness_nodes": 3})
    for _ in range(5):
        run.play_round(digest=FIRST)
    assert not signed_digests(run.state)
