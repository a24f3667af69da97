"""Warmup: members load the epoch's model and report when they have it; then the first round starts.

Warmup does not wait for slow members without limit (F17). When init_min_clients members are ready, the others get as much time
again as these needed, at least a quarter of warmup_time. Warmup does not wait for a signer that was not ready twice in a row
or twice in three warmups.
Clients that are not ready when the first round starts are dropped before it (F10) and may return like any dropped slot. An epoch
that is abandoned in warmup pays nobody and uses no step. If a quorum of the members that report cannot get the model, the run
goes back (F18). Where members joined in the meantime, the warmup begins again with them instead, at most twice in a row; where
some that are waited for said nothing, once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from psyche_core.coordinator.commands import EpochEnded, Event, Outcome, WarmupWitness
from psyche_core.coordinator.history import held_digest, must_go_back, signed_digests, without_model
from psyche_core.coordinator.lifecycle.rounds import start_round
from psyche_core.coordinator.membership.exits import exited
from psyche_core.coordinator.phases import due, wait_for_members
from psyche_core.coordinator.state import (
    MAX_REPEATED_WARMUPS,
    MAX_UNREADY,
    NO_DIGEST,
    UNREADY_LIMIT,
    CoordinatorState,
    Unready,
)
from psyche_core.errors import CoordinatorError
from psyche_core.types import ClientState

_UNREADY = 2
"""Added to a signer's score for a warmup in which it was not ready."""

_READY = 1
"""Taken off for one in which it was ready."""

_MOST_UNREADY = 6
"""Upper limit of the score: after four warmups in which it was ready, a signer is waited for again."""


def tick_warmup(state: CoordinatorState, now: int, *, seed: int) -> Outcome:
    """Start the first round, go back, or abandon the epoch if that is due at `now` (unix seconds)."""
    outcome = _warmup_outcome(state, now, seed=seed)
    if outcome is not None:
        return outcome

    timed_out = due(state.since, now, state.config.warmup_time)
    if not timed_out and len(state.healthy_slots) >= state.config.min_clients:
        return state, ()

    events: tuple[Event, ...] = ()
    if timed_out:
        state, events = _unready_dropped(state, now, excused=state.epoch.lacking)
    return wait_for_members(state, now), (*events, EpochEnded(epoch=state.progress.epoch, success=False))


def reported_in_warmup(state: CoordinatorState, command: WarmupWitness, now: int, *, seed: int) -> Outcome:
    """Count a healthy slot as ready, or as one that lacks the model. End the warmup if no other slot is waited for.

    The newest report of a slot counts. A slot that is ready may still report that it gives the model up (section 5): that it is
    ready may be what it said in an earlier warmup of this epoch, late.

    Raises CoordinatorError: DuplicateWitness, or InvalidWitness if its model is not the one that the epoch starts with.
    """
    slot, digest = command.index, command.model_digest
    epoch = state.epoch
    held = _step_of(state, digest)
    if digest == NO_DIGEST or held is not None:
        held_step = max(epoch.held_step, held or 0)
        if slot in epoch.lacking and slot not in epoch.ready and held_step == epoch.held_step:
            raise CoordinatorError("DuplicateWitness", f"slot {slot} has already said what it holds")
        ready = tuple(other for other in epoch.ready if other != slot)
        epoch = replace(epoch, ready=ready, lacking=tuple(sorted({*epoch.lacking, slot})), held_step=held_step)
    elif slot in epoch.ready:
        raise CoordinatorError("DuplicateWitness", f"slot {slot} is already ready")
    else:
        _check_model(state, slot, digest)
        ready = tuple(sorted({*epoch.ready, slot}))
        lacking = tuple(other for other in epoch.lacking if other != slot)
        epoch = replace(epoch, ready=ready, lacking=lacking)
    state = _with_ready_since(replace(state, epoch=epoch), now)
    return _warmup_outcome(state, now, seed=seed) or (state, ())


def _step_of(state: CoordinatorState, held: bytes) -> int | None:
    """Return the newest signed step before the epoch's start that matches `held` (see `held_digest`), or None."""
    steps = (step for step, digest in signed_digests(state).items() if held_digest(digest) == held)
    return max((step for step in steps if step < state.epoch.start_step - 1), default=None)


def _check_model(state: CoordinatorState, slot: int, digest: bytes) -> None:
    """Raise CoordinatorError (InvalidWitness) if the epoch's first model is signed and `digest` is another one."""
    start = state.epoch.start_step - 1
    expected = next((end.digest for end in state.ends if end.step == start), None)
    if expected is not None and digest != expected:
        message = f"the epoch starts with the model {expected[:4].hex()} after step {start}, slot {slot} has {digest[:4].hex()}"
        raise CoordinatorError("InvalidWitness", message)


def check_returning_model(state: CoordinatorState, command: WarmupWitness) -> None:
    """Raise CoordinatorError (InvalidWitness) if a slot wants to return in warmup without the model the epoch starts with."""
    if command.model_digest == NO_DIGEST or _step_of(state, command.model_digest) is not None:
        message = f"slot {command.index} comes back with the model or not at all; get it from the other members first"
        raise CoordinatorError("InvalidWitness", message)

    _check_model(state, command.index, command.model_digest)


def returned_in_warmup(state: CoordinatorState, now: int, *, seed: int) -> Outcome:
    """End the warmup if that is possible now that another slot is healthy and ready."""
    state = _with_ready_since(state, now)
    return _warmup_outcome(state, now, seed=seed) or (state, ())


def _with_ready_since(state: CoordinatorState, now: int) -> CoordinatorState:
    enough = len(_ready(state)) >= state.config.init_min_clients
    if state.epoch.ready_since is not None or not enough:
        return state

    return replace(state, epoch=replace(state.epoch, ready_since=now))


def _warmup_outcome(state: CoordinatorState, now: int, *, seed: int) -> Outcome | None:
    """Return the outcome if the run goes back or the first round starts, or None if warmup continues."""
    timed_out = due(state.since, now, state.config.warmup_time)
    ready, waited = _ready(state), _waited_for(state)
    # As long as one member has the model, the others may still get it from that member.
    all_reported = not ready and waited <= set(state.epoch.lacking)
    if (timed_out or all_reported) and must_go_back(state):
        silent = waited - ready - set(state.epoch.lacking)
        return _repeated(state, now) if _others_may_hold_it(state, silent) else without_model(state, now)

    enough = len(ready) >= state.config.min_clients
    if not enough or not (timed_out or waited <= ready or _grace_is_over(state, now)):
        return None

    state, events = _unready_dropped(state, now)
    state, started = start_round(state, now, seed=seed)
    return state, (*events, *started)


def _others_may_hold_it(state: CoordinatorState, silent: Collection[int]) -> bool:
    """Whether somebody may hold what these members lack and has not said so, and the warmup may begin again for that.

    Members that are pending and take no part joined after it began; each healthy member is pending, too. The limit is for
    strangers who join in each warmup and hold nothing. silent: healthy slots that are waited for and reported nothing, as after
    a cut network, when what they say may come just after the warmup is over. They get one more.
    """
    repeats = state.epoch.repeats
    return (len(state.pending) > len(state.healthy_slots) and repeats < MAX_REPEATED_WARMUPS) or (bool(silent) and repeats == 0)


def _repeated(state: CoordinatorState, now: int) -> Outcome:
    """Abandon the warmup, so that the next one has all members that are here now."""
    state = replace(state, epoch=replace(state.epoch, repeats=state.epoch.repeats + 1))
    return wait_for_members(state, now), (EpochEnded(epoch=state.progress.epoch, success=False),)


def _ready(state: CoordinatorState) -> set[int]:
    return set(state.healthy_slots) & set(state.epoch.ready)


def _waited_for(state: CoordinatorState) -> set[int]:
    """Return the healthy slots without those whose signer was not ready too often."""
    not_waited_for = {entry.signer for entry in state.unready if entry.score >= UNREADY_LIMIT}
    return {slot for slot in state.healthy_slots if state.epoch.clients[slot].id.signer not in not_waited_for}


def _grace_is_over(state: CoordinatorState, now: int) -> bool:
    """Whether the extra time is over that slow members get after enough others are ready."""
    since = state.epoch.ready_since
    return since is not None and due(since, now, max(since - state.since, state.config.warmup_time // 4))


def _unready_dropped(
    state: CoordinatorState, now: int, *, excused: Collection[int] = ()
) -> tuple[CoordinatorState, tuple[Event, ...]]:
    """Drop the healthy slots that are not ready, and store their signers for the next warmups.

    excused: slots whose signers are not stored. Where nobody could begin, a slot that said that it lacks the model may be right.
    Where others had it, it was late like any other: else it would hold up each warmup with these words.
    """
    ready = _ready(state)
    late = set(state.healthy_slots) - ready
    state = _with_unready_recorded(state, late=late.difference(excused), ready=ready)
    return exited(state, late, ClientState.Dropped, now)


def _with_unready_recorded(state: CoordinatorState, *, late: Iterable[int], ready: Iterable[int]) -> CoordinatorState:
    clients = state.epoch.clients
    late_signers = [clients[slot].id.signer for slot in sorted(late)]
    punctual = {clients[slot].id.signer for slot in ready}
    scores = {entry.signer: entry.score for entry in state.unready}
    better = (replace(entry, score=entry.score - _READY) if entry.signer in punctual else entry for entry in state.unready)
    kept = [entry for entry in better if entry.score > 0 and entry.signer not in late_signers]
    noted = [Unready(signer, min(scores.get(signer, 0) + _UNREADY, _MOST_UNREADY)) for signer in late_signers]
    unready = tuple([*kept, *noted][-MAX_UNREADY:])
    return state if unready == state.unready else replace(state, unready=unready)
