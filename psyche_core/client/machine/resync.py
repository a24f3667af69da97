"""Seeing that our masters are the others', and getting theirs when ours cannot be used (protocol section 5).

Decided here: digests judge at an epoch's two ends and in every settled round; who is astray, or cannot be brought up to date from
what it knows, asks the members for their masters and takes no part in training until it has them. Only when that fails again and
again, or no model has a majority, the client withdraws with a sentence.
"""

from __future__ import annotations

from psyche_core.client.machine import scheduler
from psyche_core.client.machine.digests import unlike_witnesses
from psyche_core.client.machine.epoch import EpochNotes, masters_due
from psyche_core.client.machine.events import Broadcast, Load, ModelFetched, ModelFetchFailed, Send, SnapshotTaken
from psyche_core.client.machine.round import NO_DIGEST
from psyche_core.client.machine.state import Standing
from psyche_core.coordinator.commands import WarmupWitness
from psyche_core.coordinator.history import held_digest, signed_digests
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry import events as telemetry
from psyche_core.types import RunState
from psyche_core.wire.messages import ModelWanted

_NOBODY_READY = 1 / 2
_SOMEBODY_READY = 3 / 4
"""Parts of warmup_time after which we say that we cannot get the model."""


def check_masters(me: Standing, state: CoordinatorState, notes: EpochNotes) -> None:
    """Find out whether our masters can be used or brought up to date; if not, say which masters we need."""
    repair = notes.repair
    if notes.judge and not repair.astray:
        notes.judge = False
        _judge_digests(me, notes)
    if not repair.astray:
        reason = scheduler.obstacle(state, notes, masters_at=me.masters_at, now=me.now, patience=me.patience)
        if reason is None:
            if repair.reason is not None:
                repair.over()
            return

        if _look_on_disk(me, state, notes):
            return

        _lacks(me, notes, reason)
    if repair.exhausted:
        me.give_up(f"{repair.reason}, and what the others offered did not help")
        return

    due = masters_due(state)
    if repair.asks(due, me.now):
        me.do(Broadcast(ModelWanted(notes.number, due), notes.tag(max(notes.newest, 0))))
    # What could not be had while the run went on may be had at its end.
    waited = me.now - (repair.asked_at if state.run_state is RunState.Finished else repair.since)
    helpless = not repair.untried(me.now) or min(waited, me.now - repair.failed_at) > me.patience.payload
    if waited > scheduler.offers_patience(state, me.patience) and me.work is None and helpless:
        _without_offers(me, state, notes, waited=waited)


def _without_offers(me: Standing, state: CoordinatorState, notes: EpochNotes, *, waited: float) -> None:
    """Nobody gives us what we need. At an epoch's start we say what we hold instead, at the run's end nobody waits."""
    if state.run_state is RunState.Finished:
        me.stop("the run finished, and nobody was left who could give this client the final model", success=False)
    elif notes.repair.astray:
        if waited > me.patience.payload:
            me.give_up(f"{notes.repair.reason}, and no model has a majority")
    elif state.run_state is RunState.Warmup and state.from_checkpoint:
        me.model_ready, me.masters_at = False, None
        me.start(Load(state, fresh=True))
    elif state.run_state is RunState.Warmup:
        _say_what_we_hold(me, state, notes)


def _look_on_disk(me: Standing, state: CoordinatorState, notes: EpochNotes) -> bool:
    """Load the model the epoch starts with if it lies on our disk as the end of an earlier epoch; once an epoch.

    Where the run has gone back since we loaded anything we have not yet looked at all; and a journal may hold results that were
    not yet decided about when we last read it.
    """
    start = state.epoch.start_step - 1
    if notes.reloaded or me.work is not None or state.run_state is not RunState.Warmup or me.masters_at == start:
        return False
    known = any(end.step == start and end.digest == me.held.get(start) for end in state.ends)
    behind = me.journalled and (me.masters_at is None or me.masters_at < start)
    if not (known or behind) and me.loaded_generation == state.generation:
        return False

    notes.reloaded = True
    me.model_ready, me.masters_at = False, None
    me.start(Load(state))
    return True


def _say_what_we_hold(me: Standing, state: CoordinatorState, notes: EpochNotes) -> None:
    """Tell the coordinator that we cannot get the model, and which earlier signed step we have (protocol F18)."""
    if notes.slot is None or notes.slot not in me.healthy:
        return
    if notes.lacking_said is not None and me.now - notes.lacking_said <= me.patience.answer:
        return
    # Whoever has the model may still be loading it, and would be left behind; while somebody says to have it, offers may come.
    if me.now - notes.since < state.config.warmup_time * (_SOMEBODY_READY if state.epoch.ready else _NOBODY_READY):
        return

    start = state.epoch.start_step - 1
    in_memory = {} if me.masters_at is None or me.masters_at != me.digest_at else {me.masters_at: me.model_digest}
    ours = me.held | in_memory
    held = {step: digest for step, digest in signed_digests(state).items() if step < start and ours.get(step) == digest}
    newest = max(held, default=None)
    if notes.lacking_said is None:
        best = (
            "none on our disk is one that members signed" if newest is None else f"the newest one we have is after step {newest}"
        )
        me.tell(telemetry.Problem("warning", f"no member has the model after step {start}; {best}"))
    notes.lacking_said = me.now
    said = NO_DIGEST if newest is None else held_digest(held[newest])
    me.do(Send(WarmupWitness(me.identity, notes.number, notes.slot, said)))


def model_fetched(me: Standing, event: ModelFetched) -> None:
    """Our masters are the others' now."""
    notes = me.notes
    me.masters_at = me.digest_at = event.step
    me.doubtful = False
    me.model_digest = event.digest
    if notes is None:
        return

    notes.digests.ours = event.digest
    notes.digests.forget_own()
    notes.masters_replaced(event.step)
    notes.ready_sent = notes.closed = False
    notes.repair.over()
    me.tell(telemetry.Resynced(notes.number, event.step))


def changed_unasked(me: Standing, event: SnapshotTaken) -> bool:
    """Whether what we were about to offer is not what it was after the same step: bad memory. Nobody may be given that.

    Found here for nobody else would: between two epochs nothing is compared, and a joiner cannot tell which of us is right.
    """
    notes = me.notes
    unknown = notes is None or me.digest_at != event.step or event.digest == NO_DIGEST
    if notes is None or unknown or event.digest == me.model_digest:
        return False

    notes.generosity.given.discard(event.step)
    ended = notes.closed
    notes.repair.alike = notes.digests.alike(me.model_digest, ended=ended)
    notes.repair.unlike = frozenset(notes.digests.heard(ended=ended)) - notes.repair.alike
    _lacks(me, notes, "this client's model has changed by itself, which memory that fails does", astray=True)
    return True


def model_fetch_failed(me: Standing, event: ModelFetchFailed) -> None:
    """Nothing of ours has changed; that manifest may be tried again after a while."""
    me.tell(telemetry.Problem("warning", event.reason))
    if me.notes is not None:
        me.notes.repair.could_not_be_had(me.now, rest=me.patience.answer)


def masters_doubtful(me: Standing, reason: str) -> None:
    """Work on our masters failed, so nobody knows what they are now: get the others', as who is astray does.

    The attempts of an epoch are bounded as always: who fails at every one of them gives up with this reason.
    """
    me.masters_at = me.digest_at = None
    me.doubtful = True
    if me.notes is None:
        me.give_up(reason)
        return

    if me.notes.repair.taken is not None:
        me.notes.repair.could_not_be_had(me.now, rest=me.patience.answer)
        me.notes.repair.taken = None  # it may be right: it is not refused for what failed here
    _lacks(me, me.notes, reason, astray=True)


def _judge_digests(me: Standing, notes: EpochNotes) -> None:
    """Compare our replica with the others', at an epoch's ends and in each settled round."""
    for peer, theirs in notes.digests.disagreements():
        name = notes.clients[peer].short
        me.tell(telemetry.ReplicasDiffer(notes.number, notes.digests.ours.hex(), theirs.hex(), name))
    if notes.digests.outvoted(len(me.members)):
        _lacks(me, notes, "this client's model differs from that of most members", astray=True)
        return

    step = unlike_witnesses(notes.records.values())
    if step is not None:
        _lacks(me, notes, f"this client's model differs from the witnesses' at step {step}", astray=True)


def _lacks(me: Standing, notes: EpochNotes, reason: str, *, astray: bool = False) -> None:
    """Our masters cannot be used as they are."""
    if notes.repair.begin(reason, astray=astray):
        me.tell(telemetry.Problem("warning", f"{reason}; asking the other members for their model"))
        if astray:
            notes.digests.forget_own()
