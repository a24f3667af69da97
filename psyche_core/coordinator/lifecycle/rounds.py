"""Rounds: started, finished and settled, and how an epoch's rounds end.

Samples are taken when a round starts (requeued first, F14) and settled when the next round's statements have attested to it. The
step advances when a trained round finishes (F2). Every epoch normally ends with one drain round (F1). There is one exception: if
no healthy client is left or nobody sent a statement, the epoch ends at once. Then no result of the round just played can be
accepted, so it does not count as a trained round: its samples return to the queue and the step does not advance.
"""

from __future__ import annotations

from dataclasses import replace

from psyche_core.coordinator.commands import CooldownStarted, Event, Outcome, RoundSettled, RoundStarted
from psyche_core.coordinator.history import history_with_decision
from psyche_core.coordinator.lifecycle.challenges import challenges_advanced, recomputing_slots, with_challenges_drawn
from psyche_core.coordinator.lifecycle.round_timing import training_time_is_over, witness_time_is_over
from psyche_core.coordinator.membership.missed_duties import (
    dropped_for_missing,
    silent_witnesses,
    split_vote_trainers,
    with_missed_duties,
)
from psyche_core.coordinator.phases import active_round, due, entered
from psyche_core.coordinator.round.assignment import shares, unaccepted
from psyche_core.coordinator.round.batch_size import batch_size
from psyche_core.coordinator.round.committee import witness_slots
from psyche_core.coordinator.round.requeue import added, merged, taken
from psyche_core.coordinator.round.witness import accepted_slots, quorum
from psyche_core.coordinator.state import (
    STORED_ROUNDS,
    CoordinatorState,
    EndReason,
    Round,
)
from psyche_core.types import BatchId, RunState

ABANDONED = "Abandoned"


def start_round(state: CoordinatorState, now: int, *, seed: int, drain: bool = False) -> Outcome:
    """Begin a round with the slots that are healthy now (F10).

    now: unix seconds. seed: u64 for the elections and the assignment. drain: True for the drain round, which gets no samples, and
    in which no challenge is drawn.
    """
    events: tuple[Event, ...] = ()
    batches: tuple[BatchId, ...] = ()
    if not drain:
        state, batches = _with_samples_taken(state)
    last = state.current_round
    height = 0 if last is None else last.height + 1
    if not drain:
        state, events = with_challenges_drawn(state, height=height, seed=seed)
    started = Round(
        height=height,
        step=state.progress.step,
        seed=seed,
        slots=state.healthy_slots,
        batches=batches,
        drain=drain,
        history=state.history,
        recomputing=recomputing_slots(state),
    )
    rounds = (started,) if last is None else (*state.epoch.rounds, started)[-STORED_ROUNDS:]
    epoch = replace(state.epoch, rounds=rounds, unplayed=False, repeats=0)
    state = replace(entered(state, RunState.RoundTrain, now), epoch=epoch)
    event = RoundStarted(epoch=state.progress.epoch, height=started.height, step=started.step, drain=drain)
    return state, (*events, event)


def _with_samples_taken(state: CoordinatorState) -> tuple[CoordinatorState, tuple[BatchId, ...]]:
    """Take the samples of a round: first from the queue, then fresh ones."""
    first = state.progress.data_index
    wanted = batch_size(
        first * state.model.LLM.max_seq_len,
        start=state.config.global_batch_size_start,
        end=state.config.global_batch_size_end,
        warmup_tokens=state.config.global_batch_size_warmup_tokens,
    )
    again, queue = taken(state.requeue, wanted)
    fresh = wanted - sum(len(batch) for batch in again)
    batches = merged((*again, BatchId(first, first + fresh - 1))) if fresh else again
    progress = replace(state.progress, data_index=first + fresh)
    return replace(state, requeue=queue, progress=progress), batches


def tick_round(state: CoordinatorState, now: int, *, seed: int) -> Outcome:
    """Do what is due at `now` (unix seconds) in RoundTrain or RoundWitness."""
    if state.run_state is RunState.RoundTrain:
        if not training_time_is_over(state, now):
            return state, ()
        state = entered(state, RunState.RoundWitness, now)

    return finish_round(state, now, seed=seed) if witness_time_is_over(state, now) else (state, ())


def finish_round(state: CoordinatorState, now: int, *, seed: int) -> Outcome:
    """End a round's witness phase: settle the previous round, then start the next round, the drain round or the cooldown."""
    current = active_round(state)
    before = state.round_at(current.height - 1)
    silent = silent_witnesses(state, current)
    state = with_missed_duties(state, silent)
    state, events = _settled(state, before, unpaid=silent) if before is not None else (state, ())
    if before is not None:
        state = with_missed_duties(state, split_vote_trainers(state, before))
    state, judged = challenges_advanced(state, current, now, seed=seed)
    state, dropped = dropped_for_missing(state, now)
    events = (*events, *judged, *dropped)
    if not state.healthy_slots or not current.statements:
        state, cut = (state, ()) if current.drain else _settled(state, current)
        if before is None:
            state = replace(state, history=current.history)  # its statements are about no round, so nothing was decided
        return _start_cooldown(state, now, reason=ABANDONED, events=(*events, *cut))

    if current.drain:
        ending = state.epoch.ending
        return _start_cooldown(state, now, reason=ABANDONED if ending is None else ending.name, events=events)

    state = replace(state, progress=replace(state.progress, step=state.progress.step + 1))
    reason = _end_reason(state, current, now)
    if reason is not None:
        state = replace(state, epoch=replace(state.epoch, ending=reason))
    state, started = start_round(state, now, seed=seed, drain=reason is not None)
    return state, (*events, *started)


def _settled(state: CoordinatorState, decided: Round, *, unpaid: frozenset[int] = frozenset()) -> Outcome:
    """Count the accepted results of round `decided` for their clients (F12) and put the other samples back in the queue (F14).

    The decision enters the run's history, unless no round attested to this one: then the round does not count.
    unpaid: slots that missed their duty as witnesses of this round. Their results are applied, but not counted for them (F16).
    """
    accepted = accepted_slots(state, decided)
    queue, lost = added(state.requeue, unaccepted(state, decided, accepted))
    clients = tuple(
        replace(client, accepted_rounds=client.accepted_rounds + 1) if slot in accepted and slot not in unpaid else client
        for slot, client in enumerate(state.epoch.clients)
    )
    event = RoundSettled(
        epoch=state.progress.epoch,
        height=decided.height,
        step=decided.step,
        accepted=tuple(sorted(accepted)),
        refused=tuple(sorted(shares(state, decided).keys() - accepted)),
    )
    epoch = replace(state.epoch, clients=clients)
    counts = state.round_at(decided.height + 1) is not None
    history = history_with_decision(state, decided, accepted) if counts else state.history
    return replace(state, epoch=epoch, requeue=queue, lost_samples=state.lost_samples + lost, history=history), (event,)


def _end_reason(state: CoordinatorState, finished: Round, now: int) -> EndReason | None:
    """Return why the epoch must end after this trained round, or None if it continues."""
    config = state.config
    rounds = config.rounds_per_epoch
    met = {
        EndReason.Pause: state.pending_pause,
        EndReason.TotalSteps: state.progress.step > config.total_steps,
        EndReason.EpochTime: due(state.epoch.start_time, now, config.epoch_time),
        EndReason.Rounds: 0 < rounds <= finished.height + 1,
        EndReason.TooFewClients: len(state.healthy_slots) < config.min_clients,
        EndReason.MissedQuorum: len(finished.statements) < quorum(len(witness_slots(state, finished))),
    }
    return next((reason for reason, is_met in met.items() if is_met), None)


def _start_cooldown(state: CoordinatorState, now: int, *, reason: str, events: tuple[Event, ...]) -> Outcome:
    """Enter the cooldown. Rounds and statements stay stored, because clients still need them to apply the last trained round.

    Challenges that are open end without a verdict.
    """
    state = replace(state, epoch=replace(state.epoch, challenges=())) if state.epoch.challenges else state
    started = CooldownStarted(epoch=state.progress.epoch, reason=reason)
    return entered(state, RunState.Cooldown, now), (*events, started)
