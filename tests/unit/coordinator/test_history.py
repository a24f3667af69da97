"""Signed epoch ends and going back to one (F18). After every command `conftest.check` balances the books of all samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from psyche_core.config.run_config import Choice
from psyche_core.coordinator import apply
from psyche_core.coordinator.checkpoints import checkpointer_slot
from psyche_core.coordinator.commands import (
    Checkpoint,
    ClientsExited,
    EpochEnded,
    EpochSigned,
    ModelLost,
    Pause,
    Resume,
    UpdateConfig,
    WentBack,
    Withdraw,
)
from psyche_core.coordinator.history import signed_digests
from psyche_core.coordinator.state import NO_DIGEST, EpochEnd, Progress
from psyche_core.types import BatchId, RunState, total_samples

FIRST, SECOND, THIRD, OTHER = (bytes([number]) * 32 for number in (0xA1, 0xA2, 0xA3, 0xAF))
HUB = Choice("Hub", {"repo_id": "owner/stored"})
LIMITS = {"rounds_per_epoch": 2, "init_min_clients": 2, "min_clients": 2}


def ended(play: Any, *digests: bytes, clients: int = 4, **config: Any) -> Any:
    """A run of epochs of two steps whose ends everybody signed; waiting for members."""
    run = play(clients, **{**LIMITS, **config})
    for place, digest in enumerate(digests):
        run.play_signed_epoch(digest)
        if place < len(digests) - 1:
            run.warm_up()
    assert run.phase == "WaitingForMembers"
    return run


def warming(run: Any) -> Any:
    """The next warmup."""
    run.tick(after=3)
    assert run.phase == "Warmup"
    return run


def lack(run: Any, **held: bytes) -> list[Any]:
    """All members lack the model. held: `s0`, `s1`… -> what a slot holds instead."""
    events: list[Any] = []
    for slot in run.state.healthy_slots:
        events += run.do(run.lacking(slot, held=held.get(f"s{slot}", NO_DIGEST)))
    return events


def store(run: Any) -> None:
    slot = checkpointer_slot(run.state)
    assert slot is not None
    run.do(Checkpoint(run.state.epoch.clients[slot].id, HUB))


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


def test_what_is_lacking_may_come_but_not_the_other_way_round(play: Any) -> None:
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
    run.refused(run.lacking(0), "DuplicateWitness")


# ---------------------------------------------------------------- going back


def test_the_run_goes_back_to_the_newest_end_that_a_member_holds(play: Any) -> None:
    run = warming(ended(play, FIRST, SECOND, THIRD))
    ends, pending = run.state.ends, run.state.pending
    events = lack(run, s0=FIRST, s2=SECOND)
    assert events == [EpochEnded(epoch=3, success=False), WentBack(from_step=6, to_step=4, from_checkpoint=False)]
    state = run.state
    assert (state.progress, state.generation) == (Progress(epoch=3, step=5, data_index=32), 1)
    assert (state.ends, state.pending, state.unready) == (ends[:2], pending, ())
    assert not state.from_checkpoint
    assert run.phase == "WaitingForMembers"
    run.refused(run.end_digest(0, OTHER), "InvalidRunState")
    warming(run)
    run.refused(run.ready(0, digest=THIRD), "InvalidWitness")
    for slot in range(4):
        run.do(run.ready(slot, digest=SECOND))
    assert (run.round.step, run.round.batches) == (5, (BatchId(32, 39),))
    run.play_signed_epoch(OTHER)
    assert [end.digest for end in run.state.ends] == [FIRST, SECOND, OTHER]


def test_before_the_run_goes_back_it_asks_those_who_joined_meanwhile(play: Any, members: Any, joins: Any) -> None:
    """One of them may hold what the warmup's members lack. Strangers who join in each warmup hold it up twice."""
    run = warming(ended(play, FIRST, SECOND))
    for times in (1, 2):
        run.do(joins(members(3 + times)))
        assert lack(run, s0=FIRST) == [EpochEnded(epoch=2, success=False)]
        assert (run.phase, run.state.epoch.repeats, run.state.generation) == ("WaitingForMembers", times, 0)
        warming(run)
        assert len(run.state.epoch.clients) == 4 + times
    run.do(joins(members(6)))
    assert lack(run, s0=FIRST)[-1] == WentBack(from_step=4, to_step=2, from_checkpoint=False)
    assert run.state.epoch.repeats == 0


def test_who_joined_meanwhile_and_holds_the_model_saves_it(play: Any, members: Any, joins: Any) -> None:
    run = warming(ended(play, FIRST, SECOND))
    run.do(joins(members(4)))
    lack(run, s0=FIRST)
    warming(run)
    run.do(run.ready(4, digest=SECOND))
    for slot in range(4):
        run.do(run.lacking(slot, held=FIRST))
    assert run.phase == "Warmup", "who holds it can give it to the others"
    for slot in range(4):
        run.do(run.ready(slot, digest=SECOND))
    assert (run.phase, run.round.step, run.state.epoch.repeats) == ("RoundTrain", 5, 0)


def test_who_joined_and_left_again_is_not_waited_for(play: Any, members: Any, joins: Any) -> None:
    run = warming(ended(play, FIRST, SECOND))
    run.do(joins(members(4)))
    run.do(Withdraw(members(4)))
    assert lack(run, s0=FIRST)[-1] == WentBack(from_step=4, to_step=2, from_checkpoint=False)


def test_a_lost_model_is_told_when_those_who_joined_meanwhile_lack_it_too(play: Any, members: Any, joins: Any) -> None:
    run = warming(ended(play, FIRST, SECOND))
    run.do(joins(members(4)))
    lack(run)
    warming(run)
    assert lack(run) == [EpochEnded(epoch=2, success=False), ModelLost(step=4)]
    assert (run.phase, run.state.epoch.repeats) == ("Paused", 0)


def test_the_queue_of_then_is_assigned_again(play: Any) -> None:
    """With it the samples that are trained afterwards are those of the history that is gone on with."""
    run = play(4, **LIMITS)
    run.play_round()
    run.play_round(seen=[0, 1])
    run.play_round()
    run.sign_end(FIRST)
    run.cool_down()
    queue = run.state.requeue
    assert queue
    run.warm_up()
    run.play_signed_epoch(SECOND)
    assert run.state.requeue == ()
    warming(run)
    lack(run, s0=FIRST)
    assert (run.state.requeue, run.state.progress.data_index) == (queue, 16)


def test_samples_that_were_lost_since_are_no_longer(play: Any) -> None:
    run = ended(play, FIRST)
    queue = tuple(BatchId(4 * place, 4 * place) for place in range(3))
    end = replace(run.state.ends[0], lost=5)
    run.applied = [BatchId(1, 3), BatchId(5, 7), BatchId(9, 10)]
    run.state = replace(run.state, requeue=queue, lost_samples=5, ends=(replace(end, queue=queue),))
    run.applied_by[replace(end, queue=queue, digest=NO_DIGEST)] = list(run.applied)
    run.warm_up()
    run.state = replace(run.state, lost_samples=9, progress=replace(run.state.progress, data_index=25))
    run.play_signed_epoch(SECOND)
    warming(run)
    lack(run, s0=FIRST)
    assert (run.state.lost_samples, run.state.progress.data_index, run.state.requeue) == (5, 16, queue)


def test_intervals_that_an_end_has_no_room_for_are_lost_with_a_return(play: Any) -> None:
    run = play(4, **LIMITS)
    run.play_epoch()
    queue = tuple(BatchId(2 * place, 2 * place) for place in range(70))
    run.applied = [BatchId(2 * place + 1, 2 * place + 1) for place in range(70)]
    run.state = replace(run.state, requeue=queue, progress=replace(run.state.progress, data_index=140))
    run.sign_end(FIRST)
    assert run.state.ends[-1] == EpochEnd(2, 140, FIRST, queue[-64:], lost=6, history=run.state.history)
    assert (run.state.requeue, run.state.lost_samples) == (queue, 0)
    run.cool_down()
    run.warm_up()
    run.play_signed_epoch(SECOND)
    warming(run)
    lack(run, s1=FIRST)
    assert (run.state.requeue, run.state.lost_samples) == (queue[-64:], 6)


@pytest.mark.parametrize("short", [1, 2])
def test_fewer_than_a_quorum_turn_nothing_back(play: Any, short: int) -> None:
    run = warming(ended(play, FIRST, SECOND))
    lacking = tuple(range(4 - short, 4))
    for slot in lacking:
        run.do(run.lacking(slot, held=FIRST))
    for slot in range(4 - short):
        run.do(run.ready(slot))
    assert run.phase == "Warmup"
    assert run.tick(after=20)[0] == ClientsExited(epoch=2, slots=lacking)
    assert (run.round.step, run.state.generation, run.state.unready) == (5, 0, ())


def test_a_liar_turns_nothing_back_while_the_others_load(play: Any) -> None:
    run = warming(ended(play, FIRST, SECOND))
    run.do(run.lacking(3, held=FIRST))
    run.tick(after=19)
    assert run.phase == "Warmup"
    run.tick(after=1)
    assert run.phase == "WaitingForMembers"
    assert (run.state.progress.step, run.state.generation) == (5, 0)


def test_who_claims_an_end_it_does_not_hold_costs_one_more_return(play: Any) -> None:
    run = warming(ended(play, FIRST, SECOND, THIRD))
    assert lack(run, s0=FIRST, s3=SECOND)[-1] == WentBack(from_step=6, to_step=4, from_checkpoint=False)
    warming(run)
    assert lack(run, s0=FIRST)[-1] == WentBack(from_step=4, to_step=2, from_checkpoint=False)
    run.warm_up()
    assert (run.round.step, run.state.generation) == (3, 2)


def test_at_the_time_out_those_who_spoke_decide(play: Any) -> None:
    run = warming(ended(play, FIRST, SECOND))
    for slot in (0, 1):
        run.do(run.lacking(slot, held=FIRST))
    run.do(run.ready(2))
    assert run.tick(after=20)[-1] == WentBack(from_step=4, to_step=2, from_checkpoint=False)
    assert run.state.unready == ()


def test_who_left_has_no_say(play: Any) -> None:
    run = warming(ended(play, FIRST, SECOND))
    for slot in (0, 1, 2):
        run.do(run.lacking(slot, held=FIRST))
    run.withdraw(0)
    run.withdraw(1)
    run.do(run.ready(3))
    assert (run.phase, run.state.generation) == ("Warmup", 0)


# ---------------------------------------------------------------- nobody holds any


def test_a_lost_model_is_the_owner_s_decision(play: Any) -> None:
    run = warming(ended(play, FIRST, SECOND))
    assert lack(run) == [EpochEnded(epoch=2, success=False), ModelLost(step=4)]
    assert (run.phase, run.state.model_lost, run.state.progress.step) == ("Paused", True, 5)
    assert run.do(Resume(from_checkpoint=True)) == [WentBack(from_step=4, to_step=0, from_checkpoint=True)]
    state = run.state
    assert (state.progress, state.generation) == (Progress(epoch=2), 1)
    assert (state.ends, state.from_checkpoint, state.model_lost) == ((), True, False)
    run.warm_up()
    assert run.round.batches == (BatchId(0, 7),)


def test_the_owner_may_ask_the_members_once_more(play: Any) -> None:
    run = warming(ended(play, FIRST, SECOND))
    lack(run)
    assert run.do(Resume()) == []
    assert (run.phase, run.state.model_lost, run.state.generation) == ("WaitingForMembers", False, 0)
    run.warm_up()
    assert run.round.step == 5


def test_the_configuration_may_decide_for_the_owner(play: Any) -> None:
    run = play(4, **LIMITS, restart_from_checkpoint=True)
    run.play_epoch()
    run.sign_end(FIRST)
    store(run)
    run.cool_down()
    run.warm_up()
    run.play_signed_epoch(SECOND)
    warming(run)
    assert lack(run)[-1] == WentBack(from_step=4, to_step=2, from_checkpoint=True)
    assert (run.state.progress.step, run.state.from_checkpoint) == (3, True)
    assert [end.digest for end in run.state.ends] == [FIRST]
    run.tick(after=3)
    assert run.state.model.LLM.checkpoint == HUB


def test_an_end_that_is_held_comes_before_the_stored_checkpoint(play: Any) -> None:
    run = warming(ended(play, FIRST, SECOND, restart_from_checkpoint=True))
    assert lack(run, s3=FIRST)[-1] == WentBack(from_step=4, to_step=2, from_checkpoint=False)


def test_there_is_no_way_back_from_the_stored_checkpoint(play: Any) -> None:
    run = play(0, **LIMITS)
    run.join(0, 1, 2, 3)
    warming(run)
    lack(run)
    assert run.phase == "Warmup"
    run.tick(after=20)
    assert (run.phase, run.state.generation, run.state.model_lost) == ("WaitingForMembers", 0, False)


@pytest.mark.parametrize("phase", [RunState.Paused, RunState.Uninitialized])
def test_the_owner_cannot_go_back_while_members_may_hold_the_model(play: Any, phase: RunState) -> None:
    run = ended(play, FIRST)
    run.state = replace(run.state, run_state=phase)
    run.refused(Resume(from_checkpoint=True), "CannotResume")


# ---------------------------------------------------------------- back to a step of the last rounds


def digest_of(step: int) -> bytes:
    return bytes([0xD0, step]) * 16


def played(play: Any, *, said: dict[int, dict[int, bytes]] | None = None, seen: Any = None, **config: Any) -> Any:
    """The warmup after an epoch of four steps whose end nobody signed. said: what a slot said of a step instead of the digest."""
    run = play(4, **{**LIMITS, "rounds_per_epoch": 4, **config})
    while run.phase in ("RoundTrain", "RoundWitness"):
        height, step = run.round.height, run.round.step - 2
        for slot in run.elected:
            if run.round.height == height:
                digest = (said or {}).get(step, {}).get(slot, digest_of(step) if step > 0 else NO_DIGEST)
                run.do(run.statement(slot, model_digest=digest, seen=seen if height == 3 else None), after=1)
    run.tick(after=11)
    return warming(run)


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


@pytest.mark.parametrize("step", [1, 2, 3])
def test_the_run_goes_back_to_the_newest_signed_step_that_a_member_holds(play: Any, step: int) -> None:
    run = played(play)
    assigned = run.state.progress.data_index
    assert lack(run, s1=digest_of(step), s2=digest_of(1))[-1] == WentBack(from_step=4, to_step=step, from_checkpoint=False)
    assert run.state.progress == Progress(epoch=1, step=step + 1, data_index=assigned)
    assert total_samples(run.state.requeue) == 8 * (4 - step)
    assert [(end.step, end.digest) for end in run.state.ends] == [(at, digest_of(at)) for at in range(1, step + 1)]
    run.tick(after=3)
    run.refused(run.ready(0, digest=OTHER), "InvalidWitness")
    for slot in run.state.healthy_slots:
        run.do(run.ready(slot))
    assert run.phase == "RoundTrain"


def test_samples_that_waited_already_wait_once(play: Any) -> None:
    """Of the third step only two shares were accepted: the others waited before the run went back."""
    run = played(play, seen=(0, 1))
    assert total_samples(run.state.requeue) == 4
    lack(run, s0=digest_of(2))
    assert run.state.progress.step == 3
    assert total_samples(run.state.requeue) == 16


def test_of_a_step_that_nobody_holds_any_more_an_earlier_one_is_taken(play: Any) -> None:
    """Who claims what it does not have costs one more warmup."""
    run = played(play)
    lack(run, s0=digest_of(3))
    warming(run)
    assert lack(run, s1=digest_of(1))[-1] == WentBack(from_step=3, to_step=1, from_checkpoint=False)
    assert total_samples(run.state.requeue) == 24


# ---------------------------------------------------------------- where the owner wants it to go on


def owner_s(run: Any, progress: Progress) -> tuple[Any, Any]:
    """The state before and after the owner set the progress. Not with `Play.do`: the books of samples are the owner's then."""
    run.do(Pause())
    before = replace(run.state, model_lost=True, requeue=(BatchId(0, 1),), lost_samples=3)
    after, events = apply(before, UpdateConfig(progress=progress), run.now, 1)
    assert events == ()
    return before, after


def test_the_owner_goes_on_from_a_signed_end_with_the_members_model(play: Any) -> None:
    run = ended(play, FIRST, SECOND)
    before, after = owner_s(run, Progress(epoch=2, step=3, data_index=16))
    assert [end.digest for end in after.ends] == [FIRST]
    assert (after.from_checkpoint, after.stored) == (False, before.stored)
    assert (after.generation, after.model_lost, after.requeue) == (1, False, ())
    assert after.history == after.ends[-1].history != before.history


def test_the_owner_goes_on_elsewhere_with_the_stored_checkpoint(play: Any) -> None:
    run = ended(play, FIRST, SECOND)
    before, after = owner_s(run, Progress(epoch=2, step=4, data_index=24))
    assert [end.digest for end in after.ends] == [FIRST]
    assert after.from_checkpoint
    assert after.stored == EpochEnd(3, 24, NO_DIGEST, (), lost=3, history=after.history)
    assert after.history not in (before.history, *(end.history for end in before.ends))
    assert (after.generation, after.model_lost, after.epoch.rounds) == (1, False, ())
