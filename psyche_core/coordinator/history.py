"""The run's history: the digests that members signed, and going back to an earlier step if nobody holds a later one (F18).

An epoch's end is signed when a quorum of the members that took part in it reported the same full digest of their masters (the
float32 master weights). The witness statements that are still stored sign the last steps of the epoch's rounds: each statement
contains the digest of the masters during its round.

The run goes back when no member has the model in memory or on disk any more. For this, a quorum of the members that report in a
warmup must say that they cannot get the model, each with the newest signed step it holds. The run continues from the newest of
these steps. Models are compared by digest, so nobody can introduce another model. If a member claims a step that it does not
have, the run must go back once more. If nobody holds any step, only the stored checkpoint is left. The owner decides whether to
use it, unless the configuration allows it in advance.

Every decision of a round changes the history digest: it tells members of a restored coordinator whether what they applied is what
the run applied, also of rounds that the state no longer stores.

How many signed ends a state keeps, and how many waiting intervals with each: MAX_ENDS and MAX_END_INTERVALS in `state`.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from psyche_core.coordinator.commands import EpochDigest, EpochEnded, EpochSigned, ModelLost, Outcome, WentBack
from psyche_core.coordinator.phases import entered, wait_for_members
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.round.requeue import added
from psyche_core.coordinator.round.witness import accepted_slots, quorum
from psyche_core.coordinator.state import (
    MAX_END_INTERVALS,
    MAX_ENDS,
    NO_DIGEST,
    CoordinatorState,
    EpochEnd,
    Progress,
    Round,
)
from psyche_core.errors import CoordinatorError
from psyche_core.types import MAX_WITNESSES, ClientState, RunState, WitnessStatement, bitmap, total_samples

_HELD = b"psyche/held"
_STATED = b"psyche/stated"
_DECIDED = b"psyche/decided"
_MOVED = b"psyche/moved"
_PLAYING = (RunState.RoundTrain, RunState.RoundWitness)
_AFTERWARDS = (RunState.WaitingForMembers, RunState.Paused, RunState.Finished)
"""States after a cooldown in which the members of the last epoch can still sign its end."""


def present_end(state: CoordinatorState) -> EpochEnd:
    """Return the run's position between two epochs, with the digest that a quorum signed for it, or NO_DIGEST."""
    step = state.progress.step - 1
    digest = next((end.digest for end in state.ends if end.step == step), NO_DIGEST)
    return _end_at(state, step, digest=digest, history=state.history)


def _end_at(state: CoordinatorState, step: int, *, digest: bytes, history: bytes) -> EpochEnd:
    kept, left_out = state.requeue[-MAX_END_INTERVALS:], state.requeue[:-MAX_END_INTERVALS]
    lost = state.lost_samples + total_samples(left_out)
    return EpochEnd(step, data_index=state.progress.data_index, digest=digest, queue=kept, lost=lost, history=history)


def history_with_statement(history: bytes, said: WitnessStatement) -> bytes:
    """Return the history (32 bytes) once a statement is stored.

    SHA-256 over a tag, the history so far, and the statement as the canonical image stores it, with its words, if any, last.
    """
    head = struct.pack("<IIHxx", said.epoch, said.height, said.index)
    parts = (_STATED, history, head, said.participants, said.broadcast_bloom, said.merkle_root, said.model_digest, said.words)
    return hashlib.sha256(b"".join(parts)).digest()


def history_with_decision(state: CoordinatorState, played: Round, accepted: frozenset[int]) -> bytes:
    """Return the history (32 bytes) once the statements about a round have decided it.

    SHA-256 over a tag, the history so far (with those statements), the round's step (u64), its epoch and height (u32), all
    little-endian, and the accepted slots as a bitmap of 32 bytes.
    """
    numbers = struct.pack("<QII", played.step, state.progress.epoch, played.height)
    return hashlib.sha256(b"".join((_DECIDED, state.history, numbers, bitmap(accepted)))).digest()


def histories(state: CoordinatorState) -> dict[int, bytes]:
    """Map steps to the history (32 bytes) up to them, as far as the state stores it, from ends and stored rounds.

    A round begins with the history of the step two before its own, which it shares with everybody's masters. The first two rounds
    of an epoch have the same masters, and the history of these is that of the first round.
    """
    found = {end.step: end.history for end in state.ends}
    found |= {stored.step - min(stored.height + 1, 2): stored.history for stored in state.epoch.rounds if stored.height != 1}
    if state.run_state not in _PLAYING:
        found[state.progress.step - 1] = state.history
    return found


def signed_digests(state: CoordinatorState) -> Mapping[int, bytes]:
    """Map each signed step to the full digest (32 bytes) of the masters after it, from epoch ends and stored statements."""
    return _attested(state) | {end.step: end.digest for end in state.ends if end.digest != NO_DIGEST}


def _attested(state: CoordinatorState) -> dict[int, bytes]:
    """Return the digests, by step, that stored statements sign.

    The number of equal statements must reach a quorum of all members of the stored rounds, or of MAX_WITNESSES if there are more
    members than that. So the last remaining member cannot sign a digest alone. During a round, the masters of all members are
    those after the step two before it. The round between must also be stored, because its samples would be assigned again.
    """
    rounds = state.epoch.rounds
    members = {slot for stored in rounds for slot in stored.slots}
    needed = quorum(min(len(members), MAX_WITNESSES))
    found: dict[int, bytes] = {}
    for before, stored in pairwise(rounds):
        counts = Counter(statement.model_digest for statement in stored.statements)
        del counts[NO_DIGEST]
        digest, count = max(counts.items(), key=lambda item: item[1], default=(NO_DIGEST, 0))
        if count >= needed and before.step > 1:
            found[before.step - 1] = digest
    return found


def epoch_digest(state: CoordinatorState, command: EpochDigest) -> Outcome:
    """Store a member's digest of the epoch's end. The end is signed once a quorum of equal digests is reached.

    The quorum is computed over all members that took part in the epoch, even if they have left since. So the last remaining
    member cannot sign alone. A signed digest is never replaced by another one.

    Raises CoordinatorError (InvalidRunState, InvalidWitness, DuplicateWitness).
    """
    if not _accepts_digests(state):
        message = f"the end of an epoch is signed after its rounds, the run is in {state.run_state.name}"
        raise CoordinatorError("InvalidRunState", message)

    ended = state.progress.epoch if state.run_state is RunState.Cooldown else state.progress.epoch - 1
    if command.epoch != ended:
        raise CoordinatorError("InvalidWitness", f"epoch {ended} has ended, the digest is about epoch {command.epoch}")

    slot = state.slot_of(command.sender)
    if slot is None or slot != command.index or state.epoch.clients[slot].state is not ClientState.Healthy:
        message = f"{command.sender} is not the healthy member with slot {command.index} of epoch {ended}"
        raise CoordinatorError("InvalidWitness", message)
    if len(command.digest) != 32 or command.digest == NO_DIGEST:
        raise CoordinatorError("InvalidWitness", f"a digest is 32 bytes and not all zero, got {command.digest.hex()!r:.70}")
    if state.epoch.clients[slot].end_digest == command.digest:
        raise CoordinatorError("DuplicateWitness", f"slot {slot} has already signed the end of epoch {ended} with this digest")

    clients = list(state.epoch.clients)
    clients[slot] = replace(clients[slot], end_digest=command.digest)
    state = replace(state, epoch=replace(state.epoch, clients=tuple(clients)))
    voters = _participants(state)
    equal = [other for other in voters if clients[other].end_digest == command.digest]
    present = present_end(state)
    if len(equal) < quorum(len(voters)) or present.digest not in (NO_DIGEST, command.digest):
        return state, ()

    end = replace(present, digest=command.digest)
    news = all(known.step != end.step or known.digest != end.digest for known in state.ends)
    ends = (*(known for known in state.ends if known.step < end.step), end)[-MAX_ENDS:]
    stored = state.stored
    if stored.step == end.step and stored.digest == NO_DIGEST:
        stored = replace(stored, digest=end.digest)
    event = EpochSigned(step=end.step, digest=end.digest)
    return replace(state, ends=ends, stored=stored), ((event,) if news else ())


def _participants(state: CoordinatorState) -> list[int]:
    """Return the slots that had accepted results in the epoch or were healthy when a stored round began, without ejected ones.

    So the last remaining member cannot sign alone, however early the others left.
    """
    began = {slot for stored in state.epoch.rounds for slot in stored.slots}
    return [
        slot
        for slot, client in enumerate(state.epoch.clients)
        if client.state is not ClientState.Ejected and (client.accepted_rounds > 0 or slot in began)
    ]


def _accepts_digests(state: CoordinatorState) -> bool:
    return (state.run_state is RunState.Cooldown or state.run_state in _AFTERWARDS) and state.current_round is not None


def held_digest(digest: bytes) -> bytes:
    """Return what a member that cannot get the epoch's model sends to say which earlier model it holds (32 bytes).

    digest: full digest of the model it holds, 32 bytes. The member does not send this digest itself, because two steps can have
    equal masters: the digest would then also mean that the member is ready with the epoch's model.
    """
    return hashlib.sha256(_HELD + digest).digest()


def must_go_back(state: CoordinatorState) -> bool:
    """Whether a quorum of the members that reported in warmup cannot get the model that the epoch starts with.

    At least init_min_clients members must have reported. Always False if the epoch starts with the stored checkpoint, because
    there is no earlier model.
    """
    healthy, ready = set(state.healthy_slots), set(state.epoch.ready)
    lacking = healthy & set(state.epoch.lacking) - ready
    reported = lacking | healthy & ready
    return not state.from_checkpoint and len(reported) >= state.config.init_min_clients and len(lacking) >= quorum(len(reported))


def without_model(state: CoordinatorState, now: int) -> Outcome:
    """Abandon the warmup and go back to the newest step that a member holds.

    If no member holds one, the run goes back to the stored checkpoint if the configuration allows it, and otherwise it is paused.
    """
    given_up = EpochEnded(epoch=state.progress.epoch, success=False)
    held = None
    if state.epoch.held_step:
        state = _with_attested(state, state.epoch.held_step)
        held = next((end for end in state.ends if end.step == state.epoch.held_step), None)
    if held is None and not state.config.restart_from_checkpoint:
        lost = ModelLost(step=state.progress.step - 1)
        state = replace(state, model_lost=True, epoch=replace(state.epoch, repeats=0))
        return entered(state, RunState.Paused, now), (given_up, lost)

    state, events = went_back(state, held or state.stored, from_checkpoint=held is None)
    return wait_for_members(state, now), (given_up, *events)


def _with_attested(state: CoordinatorState, newest: int) -> CoordinatorState:
    """Return the state without ends after step `newest`, and with ends for the earlier steps that stored statements sign.

    Each added end is as if the later rounds had not been played: their accepted samples are in its queue, to be assigned again,
    together with the samples that were already waiting.
    """
    attested = _attested(state)
    ends = tuple(end for end in state.ends if end.step <= newest)
    known = histories(state)
    oldest = ends[-1].step + 1 if ends else 1
    queue, lost = state.requeue, state.lost_samples
    found: list[EpochEnd] = []
    for stored in reversed(state.epoch.rounds):
        if stored.drain:
            continue

        assigned = shares(state, stored)
        again = [batch for slot in sorted(accepted_slots(state, stored)) for batch in assigned[slot]]
        queue, given_up = added(queue, again)
        lost += given_up
        step = stored.step - 1
        if oldest <= step <= newest and step in attested:
            past = replace(state, requeue=queue, lost_samples=lost)
            found.insert(0, _end_at(past, step, digest=attested[step], history=known[step]))
    return replace(state, ends=(*ends, *found)[-MAX_ENDS:])


def went_back(state: CoordinatorState, target: EpochEnd, *, from_checkpoint: bool) -> Outcome:
    """Return the run at an earlier step, with a new generation number. The steps after it are trained again."""
    event = WentBack(from_step=state.progress.step - 1, to_step=target.step, from_checkpoint=from_checkpoint)
    progress = Progress(epoch=state.progress.epoch, step=target.step + 1, data_index=target.data_index)
    state = replace(
        state,
        progress=progress,
        requeue=target.queue,
        lost_samples=target.lost,
        ends=tuple(end for end in state.ends if end.step <= target.step),
        from_checkpoint=from_checkpoint,
        generation=state.generation + 1,
        history=target.history,
        epoch=replace(state.epoch, rounds=(), unplayed=True, repeats=0),  # they belong to the discarded history
    )
    return state, (event,)


def moved_to(state: CoordinatorState, progress: Progress) -> CoordinatorState:
    """Return the run at the position chosen by its owner.

    The run continues with the members' model if they signed that end, otherwise with the stored model. From then on the stored
    model counts as the one of that position, unless it is an earlier one. The queue is emptied, because its samples belong to the
    discarded history.
    """
    step = progress.step - 1
    ends = tuple(end for end in state.ends if end.step <= step)
    signed = bool(ends) and ends[-1].step == step
    kept = signed and state.stored.step <= step
    history = ends[-1].history if signed else hashlib.sha256(_MOVED + state.history + struct.pack("<Q", step)).digest()
    position = EpochEnd(step=step, data_index=progress.data_index, lost=state.lost_samples, history=history)
    stored = state.stored if kept else position
    return replace(
        state,
        progress=progress,
        requeue=(),
        ends=ends,
        stored=stored,
        from_checkpoint=not signed,
        model_lost=False,
        generation=state.generation + 1,
        history=history,
        epoch=replace(state.epoch, rounds=(), unplayed=True, repeats=0),
    )
