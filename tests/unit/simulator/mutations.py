"""One decision of the protocol undone, each: functions that take pytest's `monkeypatch` and replace an attribute of the module
that uses it. `test_mutations` says under which faults each matters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from psyche_core.client.machine import actions as act
from psyche_core.client.machine import coordinator_updates, machine, peer_messages, scheduler
from psyche_core.client.machine.buffers import MAX_EARLY_SENDERS, EarlyMessages, PayloadBuffer
from psyche_core.client.machine.epoch import EpochNotes
from psyche_core.client.machine.replica import checkpoint_upload, contested_model, digests, missing_model, resync
from psyche_core.client.machine.replica.digests import DigestTracker
from psyche_core.client.machine.rounds import results, settled_rounds
from psyche_core.client.machine.rounds.round import RoundRecord
from psyche_core.client.machine.rounds.waiting import WaitingBudget
from psyche_core.client.machine.timeouts import Timeouts
from psyche_core.coordinator import checkpoints, history, transitions
from psyche_core.coordinator.commands import ClientsExited, Equivocation, Event, Join, WarmupWitness
from psyche_core.coordinator.lifecycle import epochs, round_timing, rounds, statements, warmup
from psyche_core.coordinator.membership import equivocation, exits, members, missed_duties
from psyche_core.coordinator.round import requeue
from psyche_core.coordinator.round import witness as votes
from psyche_core.coordinator.state import CoordinatorState, EndReason, EpochEnd, Round
from psyche_core.errors import CoordinatorError
from psyche_core.simulator import network
from psyche_core.simulator.injection import lies
from psyche_core.simulator.members import disk, keys, process
from psyche_core.simulator.members.disk import Disk
from psyche_core.types import ClientState
from psyche_core.wire import messages
from psyche_core.wire.messages import Message, Result

Patch = pytest.MonkeyPatch

Transition = tuple[CoordinatorState, tuple[Event, ...]]


def no_drain_round(patch: Patch) -> None:
    """F1: the epoch ends without a drain round, as the reference's."""

    def finish(state: CoordinatorState, now: int, *, seed: int) -> Transition:
        after, events = rounds_finish(state, now, seed=seed)
        if after.current_round is not None and after.current_round.drain and after.current_round is not state.current_round:
            trimmed = replace(after, epoch=replace(after.epoch, rounds=after.epoch.rounds[:-1]))
            return rounds._start_cooldown(trimmed, now, reason="Rounds", events=events[:-1])
        return after, events

    rounds_finish = rounds.finish_round
    patch.setattr(rounds, "finish_round", finish)
    patch.setattr(statements, "finish_round", finish)


def step_advances_on_cut_rounds(patch: Patch) -> None:
    """F2: a round nobody attested to counts as trained."""

    def start_cooldown(state: CoordinatorState, now: int, *, reason: str, events: tuple[Event, ...]) -> Transition:
        if reason == rounds.ABANDONED and state.current_round is not None and not state.current_round.drain:
            state = replace(state, progress=replace(state.progress, step=state.progress.step + 1))
        return original(state, now, reason=reason, events=events)

    original = rounds._start_cooldown
    patch.setattr(rounds, "_start_cooldown", start_cooldown)


def last_step_is_not_trained(patch: Patch) -> None:
    """F3: the run stops one step short, as the reference does."""

    def end_reason(state: CoordinatorState, finished: Round, now: int) -> EndReason | None:
        at_end = state.progress.step >= state.config.total_steps
        return EndReason.TotalSteps if at_end else original(state, finished, now)

    original = rounds._end_reason
    patch.setattr(rounds, "_end_reason", end_reason)
    patch.setattr(epochs, "finished", lambda state: state.progress.step >= state.config.total_steps)


def slots_move(patch: Patch) -> None:
    """F4: who leaves is taken out of the list, and those behind move up."""

    def exited(state: CoordinatorState, slots: Iterable[int], to: ClientState, now: int) -> Transition:
        leaving = tuple(sorted(set(slots) & set(state.healthy_slots)))
        if not leaving:
            return state, ()
        clients = tuple(client for slot, client in enumerate(state.epoch.clients) if slot not in leaving)
        state = replace(state, epoch=replace(state.epoch, clients=clients))
        return state, (ClientsExited(epoch=state.progress.epoch, slots=leaving),)

    patch.setattr(members, "exited", exited)


def quorum_of_one(patch: Patch) -> None:
    """F5: one witness is enough for everything."""
    patch.setattr(votes, "quorum", lambda elected: min(elected, 1))
    patch.setattr(rounds, "quorum", lambda elected: min(elected, 1))
    patch.setattr(statements, "quorum", lambda elected: min(elected, 1))
    patch.setattr(members, "quorum", lambda elected: min(elected, 1))


def participants_are_ignored(patch: Patch) -> None:
    """F6: a client applies whatever was announced, not what the witnesses accepted."""

    def settle(record: RoundRecord, decided: Any, state: CoordinatorState) -> None:
        original(record, decided, state)
        record.accepted = frozenset(record.verified) & frozenset(record.shares)

    original = RoundRecord.settle
    patch.setattr(RoundRecord, "settle", settle)


def the_first_result_wins(patch: Patch) -> None:
    """F7: of several results of one share, whichever came first is applied."""

    def decided_result(record: RoundRecord, slot: int) -> Any:
        known = record.candidates.get(slot, {})
        return next(iter(known.values())) if known and record.settled_by is not None else None

    patch.setattr(RoundRecord, "decided_result", decided_result)


def lost_shares_are_forgotten(patch: Patch) -> None:
    """F7: nobody remembers which shares an earlier proof counted as lost."""

    def share_judged(state: CoordinatorState, command: Equivocation, decided_result: Round) -> Transition:
        clients = tuple(replace(client, lost_rounds=0) for client in state.epoch.clients)
        forgetful = replace(state, epoch=replace(state.epoch, clients=clients))
        after, events = original(forgetful, command, decided_result)
        return (state if after is forgetful else after), events

    original = equivocation._share_decided
    patch.setattr(equivocation, "_share_decided", share_judged)


def anybody_states_for_anybody(patch: Patch) -> None:
    """F8: nobody looks whose statement it is."""
    patch.setattr(statements, "_own_slot", lambda state, sender, *, epoch, index: index)
    patch.setattr(statements, "_check_statement", lambda *_, **__: None)


def anybody_moves_the_checkpoint(patch: Patch) -> None:
    """F9: any client may say where the model is."""
    patch.setattr(checkpoints, "is_checkpointer", lambda *_, **__: True)


def the_unhealthy_are_not_swept(patch: Patch) -> None:
    """F10: rounds are dealt to everybody of the epoch, gone or not."""

    def start_round(state: CoordinatorState, now: int, *, seed: int, drain: bool = False) -> Transition:
        state, events = original(state, now, seed=seed, drain=drain)
        assert state.current_round is not None
        everybody = replace(state.current_round, slots=tuple(range(len(state.epoch.clients))))
        return replace(state, epoch=replace(state.epoch, rounds=(*state.epoch.rounds[:-1], everybody))), events

    original = rounds.start_round
    for room in (rounds, warmup):
        patch.setattr(room, "start_round", start_round)


def late_payloads_are_skipped(patch: Patch) -> None:
    """F11: a client applies what it holds and waits for nothing."""

    def apply(me: Any, notes: EpochNotes, record: RoundRecord) -> None:
        results = [record.decided_result(slot) for slot in sorted(record.accepted)]
        held = [each for each in results if isinstance(each, Result) and each.payload_hash in notes.payloads.valid]
        hashes, commitments = (tuple(getattr(result, name) for result in held) for name in ("payload_hash", "commitment"))
        own = notes.slot in record.accepted
        me.start(act.Apply(record.height, record.round.step, hashes, own, epoch=notes.number, commitments=commitments))

    patch.setattr(machine, "_apply", apply)


def nothing_is_requeued(patch: Patch) -> None:
    """F14: samples of results that were not accepted are forgotten."""
    patch.setattr(rounds, "added", lambda queue, batches: (queue, 0))


def requeued_samples_are_dealt_twice(patch: Patch) -> None:
    """F14: what is taken from the queue stays in it."""
    original = requeue.taken
    patch.setattr(rounds, "taken", lambda queue, samples: (original(queue, samples)[0], queue))


def digests_are_not_compared(patch: Patch) -> None:
    """Section 5: nobody looks at digests, so a replica gone astray stays so."""
    patch.setattr(resync, "diverged_step", lambda *_, **__: None)
    patch.setattr(digests, "diverged_step", lambda *_, **__: None)
    patch.setattr(DigestTracker, "outvoted", lambda *_, **__: False)


def results_are_applied_to_any_masters(patch: Patch) -> None:
    """Section 5: a settled round is applied whatever the masters are of."""
    original = scheduler.next_work

    def careless(state: CoordinatorState, notes: EpochNotes, *, masters_at: int | None, **more: Any) -> Any:
        record = notes.next_to_apply()
        return original(state, notes, masters_at=masters_at if record is None else record.round.step - 1, **more)

    patch.setattr(scheduler, "next_work", careless)


def a_restarted_client_trains_its_share_again(patch: Patch) -> None:
    """F7: after a restart in the middle of a round there are two signed results of one share."""

    class Forgetful(EpochNotes):
        __slots__ = ()

        def __post_init__(self) -> None:
            self.opened_at = -1
            EpochNotes.__post_init__(self)

    patch.setattr(coordinator_updates, "EpochNotes", Forgetful)
    patch.setattr(scheduler, "_signed_earlier", lambda *_: False)


def anybody_joins_with_any_key(patch: Patch) -> None:
    """A join's proof is not looked at, nor whether another member has the transport key."""

    def join(state: CoordinatorState, command: Join, now: int) -> Transition:
        try:
            return original(state, command, now)
        except CoordinatorError as error:
            if error.name not in ("InvalidProof", "TransportKeyTaken"):
                raise
        others = tuple(member for member in state.pending if member.signer != command.sender.signer)
        return exits.with_pending(state, (*others, command.sender), now), ()

    original = members.join
    patch.setattr(transitions, "join", join)


def runs_of_one_name_are_one_run(patch: Patch) -> None:
    """What is signed does not say in which run: it holds in the next run of the same name."""
    patch.setattr(keys, "EARLIER", keys.INSTANCE)


def commitments_do_not_name_the_round(patch: Patch) -> None:
    """The round's seed is in no commitment: what was signed in a forgotten round is proof in the one that took its place."""

    def commitment_hash(run: bytes, *, seed: int, **fields: Any) -> bytes:
        return original(run, seed=0, **fields)

    original = messages.commitment_hash
    for room in (results, equivocation, keys):
        patch.setattr(room, "commitment_hash", commitment_hash)


def missed_duties_do_not_count(patch: Patch) -> None:
    """A witness that never states is waited for in every round."""
    patch.setattr(missed_duties, "with_missed", lambda state, *_: state)


def late_statements_are_forgiven(patch: Patch) -> None:
    """F16: a statement forgives however late it comes."""
    patch.setattr(missed_duties, "_lateness", lambda *_: 0)


def members_wait_alone(patch: Patch) -> None:
    """A member goes on waiting for a result that nobody else waits for, and looks late."""
    patch.setattr(WaitingBudget, "should_stop_waiting", lambda *_, **__: False)


def members_gossip_once_a_second(patch: Patch) -> None:
    """Members pass on what an author kept from others only when they compare what they hold."""
    patch.setattr(network, "GOSSIP_SECONDS", 1.0)


def warmup_waits_for_everybody(patch: Patch) -> None:
    """Warmup waits its whole time for who does nothing."""
    patch.setattr(warmup, "_grace_is_over", lambda *_: False)
    patch.setattr(warmup, "_waited_for", lambda state: set(state.healthy_slots))


def who_says_that_it_lacks_the_model_is_excused(patch: Patch) -> None:
    """F17: its score stays as it is, though others had the model."""
    original = warmup._with_unready_recorded

    def record(state: CoordinatorState, *, late: Iterable[int], ready: Iterable[int]) -> CoordinatorState:
        return original(state, late=set(late).difference(state.epoch.lacking), ready=ready)

    patch.setattr(warmup, "_with_unready_recorded", record)


def one_warmup_in_time_forgives_one_that_was_not(patch: Patch) -> None:
    """F17: a member that is not ready in every other warmup is waited for in each."""
    patch.setattr(warmup, "_READY", warmup._UNREADY)


def who_came_back_in_a_round_is_waited_for(patch: Patch) -> None:
    """F16: a witness that left and returned in the round holds it up with its silence."""
    patch.setattr(round_timing, "is_accountable", lambda client, _: client.state is ClientState.Healthy)


def older_ends_are_said_as_they_are(patch: Patch) -> None:
    """F18: who lacks the model sends the digest of the end it holds, which may be that of the model itself."""
    for room in (history, warmup, missing_model, lies):
        patch.setattr(room, "held_digest", lambda digest: digest)
    journals_before_are_of_one_generation(patch)  # what going back needlessly costs, which this would hide


def journals_before_are_of_one_generation(patch: Patch) -> None:
    """F18: after the run went back to before a member's last checkpoint, its journal before that is not used."""

    def look_back(kept: Disk, state: CoordinatorState) -> None:
        if not kept._earlier or kept._earlier[0].generation == state.generation:
            original(kept, state)

    original = Disk.restore_earlier_journal
    patch.setattr(Disk, "restore_earlier_journal", look_back)


def the_run_goes_back_as_soon_as_one_lacks_the_model(patch: Patch) -> None:
    """F18: one member without the model is enough."""

    def must_go_back(state: CoordinatorState) -> bool:
        return not state.from_checkpoint and bool(set(state.epoch.lacking) & set(state.healthy_slots))

    patch.setattr(warmup, "must_go_back", must_go_back)


def going_back_is_not_said(patch: Patch) -> None:
    """F18: the run goes back in the same generation, and no event tells."""

    def went_back(state: CoordinatorState, target: EpochEnd, *, from_checkpoint: bool) -> Transition:
        after, _ = original(state, target, from_checkpoint=from_checkpoint)
        return replace(after, generation=state.generation), ()

    original = history.went_back
    for room in (history, transitions):
        patch.setattr(room, "went_back", went_back)


def journals_are_not_replayed(patch: Patch) -> None:
    """F18: a restarted member has its last checkpoint and nothing more."""
    patch.setattr(Disk, "replayed", lambda *_, **__: None)


def statements_sign_nothing(patch: Patch) -> None:
    """F18: the run goes back to the ends of epochs only, whatever step of the last rounds a disk still has."""
    for room in (history, warmup, missing_model, disk):
        patch.setattr(room, "signed_digests", lambda state: {end.step: end.digest for end in state.ends})


def requests_for_models_name_no_seed(patch: Patch) -> None:
    """F11: in a warmup after an abandoned one, the same request is not delivered again."""
    patch.setattr(resync, "ModelWanted", lambda epoch, step, seed: messages.ModelWanted(epoch, step, 0))
    patch.setattr(peer_messages, "_is_current", lambda notes, message: message.epoch == notes.number)


def steps_in_between_keep_later_samples(patch: Patch) -> None:
    """F18: where the run goes back into an epoch's last rounds, what was accepted after that step is not assigned again."""
    patch.setattr(history, "accepted_slots", lambda *_: frozenset())


def journals_end_with_their_checkpoint(patch: Patch) -> None:
    """F18: a coordinator that goes back over an epoch's end finds only journals that begin later."""
    patch.setattr(Disk, "restore_earlier_journal", lambda *_: None)


def the_history_leaves_decisions_out(patch: Patch) -> None:
    """Section 5: a proof that a restored coordinator has forgotten changes what a round with the same statements accepts."""
    patch.setattr(rounds, "history_with_decision", lambda state, *_: state.history)


def histories_are_not_compared(patch: Patch) -> None:
    """Section 5: a journal's rounds are believed, though the coordinator was restored and decided them again."""
    patch.setattr(settled_rounds, "histories", lambda _: {})


def a_first_round_that_does_not_count_changes_the_history(patch: Patch) -> None:
    """F18: the statements of an epoch's first round are about no round; where it is the last one, nothing was decided."""

    def start_cooldown(state: CoordinatorState, now: int, *, reason: str, events: tuple[Event, ...]) -> Any:
        current = state.current_round
        if current is not None and current.height == 0 and current.statements:
            state = replace(state, history=b"\1" * 32)
        return original(state, now, reason=reason, events=events)

    original = rounds._start_cooldown
    patch.setattr(rounds, "_start_cooldown", start_cooldown)


def a_stored_model_says_no_step(patch: Patch) -> None:
    """F9: a coordinator that was restored takes the model of a later step for the one with which its last epoch ended."""
    original = checkpoints.checkpoint
    patch.setattr(transitions, "checkpoint", lambda state, command: original(state, replace(command, step=None)))


def what_a_liar_stored_counts_at_once(patch: Patch) -> None:
    """F9: the run's first model is forgotten for one that nobody signed, before anybody's disk holds a later one."""
    patch.setattr(checkpoints, "NO_DIGEST", b"")
    patch.setattr(checkpoint_upload, "_accepts", lambda _, state: state.run_state in checkpoints.OPEN)


def the_run_goes_back_while_members_wait(patch: Patch) -> None:
    """F18: who joined while a warmup went on is not asked for the model that its members lack."""
    patch.setattr(warmup, "_others_may_hold_it", lambda *_: False)


def checkpoints_forget_what_decided_their_last_step(patch: Patch) -> None:
    """Section 5: a member that fetched the model goes on with it though the restored coordinator decides its step again."""
    patch.setattr(disk, "_conflicts", lambda *_: False)


def bases_of_journals_are_deleted(patch: Patch) -> None:
    """F18: of checkpoints only epoch ends and the newest are kept, so a journal outlives the model with which it begins."""
    patch.setattr(Disk, "bases", frozenset())


def a_journals_base_takes_the_place_of_a_signed_checkpoint(patch: Patch) -> None:
    """Section 5: a signed checkpoint counts again, and is set aside at once for another one with which the journal begins."""

    def base_of_history(self: Disk, state: CoordinatorState) -> tuple[int, bytes] | None:
        return (self._journal[0].step, self._journal[0].digest) if self._journal else None

    patch.setattr(Disk, "_base_of_history", base_of_history)


def bases_of_journals_forget_what_decided_them(patch: Patch) -> None:
    """Section 5: a journal's base is told by its digest alone, which is that of the step before if that one had no results."""
    patch.setattr(Disk, "_decision_at", lambda *_: None)


def only_the_present_journal_is_held(patch: Patch) -> None:
    """F18: signed steps that the journal before the last checkpoint leads to are not said in warmup."""
    patch.setattr(Disk, "_reach_of_earlier", lambda *_: range(0))


def a_contested_model_is_waited_for(patch: Patch) -> None:
    """F18: of models that members contest none is ever given up, so the run waits for its owner."""
    patch.setattr(contested_model, "_repeated", lambda *_: False)


def who_is_ready_cannot_give_up(patch: Patch) -> None:
    """F18: a slot that said that it is ready, perhaps in an earlier warmup, may not say that it gives the model up.

    Its script is of the time when members waited three seconds for the last ones to connect.
    """
    counted = warmup.reported_in_warmup

    def first_report_counts(state: CoordinatorState, command: WarmupWitness, now: int, *, seed: int) -> Transition:
        if command.index in state.epoch.ready:
            raise CoordinatorError("DuplicateWitness", f"slot {command.index} is already ready")
        return counted(state, command, now, seed=seed)

    patch.setattr(statements, "reported_in_warmup", first_report_counts)
    patch.setattr(process, "Timeouts", lambda **given: Timeouts(**{**given, "last_peers": given["peers"]}))


def few_offers_are_taken_at_once(patch: Patch) -> None:
    """Section 5: a model that nobody signed and few offer is taken after the usual wait, not after half of the warmup."""
    patch.setattr(scheduler, "waits_for_more_offers", lambda *_, **__: False)


def made_up_keys_fill_the_buffer(patch: Patch) -> None:
    """Early messages are kept in order of arrival, whoever signed them and however far ahead they are."""

    def hold(early: EarlyMessages, origin: bytes, message: Message, *, member: bool) -> None:
        if origin in early._members or len(early._members) < MAX_EARLY_SENDERS:
            early._members.setdefault(origin, []).append(message)

    patch.setattr(EarlyMessages, "add", hold)
    patch.setattr(peer_messages, "MAX_EARLY_EPOCHS", 2**32)


def equal_payloads_expire_with_the_first(patch: Patch) -> None:
    """Bytes that are announced again are kept no longer for that."""

    patch.setattr(PayloadBuffer, "holds", lambda inbox, payload_hash, *, tag: payload_hash in inbox.valid)
    patch.setattr(PayloadBuffer, "expire", lambda *_: None)
