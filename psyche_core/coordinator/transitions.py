"""`apply`: the coordinator as a pure function of state, command, time and seed.

It has no clock, no randomness and no I/O. A rejected command raises CoordinatorError and changes nothing, because values are
frozen. The owner's commands are here and in `rewards`, the clients' commands in the package `membership`, `checkpoints` and
`lifecycle.statements`, and the effects of time in the package `lifecycle`. The backend decides who may send an owner's command.
"""

from __future__ import annotations

from dataclasses import replace

from psyche_core.config.rules import MAX_FIRST_SAMPLE
from psyche_core.config.run_config import check_cold_start, check_config, check_model
from psyche_core.coordinator import commands
from psyche_core.coordinator.checkpoints import checkpoint
from psyche_core.coordinator.commands import Command, EpochEnded, Event, Outcome
from psyche_core.coordinator.history import epoch_digest, moved_to, went_back
from psyche_core.coordinator.lifecycle.challenges import verifier_commit
from psyche_core.coordinator.lifecycle.epochs import finish_run, finished, tick_cooldown, tick_waiting
from psyche_core.coordinator.lifecycle.rounds import tick_round
from psyche_core.coordinator.lifecycle.statements import warmup_witness, witness
from psyche_core.coordinator.lifecycle.warmup import tick_warmup
from psyche_core.coordinator.membership.equivocation import equivocation
from psyche_core.coordinator.membership.members import health_check, join, withdraw
from psyche_core.coordinator.phases import entered, wait_for_members
from psyche_core.coordinator.rewards import set_future_epoch_rates, settle
from psyche_core.coordinator.state import CoordinatorState, Progress
from psyche_core.errors import ConfigError, CoordinatorError
from psyche_core.types import RunState

_MAX_EPOCH = 2**31
"""Highest epoch at which a run can continue. It leaves room for another 2**31 epochs in 32 bits."""


def apply(state: CoordinatorState, command: Command, now: int, seed: int) -> tuple[CoordinatorState, tuple[Event, ...]]:
    """Return the state after a command, and the events that happened.

    now: unix seconds. seed: u64, for the epoch or round that may start. Raises CoordinatorError for a rejected command (nothing
    has changed), ValueError for a seed out of range, TypeError if `command` is not a command.
    """
    if not 0 <= seed < 2**64:
        message = f"expected a seed of 64 bits, got {seed}"
        raise ValueError(message)

    match command:
        case commands.Tick():
            return _tick(state, now, seed=seed)
        case commands.Join():
            return join(state, command, now)
        case commands.Withdraw():
            return withdraw(state, command, now)
        case commands.WarmupWitness():
            return warmup_witness(state, command, now, seed=seed)
        case commands.Witness():
            return witness(state, command, now, seed=seed)
        case commands.HealthCheck():
            return health_check(state, command, now)
        case commands.Equivocation():
            return equivocation(state, command, now)
        case commands.VerifierCommit():
            return verifier_commit(state, command), ()
        case commands.EpochDigest():
            return epoch_digest(state, command)
        case commands.Checkpoint():
            return checkpoint(state, command)
        case commands.Pause():
            return _pause(state, now)
        case commands.Resume():
            return _resume(state, command, now)
        case commands.UpdateConfig():
            return _update_config(state, command)
        case commands.SetFutureEpochRates():
            return set_future_epoch_rates(state, command)
        case commands.Settle():
            return settle(state, command)
    message = f"expected a command, got {type(command).__name__}"  # type: ignore[unreachable]  # callers may be untyped
    raise TypeError(message)


def _tick(state: CoordinatorState, now: int, *, seed: int) -> Outcome:
    match state.run_state:
        case RunState.WaitingForMembers:
            return tick_waiting(state, now, seed=seed)
        case RunState.Warmup:
            return tick_warmup(state, now, seed=seed)
        case RunState.RoundTrain | RunState.RoundWitness:
            return tick_round(state, now, seed=seed)
        case RunState.Cooldown:
            return tick_cooldown(state, now)
    raise CoordinatorError("Halted", f"the run is {state.run_state.name}")


def _pause(state: CoordinatorState, now: int) -> Outcome:
    """Pause the run: at once before an epoch's first round, otherwise after its drain round and cooldown, so no work is lost.

    Pending members stay pending during the pause. A warmup is abandoned and pays nobody. In RoundTrain and RoundWitness, the
    present round becomes the epoch's last trained round. In a drain round or the cooldown, the epoch ends normally and the pause
    follows. A second pause command changes nothing. If the last step of the run was trained, the run finishes instead of pausing.
    The epoch after a pause starts cold, from the hub. Raises CoordinatorError (Halted).
    """
    if state.run_state.halted:
        raise CoordinatorError("Halted", f"the run is already {state.run_state.name}")
    if state.run_state.active:
        return replace(state, pending_pause=True), ()

    abandoned = state.run_state is RunState.Warmup
    events = (EpochEnded(epoch=state.progress.epoch, success=False),) if abandoned else ()
    state = replace(state, epoch=replace(state.epoch, cold_start=True))
    return entered(state, RunState.Paused, now), events


def _resume(state: CoordinatorState, command: commands.Resume, now: int) -> Outcome:
    """Wait for members, again or for the first time. If no step is left to train, the run finishes.

    If the run is paused because no member holds its model, it asks its members again, or it goes back to the stored checkpoint
    if the command says so (F18).

    A pause that was requested but has not begun cannot be cancelled: resume when the run is paused. Members that joined before or
    during the pause are still pending, and the extra waiting time starts now. Raises CoordinatorError (CannotResume).
    """
    if state.run_state not in (RunState.Paused, RunState.Uninitialized):
        raise CoordinatorError("CannotResume", f"only a paused or never started run resumes, this one is {state.run_state.name}")
    if command.from_checkpoint and not state.model_lost:
        message = "members may hold the run's model; only a run that has lost it goes back to the stored checkpoint"
        raise CoordinatorError("CannotResume", message)
    if finished(state):
        return finish_run(state, now)

    events: tuple[Event, ...] = ()
    if command.from_checkpoint:
        state, events = went_back(state, state.stored, from_checkpoint=True)
    return wait_for_members(replace(state, model_lost=False), now), events


def _update_config(state: CoordinatorState, command: commands.UpdateConfig) -> Outcome:
    if state.run_state is RunState.Finished:
        raise CoordinatorError("UpdateConfigFinished", "a finished run keeps its configuration")
    if not state.run_state.halted:
        raise CoordinatorError("UpdateConfigNotHalted", f"pause the run first, it is in {state.run_state.name}")

    config, model = command.config or state.config, command.model or state.model
    try:
        check_config(config)
    except ConfigError as error:
        raise CoordinatorError("ConfigSanityCheckFailed", str(error)) from error
    try:
        check_model(model)
    except ConfigError as error:
        raise CoordinatorError("ModelSanityCheckFailed", str(error)) from error
    try:
        check_cold_start(config, model)
    except ConfigError as error:
        raise CoordinatorError("ConfigSanityCheckFailed", str(error)) from error

    state = replace(state, config=config, model=model)
    if command.progress is None:
        return state, ()

    problem = _progress_problem(command.progress, config.total_steps)
    if problem is not None:
        raise CoordinatorError("ProgressSanityCheckFailed", problem)

    return moved_to(state, command.progress), ()


def _progress_problem(progress: Progress, total_steps: int) -> str | None:
    """Return why a run cannot continue at this position, or None if it can.

    The step after the last one is allowed: then the run has no step left to train and finishes when it is resumed.
    """
    last_step = min(total_steps + 1, 2**32 - 1)
    limits = {"step": (1, last_step), "data_index": (0, MAX_FIRST_SAMPLE), "epoch": (0, _MAX_EPOCH)}
    for name, (least, most) in limits.items():
        value = getattr(progress, name)
        if type(value) is not int or not least <= value <= most:
            return f"progress.{name} = {value!r:.40}: must be a number from {least} to {most}"

    return None
