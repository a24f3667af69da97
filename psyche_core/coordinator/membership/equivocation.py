"""Proof that a trainer signed two different results for one share of a round (F7). The trainer is then ejected.

The coordinator computes the signed bytes again from the state, so a proof needs only two payload hashes and two signatures, and
the sender does not have to be trusted. Any healthy member may send a proof during the epoch's rounds or its cooldown. The proof
also counts if the accused client already left, so leaving does not protect it. An ejected client is not paid for this epoch, is
slashed at the epoch's end, and cannot return in this epoch. It may join the next epoch: a new key costs nothing, so only the
owner's allow list can exclude people. The witness statements it sent still count.

If a round is not decided yet, the client's share of it becomes void: nobody applies it, and its samples return to the queue. If
the round is already decided, the share becomes void only if the statements prove that the clients agreed on none of the possible
results: not on the first, not on the second, and not on an unknown third one. In that case no client applied the share, and its
samples return to the queue too. If the statements do not prove this, and neither of the two results was agreed on, the samples
are counted as lost, because the state does not show whether a third result was applied. `Client.lost_rounds` remembers this. A
later proof with a third result can show that nobody applied the share; then its samples move from the lost ones to the queue.
"""

from __future__ import annotations

from dataclasses import replace

from psyche_core.coordinator.commands import Equivocation, Outcome, ShareVoided, SignedResult
from psyche_core.coordinator.membership.exits import ejected, share_voided
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.round.requeue import added
from psyche_core.coordinator.round.witness import accepted_slots, judge
from psyche_core.coordinator.state import LOST_ROUND_BITS, Client, CoordinatorState, Round
from psyche_core.errors import CoordinatorError
from psyche_core.types import ClientState, RunState, total_samples
from psyche_core.wire.messages import commitment_hash, is_commitment_of

_HASH_BYTES = 32
_SIGNATURE_BYTES = 64
_PLAYING = (RunState.RoundTrain, RunState.RoundWitness)


def equivocation(state: CoordinatorState, command: Equivocation, now: int) -> Outcome:
    """Check a proof and eject the accused slot. Raises CoordinatorError (Halted, InvalidRunState, InvalidEvidence)."""
    if state.run_state.halted:
        raise CoordinatorError("Halted", f"the run is {state.run_state.name}")
    if not state.run_state.active:
        message = f"evidence is heard while rounds or the cooldown are played, not in {state.run_state.name}"
        raise CoordinatorError("InvalidRunState", message)

    round_ = state.round_at(command.height)
    if round_ is None:
        raise CoordinatorError("InvalidEvidence", f"round {command.height} is not stored (any more)")

    problem = _problem(state, command, round_)
    if problem is not None:
        raise CoordinatorError("InvalidEvidence", problem)

    news = state.epoch.clients[command.index].state is not ClientState.Ejected
    after, events = _share_decided(state, command, round_)
    if news:
        after, left = ejected(_undecided_voided(after, command.index), command.index, now)
        return after, (*left, *events)
    if after is state:
        raise CoordinatorError("InvalidEvidence", f"slot {command.index} is already ejected, and this changes nothing")

    return after, events


def _share_decided(state: CoordinatorState, command: Equivocation, round_: Round) -> Outcome:
    """Decide about the share; returns the same state object if nothing changes."""
    slot, current = command.index, state.current_round
    if state.run_state in _PLAYING and current is not None and current.height <= command.height + 1:
        return share_voided(state, round_, slot), ()
    if slot not in accepted_slots(state, round_):
        return state, ()

    share = shares(state, round_)[slot]
    verdict = judge(state, round_, slot, _commitments(state, command, round_))
    known_lost = bool(state.epoch.clients[slot].lost_rounds & _lost_bit(round_))
    if verdict.chosen is not None or (known_lost and not verdict.void):
        return state, ()

    if verdict.void:
        queue, lost = added(state.requeue, share)
        if known_lost:  # an earlier proof counted them
            lost -= total_samples(share)
    else:
        queue, lost = state.requeue, total_samples(share)
    challenges = tuple(
        replace(one, share=()) if (one.height, one.trainer) == (round_.height, slot) else one for one in state.epoch.challenges
    )
    clients = _uncredited(state, round_, slot, credited=not known_lost, lost=not verdict.void)
    state = replace(
        state,
        epoch=replace(state.epoch, clients=clients, challenges=challenges),
        requeue=queue,
        lost_samples=max(state.lost_samples + lost, 0),
    )
    event = ShareVoided(epoch=state.progress.epoch, height=round_.height, slot=slot, requeued=verdict.void)
    return (share_voided(state, round_, slot) if verdict.void else state), (event,)


def _uncredited(state: CoordinatorState, round_: Round, slot: int, *, credited: bool, lost: bool) -> tuple[Client, ...]:
    """Return the clients with the slot's share of the round marked as lost or not. credited: whether the round counts for it."""
    clients = list(state.epoch.clients)
    client = clients[slot]
    bit = _lost_bit(round_)
    clients[slot] = replace(
        client,
        accepted_rounds=max(client.accepted_rounds - credited, 0),
        lost_rounds=client.lost_rounds | bit if lost else client.lost_rounds & ~bit,
    )
    return tuple(clients)


def _lost_bit(round_: Round) -> int:
    """Return the bit of a round in `Client.lost_rounds`. An ejected client gets no new share, so no two rounds share a bit."""
    return 1 << round_.height % LOST_ROUND_BITS


def _undecided_voided(state: CoordinatorState, slot: int) -> CoordinatorState:
    """Mark all undecided shares of a slot as void, because a trainer that signed twice once may do so in other rounds."""
    current = state.current_round
    if state.run_state not in _PLAYING or current is None:
        return state

    for stored in state.epoch.rounds:
        if stored.height >= current.height - 1 and slot in shares(state, stored):
            state = share_voided(state, stored, slot)
    return state


def _commitments(state: CoordinatorState, command: Equivocation, round_: Round) -> tuple[bytes, bytes]:
    """Compute the two commitments (32 bytes each) from the state and the payload hashes of the proof."""

    def commitment(result: SignedResult) -> bytes:
        return commitment_hash(
            state.instance,
            epoch=command.epoch,
            step=round_.step,
            seed=round_.seed,
            share=shares(state, round_)[command.index],
            trainer=state.epoch.clients[command.index].id.signer,
            payload_hash=result.payload_hash,
        )

    return commitment(command.first), commitment(command.second)


def _problem(state: CoordinatorState, command: Equivocation, round_: Round) -> str | None:
    """Return what is wrong with a proof, or None if it is valid. Cheap checks come first."""
    sender = state.slot_of(command.sender)
    if sender is None or state.epoch.clients[sender].state is not ClientState.Healthy:
        return f"{command.sender} is not a healthy member of this epoch"
    if command.epoch != state.progress.epoch:
        return f"this is epoch {state.progress.epoch}, the evidence is about epoch {command.epoch}"

    if command.index not in shares(state, round_):
        return f"slot {command.index} had no samples in round {command.height}"
    if command.index in round_.voided:
        return f"the share of slot {command.index} in round {command.height} is void already"

    accused = state.epoch.clients[command.index]
    results = (command.first, command.second)
    if any(len(result.payload_hash) != _HASH_BYTES or len(result.signature) != _SIGNATURE_BYTES for result in results):
        return f"a signed result is a hash of {_HASH_BYTES} and a signature of {_SIGNATURE_BYTES} bytes"
    if command.first.payload_hash == command.second.payload_hash:
        return "both results are the same one"

    commitments = _commitments(state, command, round_)
    for name, result, commitment in zip(("first", "second"), results, commitments, strict=True):
        if not is_commitment_of(accused.id.p2p, commitment, result.signature, run=state.instance):
            return f"the {name} result is not signed by slot {command.index} for its share of round {command.height}"

    return None
