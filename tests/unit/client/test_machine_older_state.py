"""A coordinator restored from an older state is recognised, however far it came since; one that only goes on never is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from psyche_core.client.machine import events as ev
from psyche_core.client.machine.machine import ClientMachine
from psyche_core.coordinator import apply
from psyche_core.coordinator.commands import Tick, WarmupWitness
from psyche_core.coordinator.state import CoordinatorState, Round
from psyche_core.simulator.members.keys import RUN_ID, identity_of
from psyche_core.types import RunState
from stage import Stage

STEP = 3
"""Trained when the state was saved that the coordinator goes on from."""

ENDED = (RunState.Cooldown, RunState.WaitingForMembers, RunState.Warmup, RunState.Finished)


def states(world: Stage, *, reseeded_at: int | None = None) -> list[CoordinatorState]:
    """All states of a run. reseeded_at: the step from whose training on chance is another one."""
    seen = [world.state]
    if reseeded_at is not None:
        world.run(until=lambda: training(world.state, reseeded_at))
        world.server._rng.seed(reseeded_at)
        seen = [world.state]

    def finished() -> bool:
        if world.state is not seen[-1]:
            seen.append(world.state)
        return world.state.run_state is RunState.Finished

    world.run(until=finished)
    return seen


def training(state: CoordinatorState, step: int) -> bool:
    return state.run_state is RunState.RoundTrain and state.progress.step == step and not state.epoch.rounds[-1].drain


def begins_anew(known: CoordinatorState, seen: CoordinatorState) -> bool:
    """Whether a client that knew the one state takes the other for that of a coordinator that went back."""
    machine = ClientMachine(identity_of(0), RUN_ID, sign=lambda _: bytes(64))
    machine.handle(ev.StateSeen(known), 0.0)
    machine.handle(ev.StateSeen(seen), 1.0)
    return machine.stopped is not None and machine.stopped.again


def cut_and_begun_again(state: CoordinatorState) -> Iterator[CoordinatorState]:
    """What becomes of a state when nobody says anything until the next warmup, in which all are ready."""
    for seconds in range(1, 200):
        before = state
        state, _ = apply(state, Tick(), state.since + seconds, seconds)
        if state is not before:
            yield state
        if state.run_state is RunState.Warmup:
            break
    for slot, client in enumerate(state.epoch.clients):
        state, _ = apply(state, WarmupWitness(client.id, state.progress.epoch, slot, bytes((1,)) * 32), state.since, 1)
    yield state


def run(*, rounds_per_epoch: int) -> Stage:
    return Stage(3, total_steps=9, rounds_per_epoch=rounds_per_epoch, seed=1)


def test_a_coordinator_that_goes_on_never_seems_to_go_back() -> None:
    seen = states(run(rounds_per_epoch=3))[::3]
    assert not any(begins_anew(known, later) for number, known in enumerate(seen) for later in seen[number:])


@pytest.mark.parametrize("rounds_per_epoch", [3, 6])
def test_an_epoch_that_ended_with_fewer_steps_is_another_history(rounds_per_epoch: int) -> None:
    """Its number is larger and its step is smaller: nobody may go on with what it trained in the steps that are forgotten."""
    original = states(run(rounds_per_epoch=rounds_per_epoch))
    older = next(state for state in original if training(state, STEP))
    again = list(cut_and_begun_again(older))
    assert [state.run_state for state in again][-2:] == [RunState.Warmup, RunState.RoundTrain]
    assert again[-1].epoch.start_step == STEP

    known = [state for state in original if training(state, STEP + 1)][:1]
    assert known
    assert all(
        begins_anew(state, later) for state in known for later in again if later.run_state in (*ENDED, RunState.RoundTrain)
    )


def test_rounds_that_are_played_anew_are_recognised_also_after_their_epoch() -> None:
    """As long as the state stores them, which it does until the next epoch's first round."""
    original = states(run(rounds_per_epoch=6))
    again = states(run(rounds_per_epoch=6), reseeded_at=STEP)
    first = [state for state in again if state.run_state in ENDED and state.epoch.rounds[-1].step == 7]
    known = [state for state in original if training(state, STEP + 3)]

    assert {RunState.Cooldown, RunState.WaitingForMembers, RunState.Warmup} <= {state.run_state for state in first}
    assert known
    assert all(begins_anew(before, later) for before in known for later in first)


@pytest.mark.parametrize("what", ["a statement", "a proof"])
def test_a_round_that_lacks_what_we_know_is_of_another_history(what: str) -> None:
    """Also where nothing else differs: a restored coordinator may decide a round again while we sleep."""
    original = states(run(rounds_per_epoch=6))
    known = next(state for state in original if training(state, STEP + 1))
    later = next(state for state in original if training(state, STEP + 2))
    assert not begins_anew(known, later)
    shared = next(stored for stored in later.epoch.rounds if known.round_at(stored.height) and stored.statements)
    with_proof = replace(shared, voided=(0,))
    if what == "a statement":
        assert begins_anew(known, with_round(later, replace(shared, statements=shared.statements[1:])))
    else:
        assert begins_anew(with_round(known, with_proof), later)
        assert not begins_anew(known, with_round(later, with_proof)), "a proof that comes later"


def with_round(state: CoordinatorState, other: Round) -> CoordinatorState:
    rounds = tuple(other if stored.height == other.height else stored for stored in state.epoch.rounds)
    return replace(state, epoch=replace(state.epoch, rounds=rounds))
