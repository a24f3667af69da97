"""Following the coordinator: epochs entered, rounds seen and settled, membership kept.

Decided here: we join once per process, which also publishes our address, and again whenever we are no longer expected; an epoch
that can be finished is finished before the next one is entered; what has not been settled while it was stored is lost and makes
`recovery` fetch the masters.
"""

from __future__ import annotations

import math
from dataclasses import replace

from psyche_core.client.machine import scheduler
from psyche_core.client.machine.epoch import ENTERABLE, PLAYING, EpochNotes, epoch_key
from psyche_core.client.machine.events import Expire, Join, Prefetch, Send, SetPeers
from psyche_core.client.machine.peer_messages import hear_early, repeat_evidence
from psyche_core.client.machine.round import RoundRecord
from psyche_core.client.machine.state import Standing
from psyche_core.coordinator.commands import Withdraw
from psyche_core.coordinator.state import CoordinatorState, Round
from psyche_core.telemetry import events as telemetry
from psyche_core.types import ClientState, RunState

ENDS_WITH_ITS_NUMBER = (*PLAYING, RunState.Cooldown)
"""Phases of an epoch after which its number is used up: another epoch with it shows that this one is forgotten."""

KEPT_ROUNDS = 4
"""Rounds whose messages and payloads are kept for laggards (F11)."""

_ANOTHER_RUN = "the coordinator hosts another run under this run's name now; start the client again to join that one"
_EJECTED = "the coordinator ejected this client: it was proven to have signed two results for one share"


def see_state(me: Standing, state: CoordinatorState) -> None:
    """Take in a newer state."""
    previous, me.state = me.state, state
    me.results.instance = state.instance
    if previous is not None and previous.instance != state.instance:
        me.stop(_ANOTHER_RUN, success=False)
        return

    if previous is None or previous.epoch.clients is not state.epoch.clients:
        me.healthy = frozenset(state.healthy_slots)
        members = tuple([client.id for client in state.epoch.clients if client.state is not ClientState.Ejected])
        if members != me.members:
            me.members = members
            if me.notes is not None:
                me.notes.judge = True  # how many are a majority has changed
            me.do(SetPeers(members))
    _tell_phase(me, previous, state)
    if previous is not None and (_went_back(previous, state) or _plays_anew(me.notes, previous, state)):
        # Nothing that we hold in memory fits what it knows: what is on our disk is read up to there.
        steps = f"from step {previous.progress.step} to step {state.progress.step}"
        me.stop(f"the coordinator went back {steps}: it was restored from an older state", success=False, again=True)
        return

    follow(me, state)
    repeat_evidence(me)


def _went_back(previous: CoordinatorState, state: CoordinatorState) -> bool:
    """Whether the coordinator knows less than it did, like one restored from an older state."""
    if state.generation != previous.generation:
        return state.generation < previous.generation

    return _place(state) < _place(previous)


def _plays_anew(notes: EpochNotes | None, previous: CoordinatorState, state: CoordinatorState) -> bool:
    """Whether rounds that we know are others in this state: it went back, and has caught up before we saw it."""
    if state.generation != previous.generation or notes is None:
        return False
    if notes.describes(state):
        known = notes.records
        return any(known[other.height].round.seed != other.seed for other in _rounds(state) if other.height in known)

    played = previous.current_round is not None and epoch_key(previous) != epoch_key(state)
    return played and previous.run_state in ENDS_WITH_ITS_NUMBER and state.progress.epoch == previous.progress.epoch


def _rounds(state: CoordinatorState) -> tuple[Round, ...]:
    return () if state.epoch.unplayed else state.epoch.rounds


def _place(state: CoordinatorState) -> tuple[int, int, float]:
    """Where a state stands within its generation: grows with every epoch, step and round."""
    if state.run_state is RunState.Cooldown:
        return state.progress.epoch, state.progress.step, math.inf

    height = _playing_height(state)
    return state.progress.epoch, state.progress.step, -1 if height is None else height


def _tell_phase(me: Standing, previous: CoordinatorState | None, state: CoordinatorState) -> None:
    height = _playing_height(state)
    if previous is None or previous.run_state is not state.run_state or _playing_height(previous) != height:
        step, clients = state.progress.step, len(me.healthy)
        me.tell(telemetry.PhaseChanged(state.run_state.name, state.progress.epoch, step, clients, height))


def _playing_height(state: CoordinatorState) -> int | None:
    return state.epoch.rounds[-1].height if state.run_state in PLAYING else None


def follow(me: Standing, state: CoordinatorState) -> None:
    """Enter a new epoch, see its rounds, keep our membership."""
    if _is_elsewhere(me, state):
        _open_epoch(me, state)
    notes = me.notes
    if notes is not None and notes.slot is not None and notes.describes(state):
        if state.epoch.clients[notes.slot].state is ClientState.Ejected:
            me.stop(_EJECTED, success=False)
            return

        _see_rounds(me, state, notes)
    keep_membership(me, state)


def _is_elsewhere(me: Standing, state: CoordinatorState) -> bool:
    """Whether the state is about an epoch to enter; also the last one of the run, whose model we may still get."""
    if me.notes is None:
        return state.run_state in ENTERABLE
    if me.notes.describes(state):
        return False

    return state.run_state in ENTERABLE or (state.run_state is RunState.Finished and me.model_ready)


def keep_membership(me: Standing, state: CoordinatorState) -> None:
    """Join where the coordinator does not expect us, with patience for its answer."""
    if state.run_state is RunState.Finished or me.leaving is not None:
        return

    if me.introduced and me.pending:
        me.join_asked = None
    elif me.join_asked is None or me.now - me.join_asked > me.patience.answer:
        me.introduced = True
        me.join_asked = me.now
        me.do(Join())


def leave(me: Standing) -> None:
    """Withdraw at once, so that nothing more is expected of us; what we gave is served until others have it."""
    if me.leaving is None:
        me.leaving = me.now
        if me.takes_part:
            me.do(Send(Withdraw(me.identity)))
        if me.state is None:
            me.stop("left before the coordinator was heard of", success=True)


def _open_epoch(me: Standing, state: CoordinatorState) -> None:
    old = me.notes
    if old is not None and me.work is not None:
        return  # work is answered in the epoch it was begun in
    if old is not None and old.slot is not None and not old.done and me.model_ready:
        _see_how_it_ended(me, state, old)
    if old is not None and old.slot is not None and not old.done and old.decided and me.model_ready:
        blocked = scheduler.obstacle(state, old, masters_at=me.masters_at, now=me.now, patience=me.patience)
        if blocked is None:
            return  # the last epoch is finished first

    clients = tuple(client.id for client in state.epoch.clients)
    playing = state.current_round.height if state.current_round is not None else -1
    slot = state.slot_of(me.identity)
    notes = me.notes = EpochNotes(epoch_key(state), state.progress.epoch, clients, slot, me.now, opened_at=playing)
    notes.digests.ours = me.model_digest
    hear_early(me, notes.number, None)


def _see_how_it_ended(me: Standing, state: CoordinatorState, old: EpochNotes) -> None:
    """Until the first round of an epoch the state still holds the last rounds of the epoch before: what we missed of them."""
    if state.epoch.unplayed and state.progress.epoch == old.number + 1 and not old.decided:
        _see_rounds(me, replace(state, run_state=RunState.Cooldown, epoch=replace(state.epoch, unplayed=False)), old)


def _see_rounds(me: Standing, state: CoordinatorState, notes: EpochNotes) -> None:
    current = state.current_round
    if current is None:
        return

    if current.height > notes.newest:
        for playing in state.epoch.rounds:
            if playing.height > notes.newest:
                _open_round(me, notes, RoundRecord.open(state, playing, epoch=notes.number))

    over = state.run_state not in PLAYING
    for record in notes.records.values():
        if record.settled_by is None and not record.lost and (over or record.height + 2 <= current.height):
            decided, attesting = state.round_at(record.height), state.round_at(record.height + 1)
            if decided is None or (record.height < current.height and attesting is None):
                record.lost = True  # what was attested to, or which shares were voided, is no longer stored
            else:
                record.settle(decided, state)
                notes.judge = True


def _open_round(me: Standing, notes: EpochNotes, record: RoundRecord) -> None:
    height = record.height
    record.opened_at = me.now
    notes.round_over(height - 1, me.healthy, now=me.now)
    notes.waiting.began = me.now if notes.waiting.began is None else notes.waiting.began
    notes.records[height] = record
    notes.newest = height
    me.pace.round_opened(notes.tag(height), now=me.now)
    for old in [h for h in notes.records if h < height - KEPT_ROUNDS and notes.records[h].applied]:
        del notes.records[old]
    oldest = notes.next_to_apply() or record
    if height >= KEPT_ROUNDS:
        before = notes.tag(min(height - KEPT_ROUNDS, oldest.height))  # what we have yet to apply stays
        notes.inbox.expire(before)
        me.do(Expire(before))
    share = record.shares.get(notes.slot) if notes.slot is not None else None
    if share and me.model_ready and height > notes.opened_at:
        me.do(Prefetch(share))
    hear_early(me, notes.number, height)
