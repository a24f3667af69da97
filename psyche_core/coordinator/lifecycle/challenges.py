"""Challenges of shares: drawn and advanced when a round begins, and what their verdicts change (protocol section 7).

`psyche_core.verification` decides. This module gives it what the state stores, and stores what it returns: a challenge is an
`OpenChallenge` of the epoch, the standing of a member is in its client. A round names the slots that recompute in it. Without
open challenges and with verification_percent = 0 nothing here changes anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache

from psyche_core.coordinator.commands import ChallengeClosed, ChallengesDrawn, Event, Outcome, VerifierCommit
from psyche_core.coordinator.membership.exits import ejected, share_voided
from psyche_core.coordinator.membership.missed_duties import with_missed_duties
from psyche_core.coordinator.phases import active_round
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.round.committee import CACHE_SIZE, witness_slots
from psyche_core.coordinator.round.requeue import added
from psyche_core.coordinator.round.witness import accepted_slots, quorum
from psyche_core.coordinator.state import MAX_CHALLENGED_INTERVALS, CoordinatorState, OpenChallenge, Root, Round
from psyche_core.errors import CoordinatorError, WireError
from psyche_core.types import BatchId, ClientState, RunState
from psyche_core.verification.challenge import NO_SEED, Challenge, Committed, Complained, Stage, advance, refusal
from psyche_core.verification.drawing import Drawn
from psyche_core.verification.epoch import DRAWN_AFTER, Closed, EpochVerification, NewRound, advanced, with_drawn
from psyche_core.verification.words import Word, decode_words

_SEED = b"psyche/verification-seed/1"
_OPENED = (Stage.REVEAL, Stage.TIE_REVEAL)


@lru_cache(maxsize=CACHE_SIZE)
def drawing_seed(seed: int) -> bytes:
    """Return the 32 bytes from which a round draws challenges and chunks. seed: u64, of the round."""
    return hashlib.sha256(_SEED + seed.to_bytes(8, "little")).digest()


def verification_of(state: CoordinatorState) -> EpochVerification:
    """Return the open challenges and standings that the state stores."""
    return EpochVerification(
        percent=state.config.verification_percent,
        standings=tuple(client.standing for client in state.epoch.clients),
        open=tuple(challenge_of(state, one) for one in state.epoch.challenges),
    )


def challenge_of(state: CoordinatorState, stored: OpenChallenge) -> Challenge:
    """Return a stored challenge as `psyche_core.verification` has it. Its chunks are drawn from the round of its stage."""
    began = state.round_at(stored.since) if stored.stage in _OPENED else None
    return Challenge(
        height=stored.height,
        drawn=Drawn(stored.trainer, stored.verifier),
        since=stored.since,
        stage=stored.stage,
        roots=tuple((root.slot, root.commitment) for root in stored.roots),
        complained=stored.complained,
        seed=NO_SEED if began is None else drawing_seed(began.seed),
        judges=stored.judges,
        missed=frozenset(stored.missed),
    )


def words_due(state: CoordinatorState) -> tuple[tuple[Challenge, int], ...]:
    """Return the words that a statement of the current round has, in order: about a challenge and one of its judges each."""
    current = state.current_round
    if current is None or not state.epoch.challenges:
        return ()

    return verification_of(state).due(current.height)


def words_problem(state: CoordinatorState, words: bytes) -> str | None:
    """Return why a statement of the current round cannot have these words, in one sentence; None if it can."""
    try:
        decode_words(words, count=len(words_due(state)))
    except WireError as error:
        return str(error)

    return None


def verifier_commit(state: CoordinatorState, command: VerifierCommit) -> CoordinatorState:
    """Store a commitment or a complaint. Raises CoordinatorError (Halted, InvalidRunState, NoActiveRound, InvalidCommit)."""
    if state.run_state.halted:
        raise CoordinatorError("Halted", f"the run is {state.run_state.name}")
    if state.run_state not in (RunState.RoundTrain, RunState.RoundWitness):
        raise CoordinatorError("InvalidRunState", f"shares are recomputed while rounds are played, not in {state.run_state.name}")

    current = active_round(state)
    problem = _sender_problem(state, command, current)
    if problem is not None:
        raise CoordinatorError("InvalidCommit", problem)

    place = (command.height, command.trainer)
    stored = next((one for one in state.epoch.challenges if (one.height, one.trainer) == place), None)
    if stored is None:
        message = f"the share of slot {command.trainer} of round {command.height} is not challenged (any more)"
        raise CoordinatorError("InvalidCommit", message)

    slot = state.slot_of(command.sender)
    assert slot is not None  # `_sender_problem` has looked
    event = Complained(slot) if command.commitment is None else Committed(slot, command.commitment)
    challenge = challenge_of(state, stored)
    problem = refusal(challenge, event)
    if problem is not None:
        raise CoordinatorError("InvalidCommit", problem)

    changed = _stored(advance(challenge, event), stored.share)
    challenges = tuple(changed if one is stored else one for one in state.epoch.challenges)
    return replace(state, epoch=replace(state.epoch, challenges=challenges))


def _sender_problem(state: CoordinatorState, command: VerifierCommit, current: Round) -> str | None:
    slot = state.slot_of(command.sender)
    if slot is None or state.epoch.clients[slot].state is not ClientState.Healthy:
        return f"{command.sender} is not a healthy member of this epoch"
    if command.epoch != state.progress.epoch:
        return f"this is epoch {state.progress.epoch}, the commitment is about epoch {command.epoch}"
    if command.seed != current.seed:
        return f"the commitment belongs to another round than {current.height}, or to a forgotten one"
    return None


def challenges_advanced(state: CoordinatorState, ended: Round, now: int, *, seed: int) -> Outcome:
    """Advance the challenges once round `ended` is over, and do what their verdicts say.

    seed: u64, of the round that begins. now: unix seconds. Samples of a convicted share go back to the queue, though everybody
    has applied its result: they are trained again. Who did its part is paid as for an accepted share. Who gets a second strike
    is ejected, and its share of the ended round, which is not decided, is void. A duty missed by who judges counts like that of
    a witness (F16).
    """
    if not state.epoch.challenges:
        return state, ()

    verification, closed = advanced(verification_of(state), _new_round(state, ended, seed=seed))
    share_of = {(one.height, one.trainer): one.share for one in state.epoch.challenges}
    events: list[Event] = []
    missed: list[int] = []
    again: dict[int, list[BatchId]] = {}
    for one in closed:
        missed += one.verdict.missed
        share = share_of[one.challenge.height, one.challenge.drawn.trainer]
        if one.verdict.requeue:
            again.setdefault(one.challenge.height, []).extend(share)
        state, event = _judged(state, one, requeued=one.verdict.requeue and bool(share))
        events.append(event)
    for samples in again.values():  # those of a round together: a queue that is full loses as little as it can
        queue, lost = added(state.requeue, samples)
        state = replace(state, requeue=queue, lost_samples=state.lost_samples + lost)
    clients = tuple(
        replace(client, standing=standing)
        for client, standing in zip(state.epoch.clients, verification.standings, strict=True)
    )  # fmt: skip
    challenges = tuple(_stored(one, share_of[one.height, one.drawn.trainer]) for one in verification.open)
    state = replace(state, epoch=replace(state.epoch, clients=clients, challenges=challenges))
    for slot in sorted(missed):
        if state.epoch.clients[slot].state is ClientState.Healthy:
            state = with_missed_duties(state, frozenset({slot}))
    for slot, client in enumerate(clients):
        if client.standing.ejected and client.state is not ClientState.Ejected:
            state, left = _ejected_for_strikes(state, slot, ended, now)
            events += left
    return state, tuple(events)


def _judged(state: CoordinatorState, closed: Closed, *, requeued: bool) -> tuple[CoordinatorState, ChallengeClosed]:
    """Return the state with the verdict's payments, and the event. requeued: whether the share's samples are trained again.

    A share whose samples are trained again does not count for its trainer any more.
    """
    challenge, verdict = closed.challenge, closed.verdict
    clients = list(state.epoch.clients)
    for slot in verdict.paid:
        clients[slot] = replace(clients[slot], accepted_rounds=clients[slot].accepted_rounds + 1)
    if requeued:
        trainer = clients[challenge.drawn.trainer]
        clients[challenge.drawn.trainer] = replace(trainer, accepted_rounds=max(trainer.accepted_rounds - 1, 0))
    event = ChallengeClosed(
        epoch=state.progress.epoch,
        height=challenge.height,
        trainer=challenge.drawn.trainer,
        verifier=challenge.drawn.verifier,
        outcome=verdict.outcome.name,
        strikes=tuple(sorted(verdict.strikes)),
        missed=tuple(sorted(verdict.missed)),
        paid=tuple(sorted(verdict.paid)),
        requeued=requeued,
    )
    return replace(state, epoch=replace(state.epoch, clients=tuple(clients))), event


def _ejected_for_strikes(state: CoordinatorState, slot: int, ended: Round, now: int) -> Outcome:
    stored = state.round_at(ended.height)
    if stored is not None and slot in shares(state, stored):
        state = share_voided(state, stored, slot)
    return ejected(state, slot, now)


def with_challenges_drawn(state: CoordinatorState, *, height: int, seed: int) -> tuple[CoordinatorState, tuple[Event, ...]]:
    """Draw challenges about the shares of three rounds before. height, seed: of the round that begins; it is not stored yet."""
    judged = state.round_at(height - DRAWN_AFTER)
    if state.config.verification_percent == 0 or judged is None:
        return state, ()

    assigned = shares(state, judged)
    challengeable = _challengeable(state, judged)
    judges = _present_since(state, judged)
    begun = NewRound(height=height, seed=drawing_seed(seed), shares=challengeable, members=judges)
    known = {(one.height, one.trainer): one for one in state.epoch.challenges}
    verification = with_drawn(verification_of(state), begun)
    challenges, drawn = [], []
    for one in verification.open:
        place = (one.height, one.drawn.trainer)
        if place not in known:
            drawn.append((one.drawn.trainer, one.drawn.verifier))
        challenges.append(known[place] if place in known else _stored(one, assigned[one.drawn.trainer]))
    if not drawn:
        return state, ()

    event = ChallengesDrawn(epoch=state.progress.epoch, height=judged.height, drawn=tuple(drawn))
    return replace(state, epoch=replace(state.epoch, challenges=tuple(challenges))), (event,)


def recomputing_slots(state: CoordinatorState) -> tuple[int, ...]:
    """Return the healthy slots that recompute in the round that begins now, ascending."""
    if not state.epoch.challenges:
        return ()

    return tuple(sorted(verification_of(state).recomputing() & set(state.healthy_slots)))


def _present_since(state: CoordinatorState, played: Round) -> frozenset[int]:
    """Return the healthy slots that took part in a stored round: who came since may lack results that it would have to check."""
    return frozenset(state.healthy_slots) & frozenset(played.slots)


def _challengeable(state: CoordinatorState, judged: Round) -> frozenset[int]:
    """Return the slots whose share of a decided round may be challenged: not one of more intervals than the state keeps.

    Also those after a refused result. Otherwise a cheat would have its result refused in every third round, and never be checked.
    """
    assigned = shares(state, judged)
    few = {slot for slot, share in assigned.items() if len(share) <= MAX_CHALLENGED_INTERVALS}
    return frozenset(few & accepted_slots(state, judged))


def _new_round(state: CoordinatorState, ended: Round, *, seed: int) -> NewRound:
    """Return what the end of a round says about open challenges."""
    elected = len(witness_slots(state, ended))
    needed = quorum(elected)
    return NewRound(
        height=ended.height + 1,
        seed=drawing_seed(seed),
        shares=(),
        members=_present_since(state, state.epoch.rounds[0]),
        statements=_words_said(state, ended),
        elected=elected,
        quorum=needed,
        quorate=len(ended.statements) >= max(needed, 1),
        dropped=frozenset((one.height, one.trainer) for one in state.epoch.challenges if not one.share),
    )


def _words_said(state: CoordinatorState, ended: Round) -> tuple[tuple[Word, ...], ...]:
    count = len(verification_of(state).due(ended.height))
    return tuple(decode_words(statement.words, count=count) for statement in ended.statements)


def _stored(challenge: Challenge, share: Collection[BatchId]) -> OpenChallenge:
    return OpenChallenge(
        height=challenge.height,
        trainer=challenge.drawn.trainer,
        verifier=challenge.drawn.verifier,
        since=challenge.since,
        share=tuple(share),
        stage=challenge.stage,
        complained=challenge.complained,
        roots=tuple(Root(slot, commitment) for slot, commitment in challenge.roots),
        judges=challenge.judges,
        missed=tuple(sorted(challenge.missed)),
    )
