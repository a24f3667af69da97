"""Turns the states that a client follows into events for people: when the run goes back or is restored, and how checks ended.

The run may go back to an earlier model, and its coordinator may be restored from another state. These events, and the ends of
checks of shares, are found by comparing a state with the one before it. This module also knows whether the client began in the
middle of an epoch. It is pure and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from psyche_core.client.machine.coordinator_updates import other_state
from psyche_core.client.runtime.reports.step_figures import described
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.state_events import checks_between
from psyche_core.telemetry import events as telemetry
from psyche_core.types import RunState

_ANOTHER_RUN = (
    "the server began a new run under this run's name. That may be a mistake of its owner, such as a start without the saved "
    "state: ask the owner before you start this client again. What this client has saved of the old run stays on its disk: a "
    "client that joins the new run keeps it under other names, and uses it again if the old run comes back"
)


class RunChanges:
    """Follows the states that one client sees, beginning with the first."""

    def __init__(self) -> None:
        self._begun: CoordinatorState | None = None
        self._newest: CoordinatorState | None = None
        self._described: telemetry.RunDescribed | None = None
        self._first_trained: tuple[int, int] | None = None

    def see(self, state: CoordinatorState) -> Iterator[telemetry.Event]:
        """Take in the next state; yield the events for people."""
        previous, self._newest = self._newest, state
        self._begun = self._begun or state
        now = described(state.run_id, state.config, state.model)
        if now != self._described:
            self._described = now
            yield now
        if previous is not None and state.instance != previous.instance:
            yield telemetry.Problem("warning", _ANOTHER_RUN)
        if previous is not None and state.instance == previous.instance and state.generation > previous.generation:
            yield went_back(previous, state) or telemetry.Problem("warning", other_state(previous, state))
        if previous is not None:
            yield from checks_between(previous, state)

    def note_trained(self, height: int) -> None:
        """Note that our share of the round of this height was trained."""
        if self._first_trained is None and self._newest is not None:
            self._first_trained = self._newest.progress.epoch, height

    def explained(self, dropped: telemetry.Dropped, *, training_fails: bool) -> telemetry.Dropped:
        """Return the event with the reason that only this process knows: why no result came, or why it came late."""
        if dropped.why not in ("late", "silent"):
            return dropped
        if training_fails:
            return replace(dropped, why="failed")

        return replace(dropped, why="starting") if self._was_starting(dropped) else dropped

    def _was_starting(self, dropped: telemetry.Dropped) -> bool:
        """Return whether this client began in the middle of that epoch, already a member, and had trained nothing in it yet."""
        begun = self._begun
        if begun is None or begun.current_round is None or begun.progress.epoch != dropped.epoch:
            return False

        missed = dropped.height - telemetry.Dropped.ROUNDS_AFTER
        first = self._first_trained
        return first is None or first[0] != dropped.epoch or missed < first[1]


def went_back(previous: CoordinatorState, state: CoordinatorState) -> telemetry.WentBack | None:
    """Return the event for a run that went back between two states; None if the run continues from another state instead.

    state: of a later generation. When a run goes back, it keeps the epoch's number and continues at an earlier step.
    """
    before, now = previous.progress, state.progress
    begins_at = now.step if state.current_round is None else state.epoch.start_step
    if now.epoch < before.epoch or begins_at >= before.step:
        return None

    from_checkpoint = state.from_checkpoint
    return telemetry.WentBack(
        before.step - 1,
        begins_at - 1,
        from_checkpoint=from_checkpoint,
        by_owner=_by_owner(previous, from_checkpoint),
        checkpoint=state.model.LLM.checkpoint.describe() if from_checkpoint else "",
    )


def _by_owner(previous: CoordinatorState, from_checkpoint: bool) -> bool | None:
    """Return whether the owner made the run go back; None if the earlier state does not show it."""
    if previous.model_lost and from_checkpoint:
        return False
    if previous.run_state is RunState.Paused:
        return True
    if previous.run_state is RunState.Warmup and previous.epoch.lacking:
        return False
    return None
