"""How long a round lasts: the time for training, and the time for witnesses to send their statements.

Both are upper limits from the run configuration (`max_round_train_time`, `round_witness_time`). Training ends early with the
first statement (`statements`), the witness phase as soon as all witnesses that the round waits for have sent theirs.
"""

from __future__ import annotations

from psyche_core.coordinator.membership.missed_duties import WAITED_MISSES, is_accountable
from psyche_core.coordinator.phases import active_round, due
from psyche_core.coordinator.round.committee import witness_slots
from psyche_core.coordinator.state import CoordinatorState


def training_time_is_over(state: CoordinatorState, now: int) -> bool:
    """Whether RoundTrain has lasted as long as it may. now: unix seconds."""
    return due(state.since, now, state.config.max_round_train_time)


def witness_time_is_over(state: CoordinatorState, now: int) -> bool:
    """Whether RoundWitness has lasted as long as it may, or nobody is waited for. now: unix seconds."""
    # Times are whole seconds: between two times that differ by N, hardly more than N - 1 seconds may have passed. One second is
    # added, so that the phase lasts at least as long as configured. Without it, a phase of one second could end as soon as it
    # begins, before the statements of honest witnesses arrive.
    return due(state.since, now, state.config.round_witness_time + 1) or everybody_stated(state)


def everybody_stated(state: CoordinatorState) -> bool:
    """Whether all elected witnesses that are healthy and that the round waits for have sent their statements (F15, F16).

    A witness that came back in this round may state, and is not waited for: its silence is no missed duty, so it could leave and
    come back in order to hold up rounds.
    """
    current = active_round(state)
    stated = {statement.index for statement in current.statements}
    clients = state.epoch.clients
    return all(
        slot in stated or not is_accountable(clients[slot], current.height) or clients[slot].missed >= WAITED_MISSES
        for slot in witness_slots(state, current)
    )
