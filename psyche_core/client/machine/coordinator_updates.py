"""Follow the coordinator: enter epochs, update rounds and how they were settled, keep and report the membership.

- The client joins once per process, which also publishes its address, and again whenever it is no longer expected.
- An epoch that can be finished is finished before the next one is entered.
- What was not settled while the state still stored it is lost; `resync` then fetches the masters.
"""

from __future__ import annotations

from dataclasses import replace

from psyche_core.client.machine import scheduler
from psyche_core.client.machine.actions import Join, Prefetch, Send, SetPeers
from psyche_core.client.machine.epoch import ENTERABLE, PLAYING, EpochNotes, epoch_key, round_tag
from psyche_core.client.machine.peer_messages import receive_early, repeat_evidence
from psyche_core.client.machine.rounds.round import RoundRecord
from psyche_core.client.machine.rounds.settled_rounds import epoch_of_rounds
from psyche_core.client.machine.state import MachineState
from psyche_core.coordinator.commands import Withdraw
from psyche_core.coordinator.history import histories
from psyche_core.coordinator.membership.missed_duties import MAX_MISSED
from psyche_core.coordinator.state import MAX_REJOINS, Client, CoordinatorState, Round
from psyche_core.telemetry import events as telemetry
from psyche_core.types import ClientState, RunState

KEPT_ROUNDS = 4
"""Rounds whose messages and payloads are kept for slow members (F11)."""

KEPT_RECORDS = 5
"""Rounds whose results are remembered: a share is challenged three rounds later, and its trainer's result before it is older."""

_ANOTHER_RUN = (
    "the coordinator hosts another run under this run's name now. If its owner meant this, start the client again to join that "
    "one; if not, ask the owner first: the old run's checkpoints and journal stay on this disk"
)
_EJECTED = "the coordinator ejected this client: it was proven to have signed two results for one share"
_STRIKES = (
    "the coordinator ejected this client: checks of its shares, or its own checks of others' shares, failed twice in this epoch"
)

_AFTER_PROOF = "Two clients with one key do this: give each its own key; it may join again in the next epoch"
_AFTER_STRIKES = (
    "A device that computes wrongly or another release does this: test the device, install the release that the run's owner "
    "names; it may join again in the next epoch"
)


def receive_state(client: MachineState, state: CoordinatorState) -> None:
    """Handle a newer state."""
    previous, client.state = client.state, state
    client.results.instance = state.instance
    client.results.with_roots = state.config.verification_percent > 0
    if previous is not None and previous.instance != state.instance:
        client.stop(_ANOTHER_RUN, success=False)
        return

    if previous is None or previous.epoch.clients is not state.epoch.clients:
        client.healthy = frozenset(state.healthy_slots)
        members = tuple([member.id for member in state.epoch.clients if member.state is not ClientState.Ejected])
        if members != client.members and client.notes is not None:
            client.notes.compare_due = True  # the size of a majority has changed
        if (members, state.epoch.seed) != (client.members, client.members_seed):
            client.members, client.members_seed = members, state.epoch.seed
            client.emit(SetPeers(members, state.epoch.seed))
    _notify_phase(client, previous, state)
    if previous is not None and _went_back(previous, state):
        # Nothing in memory matches the older state; what is on our disk is read up to its step.
        reason = other_state(previous, state)
        if client.leaving is not None:
            if client.takes_part:
                client.emit(Send(Withdraw(client.identity)))  # the older state may expect us again
            client.stop(f"left the run as asked, when {reason}", success=True)
            return

        client.stop(reason, success=False, again=True)
        return

    follow(client, state)
    report_own_membership(client, previous, state)
    repeat_evidence(client)


def _went_back(previous: CoordinatorState, state: CoordinatorState) -> bool:
    """Whether the coordinator has forgotten something, as after a restore from an older state, however far it came since.

    Within a generation a state never takes back anything about the run's progress, and a round keeps its seed, its statements and
    its void shares.
    """
    if state.generation != previous.generation:
        return state.generation < previous.generation

    known_histories, present_histories = histories(previous), histories(state)
    if any(present_histories.get(step, history) != history for step, history in known_histories.items()):
        return True  # it decided a round otherwise

    before, now = previous.progress, state.progress
    if now.epoch < before.epoch or now.step < before.step or _last_round(state) < _last_round(previous):
        return True

    other_epoch = epoch_key(state) != epoch_key(previous)
    if not other_epoch and previous.run_state is RunState.Cooldown and state.run_state in PLAYING:
        return True  # its rounds were over
    if other_epoch and state.epoch.start_step < before.step:
        return True  # it began after what we knew, and with less than that

    if other_epoch and state.epoch.start_time < previous.epoch.start_time:
        return True  # an epoch that was left is played again, perhaps under the number of the one that we are in
    if epoch_of_rounds(state) != epoch_of_rounds(previous):
        return False
    if other_epoch and not state.epoch.unplayed and not previous.epoch.unplayed:
        return True  # the number was used already: its epoch is forgotten

    known = {stored.height: stored for stored in previous.epoch.rounds}
    return any(stored.height in known and _is_another(known[stored.height], stored) for stored in state.epoch.rounds)


def _is_another(known: Round, stored: Round) -> bool:
    """Whether a round that we know is not the stored one, or the stored one lacks a statement or a proof that we know."""
    if known is stored:
        return False
    if known.seed != stored.seed or stored.statements[: len(known.statements)] != known.statements:
        return True

    return not set(known.voided).issubset(stored.voided)


def other_state(previous: CoordinatorState, state: CoordinatorState) -> str:
    """Say that the coordinator was restored from a state that does not follow the one before, and in which direction."""
    before, now = previous.progress, state.progress
    then, here = (f"epoch {known.epoch}, step {known.step}" for known in (before, now))
    if then == here:
        return f"the coordinator was restored from another state of {here}: it has forgotten what it was told last"
    if state.generation < previous.generation:
        which = "a state of before the run went back"
    elif now.epoch <= before.epoch and now.step <= before.step:
        which = "an earlier state"
    elif now.epoch >= before.epoch and now.step >= before.step:
        which = "a later state"
    else:
        which = "another state"
    return f"the coordinator was restored from {which}: it is in {here}, and was in {then}"


def _last_round(state: CoordinatorState) -> tuple[int, int, bool]:
    """The last round in a state: the number of its epoch, its height, and whether that epoch's rounds are over."""
    rounds = state.epoch.rounds
    return epoch_of_rounds(state), rounds[-1].height if rounds else -1, state.run_state not in PLAYING


def _notify_phase(client: MachineState, previous: CoordinatorState | None, state: CoordinatorState) -> None:
    height, progress = _playing_height(state), state.progress
    if state.run_state is RunState.WaitingForMembers:
        waiting, needed = len(state.pending), state.config.init_min_clients
        if previous is None or previous.run_state is not state.run_state or len(previous.pending) != waiting:
            client.notify(telemetry.PhaseChanged(state.run_state.name, progress.epoch, progress.step, waiting, needed=needed))
    elif previous is None or previous.run_state is not state.run_state or _playing_height(previous) != height:
        name, clients = state.run_state.name, len(client.healthy)
        client.notify(telemetry.PhaseChanged(name, progress.epoch, progress.step, clients, height))


def _playing_height(state: CoordinatorState) -> int | None:
    return state.epoch.rounds[-1].height if state.run_state in PLAYING else None


def follow(client: MachineState, state: CoordinatorState) -> None:
    """Enter a new epoch, handle its rounds, keep our membership."""
    if _is_new_epoch(client, state):
        _open_epoch(client, state)
    notes = client.notes
    if notes is not None and notes.slot is not None and notes.describes(state):
        if state.epoch.clients[notes.slot].state is ClientState.Ejected:
            client.stop(_ejection(state, notes.slot), success=False)
            return

        _update_rounds(client, state, notes)
    keep_membership(client, state)


def _ejection(state: CoordinatorState, slot: int) -> str:
    """Why we were ejected, what it costs us (strikes cost the epoch's pay, a proof points as well), and what helps."""
    rate = state.epoch.rates.slashing_per_client
    if state.epoch.clients[slot].standing.ejected:
        return f"{_STRIKES}; it is not paid for this epoch. {_AFTER_STRIKES}"
    if rate == 0:
        return f"{_EJECTED}; it is not paid for this epoch. {_AFTER_PROOF}"

    return f"{_EJECTED}; it is not paid for this epoch and is to lose {rate} points. {_AFTER_PROOF}"


def _is_new_epoch(client: MachineState, state: CoordinatorState) -> bool:
    """Whether the state is about an epoch to enter; also the last one of the run, whose model we may still get."""
    if client.notes is None:
        return state.run_state in ENTERABLE
    if client.notes.describes(state):
        return False

    return state.run_state in ENTERABLE or (state.run_state is RunState.Finished and client.model_ready)


def keep_membership(client: MachineState, state: CoordinatorState) -> None:
    """Join if the coordinator does not expect us, and again if it does not answer in time."""
    if state.run_state is RunState.Finished or client.leaving is not None:
        return

    if client.joined and client.pending:
        client.join_sent_at = None
    elif client.join_sent_at is None or client.now - client.join_sent_at > client.timeouts.answer:
        client.joined = True
        client.join_sent_at = client.now
        client.emit(Join())


def leave(client: MachineState) -> None:
    """Withdraw at once, so that nothing more is expected of us; our results are served until others have them."""
    if client.leaving is None:
        client.leaving = client.now
        if client.takes_part:
            client.emit(Send(Withdraw(client.identity)))
        if client.state is None:
            client.stop("left before the coordinator was heard of", success=True)


def _open_epoch(client: MachineState, state: CoordinatorState) -> None:
    old = client.notes
    if old is not None and client.work is not None:
        return  # work must be answered in the epoch in which it began
    if old is not None and old.slot is not None and not old.done and client.model_ready:
        _update_last_rounds(client, state, old)
    if old is not None and old.slot is not None and not old.done and old.decided and client.model_ready:
        blocked = scheduler.blocking_reason(state, old, masters_at=client.masters_at, now=client.now, timeouts=client.timeouts)
        if blocked is None:
            return  # the last epoch is finished first

    clients = tuple(member.id for member in state.epoch.clients)
    playing = state.current_round.height if state.current_round is not None else -1
    slot = state.slot_of(client.identity)
    notes = client.notes = EpochNotes(epoch_key(state), state.progress.epoch, clients, slot, client.now, opened_at=playing)
    notes.digests.ours = client.model_digest
    if old is None:
        # This process needs nothing of earlier epochs, and does not know what others read of it.
        client.expire(notes.tag(0))
    elif notes.number:
        # Epochs of few rounds have none that is old enough to be dropped while they are played.
        client.expire(round_tag(notes.number - 1, 0))
    receive_early(client, notes.number, None)


def _update_last_rounds(client: MachineState, state: CoordinatorState, old: EpochNotes) -> None:
    """Until an epoch's first round, the state still holds the last rounds of the epoch before: handle what we missed of them."""
    if state.epoch.unplayed and state.progress.epoch == old.number + 1 and not old.decided:
        _update_rounds(client, replace(state, run_state=RunState.Cooldown, epoch=replace(state.epoch, unplayed=False)), old)


def _update_rounds(client: MachineState, state: CoordinatorState, notes: EpochNotes) -> None:
    current = state.current_round
    if current is None:
        return

    if current.height > notes.newest:
        for playing in state.epoch.rounds:
            if playing.height > notes.newest:
                _open_round(client, notes, RoundRecord.open(state, playing, epoch=notes.number))

    over = state.run_state not in PLAYING
    for record in notes.records.values():
        if record.settled_by is None and not record.missed and (over or record.height + 2 <= current.height):
            decided, attesting = state.round_at(record.height), state.round_at(record.height + 1)
            if decided is None or (record.height < current.height and attesting is None):
                record.missed = True  # its statements and voided shares are no longer stored
            else:
                record.settle(decided, state)
                notes.compare_due = True


def _open_round(client: MachineState, notes: EpochNotes, record: RoundRecord) -> None:
    height = record.height
    record.opened_at = client.now
    notes.round_over(height - 1, client.healthy, now=client.now)
    notes.waiting.began = client.now if notes.waiting.began is None else notes.waiting.began
    notes.records[height] = record
    notes.newest = height
    client.finish_estimator.round_opened(notes.tag(height), now=client.now)
    for old in [h for h in notes.records if h < height - KEPT_RECORDS and notes.records[h].applied]:
        del notes.records[old]
    oldest = notes.next_to_apply() or record
    if height >= KEPT_ROUNDS:
        before = notes.tag(min(height - KEPT_ROUNDS, oldest.height))  # keep what we still have to apply
        notes.payloads.expire(before)
        client.expire(before)
    share = record.shares.get(notes.slot) if notes.slot is not None else None
    if share and client.model_ready and height > notes.opened_at:
        client.emit(Prefetch(share))
    receive_early(client, notes.number, height)


def report_own_membership(client: MachineState, previous: CoordinatorState | None, state: CoordinatorState) -> None:
    """Report what a newer state says about us. Decides nothing."""
    notes = client.notes
    if notes is None or not notes.describes(state) or client.leaving is not None:
        return

    if notes.slot is None:
        if client.pending and not notes.waiting_notified and state.run_state in ENTERABLE:
            notes.waiting_notified = True
            client.notify(telemetry.WaitsForEpoch(notes.number))
        return

    if previous is None or not notes.describes(previous):
        return

    was, now = previous.epoch.clients[notes.slot].state, state.epoch.clients[notes.slot]
    if was is ClientState.Healthy and now.state in (ClientState.Dropped, ClientState.Withdrawn):
        returns = state.run_state in ENTERABLE and now.rejoins < MAX_REJOINS and not notes.rejoin_refused
        client.notify(
            telemetry.Dropped(notes.number, now.exited_height, _exit_reason(state, notes, notes.slot, now), returns=returns)
        )
    elif was is not ClientState.Healthy and now.state is ClientState.Healthy:
        client.notify(telemetry.CameBack(notes.number))


def _exit_reason(state: CoordinatorState, notes: EpochNotes, slot: int, ours: Client) -> str:
    """The likely reason, see `telemetry.Dropped`."""
    if ours.state is ClientState.Withdrawn:
        return "lost"
    if slot not in state.epoch.ready:
        return "unready"
    if ours.missed >= MAX_MISSED:
        return "unstated"

    attested = notes.records.get(ours.exited_height - 2)  # the round that a health check is about
    return "late" if attested is not None and attested.own_started else "silent"
