"""Checks of a state that was read: conditions that its types cannot express but that functions on a state rely on."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from psyche_core.config import run_config
from psyche_core.config.schema import MAX_RUN_ID_BYTES
from psyche_core.coordinator.lifecycle.challenges import words_problem
from psyche_core.coordinator.rewards import signers_without_account
from psyche_core.coordinator.round.bloom_filter import BLOOM_BYTES
from psyche_core.coordinator.round.requeue import MAX_INTERVALS, merged
from psyche_core.coordinator.state import (
    LOST_ROUND_BITS,
    MAX_ACCOUNTS,
    MAX_CHALLENGED_INTERVALS,
    MAX_END_INTERVALS,
    MAX_ENDS,
    MAX_REJOINS,
    MAX_REPEATED_WARMUPS,
    MAX_UNREADY,
    STORED_ROUNDS,
    CoordinatorState,
    Epoch,
    EpochEnd,
    OpenChallenge,
    Round,
)
from psyche_core.errors import ConfigError, WireError
from psyche_core.types import MAX_CLIENTS, MAX_SAMPLES, MAX_WITNESSES, MAX_WORDS_BYTES, BatchId, RunState
from psyche_core.verification.challenge import Stage
from psyche_core.verification.drawing import TIE_BREAKERS
from psyche_core.verification.epoch import MOST_OPEN
from psyche_core.verification.standing import MEDIAN_OF

_LIMIT = 2**32
_MAX_ROUND_SAMPLES = 2**16
_MAX_TIMES = 255
_PLAYING = (RunState.RoundTrain, RunState.RoundWitness)
_STATEMENT_BYTES = {"participants": MAX_CLIENTS // 8, "broadcast_bloom": BLOOM_BYTES, "merkle_root": 32, "model_digest": 32}


def check_state(state: CoordinatorState) -> None:
    """Check conditions that types cannot express but that functions on a state rely on. Raises WireError."""
    _check_run(state)
    _check_epoch(state.epoch)
    _check_challenges(state)
    _check_history(state)
    _check_members(state)
    _check_samples(state)


def _check_run(state: CoordinatorState) -> None:
    try:
        size = len(state.run_id.encode())
    except UnicodeEncodeError:
        size = 0
    _expect(1 <= size <= MAX_RUN_ID_BYTES, "state.run_id", f"a name of 1 to {MAX_RUN_ID_BYTES} bytes", state.run_id)
    try:
        run_config.check_config(state.config)
    except ConfigError as error:
        message = f"state.config breaks a rule: {error}"
        raise WireError(message) from error

    _expect(len(state.instance) == 32, "state.instance", "32 bytes", state.instance)
    _expect(len(state.history) == 32, "state.history", "32 bytes", state.history)
    _expect(state.generation < _LIMIT, "state.generation", "a number of 32 bits", state.generation)
    _expect(state.progress.epoch < _LIMIT, "state.progress.epoch", "a number of 32 bits", state.progress.epoch)
    _expect(state.progress.step < _LIMIT, "state.progress.step", "a number of 32 bits", state.progress.step)
    playing = state.run_state in _PLAYING
    _expect(not playing or bool(state.epoch.rounds), "state.epoch.rounds", f"a round in {state.run_state.name}", [])


def _check_epoch(epoch: Epoch) -> None:
    clients = len(epoch.clients)
    _expect(clients <= MAX_CLIENTS, "state.epoch.clients", f"at most {MAX_CLIENTS}", clients)
    for slot, client in enumerate(epoch.clients):
        at = f"state.epoch.clients[{slot}]"
        _expect(client.exited_height < _LIMIT, f"{at}.exited_height", "a number of 32 bits", client.exited_height)
        _expect(client.accepted_rounds < _LIMIT, f"{at}.accepted_rounds", "a number of 32 bits", client.accepted_rounds)
        _expect(client.rejoins <= MAX_REJOINS, f"{at}.rejoins", f"at most {MAX_REJOINS}", client.rejoins)
        _expect(client.missed <= _MAX_TIMES, f"{at}.missed", f"at most {_MAX_TIMES}", client.missed)
        _expect(client.lost_rounds < 1 << LOST_ROUND_BITS, f"{at}.lost_rounds", f"{LOST_ROUND_BITS} bits", client.lost_rounds)
        _expect(len(client.end_digest) == 32, f"{at}.end_digest", "32 bytes", client.end_digest)
        standing = client.standing
        _expect(standing.strikes <= _MAX_TIMES, f"{at}.standing.strikes", f"at most {_MAX_TIMES}", standing.strikes)
        _expect(standing.watched_before < _LIMIT, f"{at}.standing", "a number of 32 bits", standing.watched_before)
        _expect(len(standing.high) <= MEDIAN_OF, f"{at}.standing.high", f"at most {MEDIAN_OF}", len(standing.high))
    _expect(0 <= epoch.repeats <= MAX_REPEATED_WARMUPS, "state.epoch.repeats", f"at most {MAX_REPEATED_WARMUPS}", epoch.repeats)
    _check_slots(epoch.ready, clients, at="state.epoch.ready")
    _check_slots(epoch.ceded, clients, at="state.epoch.ceded")
    _check_slots(epoch.lacking, clients, at="state.epoch.lacking")
    _expect(epoch.held_step < _LIMIT, "state.epoch.held_step", "a number of 32 bits", epoch.held_step)
    _expect(len(epoch.rounds) <= STORED_ROUNDS, "state.epoch.rounds", f"at most {STORED_ROUNDS}", len(epoch.rounds))
    heights = [stored.height for stored in epoch.rounds]
    consecutive = all(later == earlier + 1 for earlier, later in pairwise(heights))
    _expect(consecutive and all(height < _LIMIT for height in heights), "state.epoch.rounds", "consecutive heights", heights)
    trained = all(not stored.drain for stored in epoch.rounds[:-1])
    _expect(trained, "state.epoch.rounds", "no drain round but the last", heights)
    for stored in epoch.rounds:
        _check_round(stored, MAX_CLIENTS if epoch.unplayed else clients)  # unplayed: rounds of another epoch, with other clients


def _check_challenges(state: CoordinatorState) -> None:
    """Check that the open challenges are such that rounds can advance them."""
    at, found = "state.epoch.challenges", state.epoch.challenges
    _expect(len(found) <= MOST_OPEN, at, f"at most {MOST_OPEN}", len(found))
    _expect(not found or state.run_state in _PLAYING, at, "none but while rounds are played", len(found))
    places = [(one.height, one.trainer) for one in found]
    _expect(all(earlier < later for earlier, later in pairwise(places)), at, "ascending rounds and trainers", places)
    current = state.epoch.rounds[-1].height if found else 0
    for one in found:
        _check_challenge(one, f"{at} about round {one.height}", clients=len(state.epoch.clients), current=current)
    for one in found:
        opened = one.stage in (Stage.REVEAL, Stage.TIE_REVEAL)
        _expect(not opened or state.round_at(one.since) is not None, at, "a stored round with the seed of its chunks", one.since)
    for statement in state.epoch.rounds[-1].statements if state.run_state in _PLAYING else ():
        problem = words_problem(state, statement.words)
        _expect(problem is None, "the words of a statement", str(problem), statement.words)


def _check_challenge(one: OpenChallenge, at: str, *, clients: int, current: int) -> None:
    asked = {one.verifier, *one.judges}
    _expect(one.trainer < clients and max(asked) < clients, at, "slots of the epoch", (one.trainer, *asked))
    apart = one.trainer not in asked and one.verifier not in one.judges
    _expect(apart, at, "a trainer, a verifier and tie-breakers that are others", (one.trainer, *asked))
    # three later since shares are drawn by the seed of h + 3; a state that was saved before has challenges of two later
    _expect(one.height + 2 <= one.since <= current, f"{at}.since", "a later round, by two at least", one.since)
    _expect(one.stage is not Stage.CLOSED, f"{at}.stage", "an open challenge", one.stage)
    for name, slots in (("judges", one.judges), ("missed", one.missed)):
        _check_slots(slots, clients, at=f"{at}.{name}")
        _expect(len(slots) <= TIE_BREAKERS, f"{at}.{name}", f"at most {TIE_BREAKERS}", len(slots))
    _check_slots(tuple(root.slot for root in one.roots), clients, at=f"{at}.roots")
    _expect(len(one.roots) <= 1 + TIE_BREAKERS, f"{at}.roots", f"at most {1 + TIE_BREAKERS}", len(one.roots))
    _expect(all(len(root.commitment) == 32 for root in one.roots), f"{at}.roots", "32 bytes", one.roots)
    _check_intervals(one.share, at=f"{at}.share", at_most=MAX_CHALLENGED_INTERVALS)


def _check_history(state: CoordinatorState) -> None:
    _check_end(state.stored, at="state.stored")
    _expect(len(state.ends) <= MAX_ENDS, "state.ends", f"at most {MAX_ENDS}", len(state.ends))
    for place, end in enumerate(state.ends):
        _check_end(end, at=f"state.ends[{place}]")
    steps = [end.step for end in state.ends]
    _expect(all(earlier < later for earlier, later in pairwise(steps)), "state.ends", "ascending steps", steps)
    _expect(len(state.unready) <= MAX_UNREADY, "state.unready", f"at most {MAX_UNREADY}", len(state.unready))
    signers = [entry.signer for entry in state.unready]
    once = len(signers) == len(set(signers)) and all(len(signer) == 32 for signer in signers)
    _expect(once, "state.unready", "signers of 32 bytes, each once", len(signers))
    counted = all(1 <= entry.score <= _MAX_TIMES for entry in state.unready)
    _expect(counted, "state.unready", f"a score of 1 to {_MAX_TIMES}", signers)


def _check_end(end: EpochEnd, *, at: str) -> None:
    _expect(end.step < _LIMIT, f"{at}.step", "a number of 32 bits", end.step)
    _expect(len(end.digest) == 32, f"{at}.digest", "32 bytes", end.digest)
    _expect(len(end.history) == 32, f"{at}.history", "32 bytes", end.history)
    _expect(end.data_index <= MAX_SAMPLES - _MAX_ROUND_SAMPLES, f"{at}.data_index", "a smaller number", end.data_index)
    _check_intervals(end.queue, at=f"{at}.queue", at_most=MAX_END_INTERVALS)
    _expect(all(batch.last < end.data_index for batch in end.queue), f"{at}.queue", "samples below its data_index", end.queue)


def _check_round(stored: Round, clients: int) -> None:
    at = f"round {stored.height}"
    _check_slots(stored.slots, clients, at=at)
    _check_slots(stored.voided, clients, at=f"{at}.voided")
    _check_slots(stored.recomputing, clients, at=f"{at}.recomputing")
    _check_intervals(stored.batches, at=at, at_most=MAX_INTERVALS + 1)
    _expect(not (stored.drain and stored.batches), at, "no samples in a drain round", stored.batches)
    _expect(len(stored.statements) <= MAX_WITNESSES, at, f"at most {MAX_WITNESSES} statements", len(stored.statements))
    _expect(len(stored.history) == 32, f"{at}.history", "32 bytes", stored.history)
    indices = [statement.index for statement in stored.statements]
    _expect(len(indices) == len(set(indices)), at, "one statement of a slot", indices)
    for statement in stored.statements:
        _expect(statement.index < clients, at, "a statement of a slot of the epoch", statement.index)
        for name, size in _STATEMENT_BYTES.items():
            _expect(len(getattr(statement, name)) == size, f"{at}.{name}", f"{size} bytes", getattr(statement, name))
        _expect(len(statement.words) <= MAX_WORDS_BYTES, f"{at}.words", f"at most {MAX_WORDS_BYTES} bytes", len(statement.words))


def _check_slots(slots: tuple[int, ...], clients: int, *, at: str) -> None:
    ascending = all(earlier < later for earlier, later in pairwise(slots))
    _expect(ascending and all(slot < clients for slot in slots), at, "ascending slots of the epoch", slots)


def _check_members(state: CoordinatorState) -> None:
    """Check that no signer occurs twice and that there is room for every account that may still be needed."""
    _expect(len(state.pending) <= MAX_CLIENTS, "state.pending", f"at most {MAX_CLIENTS}", len(state.pending))
    for at, identities in (("pending", state.pending), ("epoch.clients", [client.id for client in state.epoch.clients])):
        signers = [identity.signer for identity in identities]
        _expect(len(signers) == len(set(signers)), f"state.{at}", "each signer once", len(signers))
    holders = [account.signer for account in state.accounts]
    _expect(all(len(signer) == 32 for signer in holders), "state.accounts", "signers of 32 bytes", holders)
    ascending = all(earlier < later for earlier, later in pairwise(holders))
    _expect(ascending, "state.accounts", "signers in ascending order, each once", holders)
    needed = len(holders) + len(signers_without_account(state))
    _expect(needed <= MAX_ACCOUNTS, "state.accounts", f"at most {MAX_ACCOUNTS} with those still to be opened", needed)


def _check_samples(state: CoordinatorState) -> None:
    """Check that no sample that may return to the queue occurs twice, and that sample numbers remain for the next round."""
    first_fresh = state.progress.data_index
    _expect(first_fresh <= MAX_SAMPLES - _MAX_ROUND_SAMPLES, "state.progress.data_index", "a smaller number", first_fresh)
    _check_intervals(state.requeue, at="state.requeue", at_most=MAX_INTERVALS)
    undecided = state.epoch.rounds[-2:] if state.run_state in _PLAYING else ()
    held = (*state.requeue, *(batch for stored in undecided for batch in stored.batches))
    held = (*held, *(batch for one in state.epoch.challenges for batch in one.share))
    _expect(all(batch.last < first_fresh for batch in held), "state.requeue", "samples below progress.data_index", held)
    try:
        merged(held)
    except ValueError as error:
        message = f"state.requeue and the undecided rounds: {error}"
        raise WireError(message) from error


def _check_intervals(batches: tuple[BatchId, ...], *, at: str, at_most: int) -> None:
    _expect(len(batches) <= at_most, at, f"at most {at_most} intervals", len(batches))
    try:
        canonical = merged(batches)
    except ValueError as error:
        message = f"{at}: {error}"
        raise WireError(message) from error

    _expect(batches == canonical, at, "ascending intervals with neighbours joined", batches)


def _expect(condition: bool, at: str, expected: str, got: Any) -> None:
    if not condition:
        message = f"{at}: {expectation(expected, got)}"
        raise WireError(message)


def expectation(expected: str, got: Any) -> str:
    """Return the end of a sentence: what was expected, and what there is, shortened."""
    text = repr(got)
    return f"expected {expected}, got {text if len(text) <= 80 else text[:80] + '…'}"
