"""What holds after every command, whatever it was: for runs that `conftest.Play` plays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from psyche_core.coordinator.commands import (
    EpochEnded,
)
from psyche_core.coordinator.rewards import signers_without_account
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.round.committee import witness_slots
from psyche_core.coordinator.state import MAX_ACCOUNTS, MAX_REJOINS, NO_DIGEST, CoordinatorState, EpochEnd
from psyche_core.types import BatchId, ClientState, RunState

if TYPE_CHECKING:
    from tests.unit.coordinator.conftest import Play


def samples(batches: Iterable[BatchId]) -> list[int]:
    return [sample for batch in batches for sample in range(batch.first, batch.last + 1)]


def end_without_digest(end: EpochEnd) -> EpochEnd:
    """The place in the history, whoever signed it."""
    return replace(end, digest=NO_DIGEST)


def check(play: Play, before: CoordinatorState) -> None:
    """What must hold after every accepted command."""
    state = play.state
    undecided: list[BatchId] = []
    if state.run_state in (RunState.RoundTrain, RunState.RoundWitness):
        undecided = [batch for stored in state.epoch.rounds[-2:] for batch in stored.batches]

    known = samples([*play.applied, *state.requeue, *undecided])
    assert len(known) == len(set(known)), "a sample is held twice"
    assert len(known) + state.lost_samples == state.progress.data_index, "a sample was skipped"
    assert not known or max(known) < state.progress.data_index

    heights = [stored.height for stored in state.epoch.rounds]
    assert heights == list(range(heights[0], heights[0] + len(heights))) if heights else True
    assert len(heights) <= 4
    for stored in state.epoch.rounds:
        senders = [statement.index for statement in stored.statements]
        assert len(senders) == len(set(senders))
        assert not (stored.drain and stored.batches)
    if state.current_round is not None and state.current_round != before.current_round:
        assert {statement.index for statement in state.current_round.statements} <= set(witness_slots(state, state.current_round))
    if state.epoch.start_time == before.epoch.start_time and before.epoch.clients:
        check_same_epoch(state, before)
    check_members(state)
    check_challenges(state)
    check_history(state)
    check_progress(play, before)
    assert {account.signer: (account.earned, account.slashed) for account in state.accounts} == play.paid


_LEAVING = (ClientState.Dropped, ClientState.Withdrawn)


def check_same_epoch(state: CoordinatorState, before: CoordinatorState) -> None:
    """Slots, past rounds, seed and rates of an epoch stay; health changes as it may."""
    assert [client.id for client in state.epoch.clients] == [client.id for client in before.epoch.clients]
    assert (state.epoch.seed, state.epoch.rates) == (before.epoch.seed, before.epoch.rates)
    for client, old in zip(state.epoch.clients, before.epoch.clients, strict=True):
        fewer = 1 if client.state is ClientState.Ejected else 0  # a share that turned out to be void
        verified = len(before.epoch.challenges)  # each may be paid as an accepted round, or takes one back
        assert old.accepted_rounds - fewer - verified <= client.accepted_rounds <= old.accepted_rounds + 1 + verified
        assert client.standing.strikes >= old.standing.strikes
        assert client.state is ClientState.Ejected or not client.standing.ejected
        assert old.rejoins <= client.rejoins <= MAX_REJOINS
        if old.state is ClientState.Ejected:
            assert client.state is ClientState.Ejected
        if old.state in _LEAVING and client.state is ClientState.Healthy:
            assert client.rejoins == old.rejoins + 1
        elif old.state in _LEAVING:
            assert client.state in (old.state, ClientState.Ejected)
    for stored in state.epoch.rounds:
        old_round = before.round_at(stored.height)
        if old_round is not None and before.epoch.unplayed == state.epoch.unplayed:
            assert replace(stored, statements=(), voided=()) == replace(old_round, statements=(), voided=())
            assert set(stored.voided) >= set(old_round.voided)
            assert stored.statements[: len(old_round.statements)] == old_round.statements


def check_members(state: CoordinatorState) -> None:
    """Nobody is pending twice, and whoever works can be paid."""
    signers = [identity.signer for identity in state.pending]
    assert len(signers) == len(set(signers)) <= 256
    if not state.run_state.halted:
        assert (state.minimum_since is not None) == (len(state.pending) >= state.config.init_min_clients)
    holders = [account.signer for account in state.accounts]
    assert holders == sorted(set(holders))
    assert len(holders) + len(signers_without_account(state)) <= MAX_ACCOUNTS
    ready = state.epoch.ready
    assert list(ready) == sorted(set(ready))


def check_challenges(state: CoordinatorState) -> None:
    """Challenges are open while rounds are played; who recomputes has no share; the challenged are others than the judges."""
    open_ones = state.epoch.challenges
    assert not open_ones or state.run_state in (RunState.RoundTrain, RunState.RoundWitness)
    assert [(one.height, one.trainer) for one in open_ones] == sorted({(one.height, one.trainer) for one in open_ones})
    for stored in state.epoch.rounds:
        assert not set(stored.recomputing) & shares(state, stored).keys()
        assert set(stored.recomputing) <= set(stored.slots)
    for one in open_ones:
        assert one.trainer not in (one.verifier, *one.judges)
        assert not state.epoch.clients[one.trainer].standing.ejected


def check_history(state: CoordinatorState) -> None:
    """Bounds of what is remembered, and that it belongs to the history that is gone on with."""
    assert all(client.missed <= 255 for client in state.epoch.clients)
    steps = [end.step for end in state.ends]
    assert steps == sorted(set(steps))
    assert len(steps) <= 4
    assert all(step < state.progress.step for step in (*steps, state.stored.step))
    assert all(end.digest != NO_DIGEST and len(end.queue) <= 64 for end in state.ends)
    late = [entry.signer for entry in state.unready]
    assert len(late) == len(set(late)) <= 256
    both = set(state.epoch.ready) & set(state.epoch.lacking)
    assert all(state.epoch.clients[slot].rejoins > 0 for slot in both)  # who came back in warmup is ready whatever it lacked
    assert not state.model_lost or state.run_state is RunState.Paused


def check_progress(play: Play, before: CoordinatorState) -> None:
    """Steps, epochs and samples only go forward, an epoch at its end only, a step at a trained round's end only."""
    state = play.state
    if state.generation == before.generation:
        assert before.progress.step <= state.progress.step <= before.progress.step + 1
        assert state.progress.data_index >= before.progress.data_index
    else:
        assert state.generation == before.generation + 1
        assert state.run_state in (RunState.WaitingForMembers, RunState.Finished)
        assert (state.epoch.rounds, state.epoch.unplayed, state.model_lost) == ((), True, False)
        assert state.progress.step <= before.progress.step
        assert state.progress.data_index <= before.progress.data_index
    assert state.progress.step <= state.config.total_steps + 1
    ended = state.progress.epoch - before.progress.epoch
    assert ended in (0, 1)
    last = play.events[-3:] if ended else []
    assert not ended or EpochEnded(epoch=before.progress.epoch, success=True) in last
    assert not state.pending_pause or state.run_state.active
    if state.run_state in (RunState.RoundTrain, RunState.RoundWitness):
        assert state.current_round is not None
        assert state.current_round.drain == (state.epoch.ending is not None)
        assert not any(stored.drain for stored in state.epoch.rounds[:-1])
