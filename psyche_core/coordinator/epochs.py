"""Epochs: waiting for members, warmup, cooldown.

Decided: the extra waiting time runs from reaching the minimum (F13); at the warmup's time-out who is not ready is dropped, before
the count and before the first round (F10), and may come back like any dropped slot; an epoch given up in warmup pays nobody and
uses no step; a finished run is finished even when a pause was asked for.
"""

from __future__ import annotations

from dataclasses import replace

from psyche_core.coordinator.checkpoints import loaded_from_hub, loaded_from_peers
from psyche_core.coordinator.commands import EpochEnded, EpochStarted, Event, RunFinished
from psyche_core.coordinator.members import exited
from psyche_core.coordinator.rewards import rewards_shared
from psyche_core.coordinator.rounds import Outcome, due, entered, start_round
from psyche_core.coordinator.state import Client, CoordinatorState, Epoch, Progress
from psyche_core.run_config import CoordinatorConfig, ModelConfig
from psyche_core.types import MAX_CLIENTS, ClientState, RunState


def new_state(
    run_id: str, config: CoordinatorConfig, model: ModelConfig, progress: Progress | None = None, now: int = 0
) -> CoordinatorState:
    """A run that waits for its first members.

    progress: where an earlier run stopped, None for the start. now: unix seconds. Configuration is taken as checked.
    """
    state = CoordinatorState(run_id=run_id, config=config, model=model, progress=progress or Progress())
    return wait_for_members(state, now)


def finished(state: CoordinatorState) -> bool:
    """Whether every step of the run has been trained."""
    return state.progress.step > state.config.total_steps


def wait_for_members(state: CoordinatorState, now: int) -> CoordinatorState:
    """Enter WaitingForMembers; with enough members already there, the extra time starts now (F13)."""
    enough = len(state.pending) >= state.config.init_min_clients
    return replace(entered(state, RunState.WaitingForMembers, now), minimum_since=now if enough else None)


def tick_waiting(state: CoordinatorState, now: int, *, seed: int) -> Outcome:
    """Start an epoch when enough members have been pending for the extra time."""
    extra = state.config.waiting_for_members_extra_time
    if state.minimum_since is None or not due(state.minimum_since, now, extra):
        return state, ()

    clients = tuple(Client(id=member) for member in state.pending[:MAX_CLIENTS])
    old = state.epoch
    stayed = {old.clients[slot].id.signer for slot in state.healthy_slots} & {client.id.signer for client in clients}
    model = state.model if stayed else loaded_from_hub(state.model)
    epoch = Epoch(
        clients=clients,
        start_step=state.progress.step,
        start_time=now,
        cold_start=old.cold_start,
        rounds=old.rounds,
        seed=seed,
        rates=state.future_rates,
        unplayed=True,
    )
    state = replace(entered(state, RunState.Warmup, now), model=model, epoch=epoch)
    return state, (EpochStarted(epoch=state.progress.epoch, clients=len(clients)),)


def tick_warmup(state: CoordinatorState, now: int, *, seed: int) -> Outcome:
    """Give the epoch up when too few are left; start the first round when all those left are ready or time is up."""
    events: tuple[Event, ...] = ()
    timed_out = due(state.since, now, state.config.warmup_time)
    if timed_out:
        late = set(state.healthy_slots) - set(state.epoch.ready)
        state, events = exited(state, late, ClientState.Dropped, now)

    healthy = state.healthy_slots
    if len(healthy) < state.config.min_clients:
        return wait_for_members(state, now), (*events, EpochEnded(epoch=state.progress.epoch, success=False))
    if timed_out or set(healthy) <= set(state.epoch.ready):
        state, started = start_round(state, now, seed=seed)
        return state, (*events, *started)

    return state, ()


def tick_cooldown(state: CoordinatorState, now: int) -> Outcome:
    """End the epoch when the cooldown is over: pay it, then finish, pause or wait for the next one's members."""
    if not due(state.since, now, state.config.cooldown_time):
        return state, ()

    state, paid = rewards_shared(state)
    events: tuple[Event, ...] = (*paid, EpochEnded(epoch=state.progress.epoch, success=True))
    pausing = state.pending_pause
    state = replace(
        state,
        model=loaded_from_peers(state.model),
        progress=replace(state.progress, epoch=state.progress.epoch + 1),
        epoch=replace(state.epoch, cold_start=pausing),
        pending_pause=False,
    )
    if finished(state):
        return finish_run(state, now, events=events)
    if pausing:
        return entered(state, RunState.Paused, now), events

    return wait_for_members(state, now), events


def finish_run(state: CoordinatorState, now: int, *, events: tuple[Event, ...] = ()) -> Outcome:
    """Enter Finished."""
    return entered(state, RunState.Finished, now), (*events, RunFinished(steps=state.progress.step - 1))
