"""Proof that a trainer signed two different results for one share of a round (F7), and what follows: it is ejected.

Decided: everything signed is computed again from the state, so a proof needs two payload hashes and two signatures and nobody is
believed; any healthy member may bring it, while the epoch's rounds or its cooldown are played. It convicts whatever the accused's
health is, for leaving must not save it. An ejected client is not paid for this epoch, is slashed at its end, and cannot return in
it. It may join for the next epoch: a new key costs nothing, so keeping people out is the business of the owner's list. Its share
of a round not yet settled is accepted or not as the witnesses say, like everybody's, and the statements it gave count.
"""

from __future__ import annotations

from dataclasses import replace

from psyche_core.coordinator.assignment import shares
from psyche_core.coordinator.commands import ClientsExited, Equivocation
from psyche_core.coordinator.members import with_pending
from psyche_core.coordinator.rounds import Outcome
from psyche_core.coordinator.state import Client, CoordinatorState
from psyche_core.errors import CoordinatorError
from psyche_core.types import ClientState
from psyche_core.wire.messages import commitment_hash, is_commitment_of

_HASH_BYTES = 32
_SIGNATURE_BYTES = 64


def equivocation(state: CoordinatorState, command: Equivocation, now: int) -> Outcome:
    """Eject the accused slot. Raises CoordinatorError (Halted, InvalidRunState, InvalidEvidence)."""
    if state.run_state.halted:
        raise CoordinatorError("Halted", f"the run is {state.run_state.name}")
    if not state.run_state.active:
        message = f"evidence is heard while rounds or the cooldown are played, not in {state.run_state.name}"
        raise CoordinatorError("InvalidRunState", message)

    problem = _problem(state, command)
    if problem is not None:
        raise CoordinatorError("InvalidEvidence", problem)

    return _ejected(state, command.index, now)


def _problem(state: CoordinatorState, command: Equivocation) -> str | None:
    """What is wrong with a proof, None when it proves. Cheap checks come first."""
    sender = state.slot_of(command.sender)
    if sender is None or state.epoch.clients[sender].state is not ClientState.Healthy:
        return f"{command.sender} is not a healthy member of this epoch"
    if command.epoch != state.progress.epoch:
        return f"this is epoch {state.progress.epoch}, the evidence is about epoch {command.epoch}"

    judged = state.round_at(command.height)
    if judged is None:
        return f"round {command.height} is not stored (any more)"

    share = shares(state, judged).get(command.index)
    if share is None:
        return f"slot {command.index} had no samples in round {command.height}"

    accused = state.epoch.clients[command.index]
    if accused.state is ClientState.Ejected:
        return f"slot {command.index} is already ejected"

    results = (command.first, command.second)
    if any(len(result.payload_hash) != _HASH_BYTES or len(result.signature) != _SIGNATURE_BYTES for result in results):
        return f"a signed result is a hash of {_HASH_BYTES} and a signature of {_SIGNATURE_BYTES} bytes"
    if command.first.payload_hash == command.second.payload_hash:
        return "both results are the same one"

    for name, result in (("first", command.first), ("second", command.second)):
        commitment = commitment_hash(
            state.run_id,
            epoch=command.epoch,
            step=judged.step,
            share=share,
            trainer=accused.id.signer,
            payload_hash=result.payload_hash,
        )
        if not is_commitment_of(accused.id.p2p, commitment, result.signature, run_id=state.run_id):
            return f"the {name} result is not signed by slot {command.index} for its share of round {command.height}"

    return None


def _ejected(state: CoordinatorState, slot: int, now: int) -> Outcome:
    """The slot ejected whatever its health was, its member no longer pending."""
    clients = list(state.epoch.clients)
    clients[slot] = _convicted(clients[slot], height=0 if state.current_round is None else state.current_round.height)
    signer = clients[slot].id.signer
    state = replace(state, epoch=replace(state.epoch, clients=tuple(clients)))
    state = with_pending(state, tuple(member for member in state.pending if member.signer != signer), now)
    return state, (ClientsExited(epoch=state.progress.epoch, slots=(slot,)),)


def _convicted(client: Client, *, height: int) -> Client:
    """exited_height stays where a client that had already left did so."""
    left_before = client.state is not ClientState.Healthy
    return replace(client, state=ClientState.Ejected, exited_height=client.exited_height if left_before else height)
