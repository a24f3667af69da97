"""What happened between two states of a coordinator: who was lost, and how checks of shares ended. Pure.

Who follows a run sees states and no events, whether they come from a server or from a chain. Some of what happened between two
of them cannot be seen; that is left out.
"""

from __future__ import annotations

from dataclasses import replace

from psyche_core.coordinator.commands import ChallengeClosed, ClientsExited, Event
from psyche_core.coordinator.lifecycle.challenges import challenges_advanced
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry.events import ShareChecked


def events_between(before: CoordinatorState, after: CoordinatorState) -> tuple[Event, ...]:
    """The events that two states of one epoch show, in order."""
    return (*closed_challenges(before, after), *lost(before, after))


def lost(before: CoordinatorState, after: CoordinatorState) -> tuple[Event, ...]:
    """Events for members that stopped being healthy between two states of one epoch."""
    if not _of_one_epoch(before, after):
        return ()

    slots = tuple(slot for slot in before.healthy_slots if slot not in after.healthy_slots)
    return (ClientsExited(epoch=after.progress.epoch, slots=slots),) if slots else ()


def closed_challenges(before: CoordinatorState, after: CoordinatorState) -> tuple[ChallengeClosed, ...]:
    """Events for challenges that ended between two states of one epoch, between which one round ended.

    The later state has all statements of that round, so the coordinator's rules say again what they said then. Nothing where more
    than one round ended, or the epoch's last one. `paid` may lack who committed between the two readings.
    """
    ended, current = before.current_round, after.current_round
    if not before.epoch.challenges or ended is None or current is None or not _of_one_epoch(before, after):
        return ()

    whole = after.round_at(ended.height)
    if whole is None or current.height != ended.height + 1:
        return ()

    last = replace(before, epoch=replace(before.epoch, rounds=(*before.epoch.rounds[:-1], whole)))
    _, events = challenges_advanced(last, whole, after.since, seed=current.seed)
    still_open = {(one.height, one.trainer) for one in after.epoch.challenges}
    return tuple(
        event for event in events if isinstance(event, ChallengeClosed) and (event.height, event.trainer) not in still_open
    )


def checks_between(before: CoordinatorState, after: CoordinatorState) -> tuple[ShareChecked, ...]:
    """The same, as programs tell it."""
    return tuple(share_checked(after, event) for event in closed_challenges(before, after))


def share_checked(state: CoordinatorState, event: ChallengeClosed) -> ShareChecked:
    """How a check ended, as programs tell it. state: of the same epoch."""
    trainer, verifier = (state.epoch.clients[slot].id.short for slot in (event.trainer, event.verifier))
    strikes = tuple(state.epoch.clients[slot].id.short for slot in event.strikes)
    return ShareChecked(event.epoch, event.height, trainer, verifier, event.outcome.lower(), strikes)


def _of_one_epoch(before: CoordinatorState, after: CoordinatorState) -> bool:
    """Whether the epoch is one, and was not begun again by a run that went back, or by a coordinator with an older state."""
    one = (before.instance, before.generation, before.progress.epoch) == (after.instance, after.generation, after.progress.epoch)
    return one and len(before.epoch.clients) == len(after.epoch.clients)
