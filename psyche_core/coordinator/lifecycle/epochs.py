"""Epochs: the phases WaitingForMembers and Cooldown. The phases between them are in `warmup` and `rounds`.

The extra waiting time starts when init_min_clients members are pending (F13). A run that has trained its last step finishes even
if a pause was requested.
"""

from __future__ import annotations

from dataclasses import replace

from psyche_core.config.run_config import CoordinatorConfig, ModelConfig
from psyche_core.coordinator.checkpoints import loaded_from_hub, loaded_from_peers
from psyche_core.coordinator.commands import EpochEnded, EpochStarted, Event, Outcome, RunFinished
from psyche_core.coordinator.membership.missed_duties import WAITED_MISSES
from psyche_core.coordinator.phases import due, entered, wait_for_members
from psyche_core.coordinator.rewards import rewards_shared
from psyche_core.coordinator.state import Client, CoordinatorState, Epoch, EpochEnd, Progress
from psyche_core.types import MAX_CLIENTS, RunState


def new_state(
    run_id: str,
    config: CoordinatorConfig,
    model: ModelConfig,
    progress: Progress | None = None,
    now: int = 0,
    *,
    instance: bytes,
) -> CoordinatorState:
    """Return the state of a new run, which waits for its first members and begins with the stored checkpoint's model.

    config, model: the caller has already checked them. progress: where an earlier run stopped, None for the start. now: unix
    seconds. instance: 32 bytes that no other run has, for example random bytes. Raises ValueError for another length.
    """
    if len(instance) != 32:
        message = f"a run's instance has 32 bytes, got {len(instance)}"
        raise ValueError(message)

    progress = progress or Progress()
    stored = EpochEnd(step=progress.step - 1, data_index=progress.data_index)
    state = CoordinatorState(run_id=run_id, config=config, model=model, instance=instance, progress=progress, stored=stored)
    return wait_for_members(state, now)


def finished(state: CoordinatorState) -> bool:
    """Whether every step of the run has been trained."""
    return state.progress.step > state.config.total_steps


def tick_waiting(state: CoordinatorState, now: int, *, seed: int) -> Outcome:
    """Start an epoch if enough members have been pending for waiting_for_members_extra_time seconds.

    A member of the last epoch keeps its score of missed duties, as one that was dropped and returns does: otherwise each epoch's
    first rounds would wait for it anew (F16).
    """
    extra = state.config.waiting_for_members_extra_time
    if state.minimum_since is None or not due(state.minimum_since, now, extra):
        return state, ()

    old = state.epoch
    missed = {client.id.signer: min(client.missed, WAITED_MISSES) for client in old.clients}
    clients = tuple(Client(id=member, missed=missed.get(member.signer, 0)) for member in state.pending[:MAX_CLIENTS])
    stayed = {old.clients[slot].id.signer for slot in state.healthy_slots} & {client.id.signer for client in clients}
    model = state.model if stayed and not state.from_checkpoint else loaded_from_hub(state.model)
    epoch = Epoch(
        clients=clients,
        start_step=state.progress.step,
        start_time=now,
        cold_start=old.cold_start,
        rounds=old.rounds,
        seed=seed,
        rates=state.future_rates,
        unplayed=True,
        repeats=old.repeats,
    )
    state = replace(entered(state, RunState.Warmup, now), model=model, epoch=epoch)
    return state, (EpochStarted(epoch=state.progress.epoch, clients=len(clients)),)


def tick_cooldown(state: CoordinatorState, now: int) -> Outcome:
    """End the epoch if the cooldown is over: pay its clients, then finish, pause, or wait for the members of the next epoch."""
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
        from_checkpoint=state.from_checkpoint and state.progress.step == state.epoch.start_step,
    )
    if finished(state):
        return finish_run(state, now, events=events)
    if pausing:
        return entered(state, RunState.Paused, now), events

    return wait_for_members(state, now), events


def finish_run(state: CoordinatorState, now: int, *, events: tuple[Event, ...] = ()) -> Outcome:
    """Enter the state Finished. events: earlier events of the same command."""
    return entered(state, RunState.Finished, now), (*events, RunFinished(steps=state.progress.step - 1))
