"""Members: joining, leaving, and being reported as unhealthy.

Slots never move: leaving only changes a client's state (F4). A client that leaves or is dropped must join again. If a pending
member joins again, its transport key is replaced and it keeps its place in the list. A client that joined again may return to its
slot in the same epoch (protocol section 5), at most MAX_REJOINS times. It must use the same keys, because the signatures of this
epoch are checked with them. It takes part from the next round on, because `Round.slots` never changes. Health is decided only
from statements: a slot is unhealthy if the previous round's witnesses reached their quorum and no quorum of them saw its share. A
slot without samples is never unhealthy (F10). A slot that was absent in that round and has returned since is not dropped for it.
"""

from __future__ import annotations

from dataclasses import replace

from psyche_core.coordinator.commands import ClientsReturned, HealthCheck, Join, Outcome, Withdraw
from psyche_core.coordinator.membership.exits import exited, with_pending
from psyche_core.coordinator.membership.missed_duties import WAITED_MISSES
from psyche_core.coordinator.phases import active_round
from psyche_core.coordinator.rewards import has_account_for
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.round.committee import is_witness, witness_slots
from psyche_core.coordinator.round.witness import accepted_slots, quorum, split_vote_slots
from psyche_core.coordinator.state import MAX_ACCOUNTS, MAX_REJOINS, Client, CoordinatorState, Round
from psyche_core.errors import CoordinatorError
from psyche_core.types import MAX_CLIENTS, ClientState, RunState
from psyche_core.wire.messages import is_join_of


def transport_keys(state: CoordinatorState) -> frozenset[bytes]:
    """Transport keys (32 bytes) of the run's members: those waiting for an epoch, and healthy or dropped ones of this epoch.

    A dropped member may come back. One that withdrew is a member only if it waits again; one that was ejected is none until the
    epoch ends.
    """
    keys = {client.id.p2p for client in state.epoch.clients if client.state in {ClientState.Healthy, ClientState.Dropped}}
    ejected = {client.id.p2p for client in state.epoch.clients if client.state is ClientState.Ejected}
    return frozenset((keys | {member.p2p for member in state.pending}) - ejected)


def join(state: CoordinatorState, command: Join, now: int) -> Outcome:
    """Append the sender to the pending list. A sender that is already pending keeps its place.

    now: unix seconds. Raises CoordinatorError (Halted if the run is finished, InvalidProof, TransportKeyTaken, ClientsFull,
    AccountsFull).
    """
    if state.run_state is RunState.Finished:
        raise CoordinatorError("Halted", "the run is finished; nobody can join it any more")

    sender = command.sender
    if not is_join_of(sender.p2p, sender.signer, command.proof, run=state.instance):
        message = f"the transport key {sender.p2p[:4].hex()} did not sign for {sender}; sign with its own secret half"
        raise CoordinatorError("InvalidProof", message)

    members = (*state.pending, *(client.id for client in state.epoch.clients))
    if any(member.p2p == sender.p2p and member.signer != sender.signer for member in members):
        message = f"the transport key {sender.p2p[:4].hex()} is another member's; each member has one of its own"
        raise CoordinatorError("TransportKeyTaken", message)

    if any(member.signer == sender.signer for member in state.pending):
        pending = tuple(sender if member.signer == sender.signer else member for member in state.pending)
        return (state, ()) if pending == state.pending else (replace(state, pending=pending), ())

    if len(state.pending) >= MAX_CLIENTS:
        raise CoordinatorError("ClientsFull", f"{MAX_CLIENTS} members are already waiting; try again when one has left")

    if not has_account_for(state, sender.signer):
        message = (
            f"{len(state.accounts)} balances and all who may still earn one leave no room for {sender} ({MAX_ACCOUNTS} in all)"
        )
        raise CoordinatorError("AccountsFull", message)

    return with_pending(state, (*state.pending, sender), now), ()


def withdraw(state: CoordinatorState, command: Withdraw, now: int) -> Outcome:
    """Remove the sender from the pending list, and from the epoch if its slot is healthy.

    Raises CoordinatorError (InvalidWithdraw).
    """
    sender = command.sender
    slot = state.slot_of(sender)
    if slot is not None and state.epoch.clients[slot].state is ClientState.Healthy:
        return exited(state, (slot,), ClientState.Withdrawn, now)

    pending = tuple(member for member in state.pending if member.signer != sender.signer)
    if len(pending) == len(state.pending):
        raise CoordinatorError("InvalidWithdraw", f"{sender} is neither waiting to join nor healthy in this epoch")

    return with_pending(state, pending, now), ()


def returned(state: CoordinatorState, slot: int) -> Outcome:
    """Make a dropped or withdrawn slot healthy again. Raises CoordinatorError (InvalidWitness, RejoinsExhausted).

    exited_height does not change: the slot must not be dropped again for work it did not do up to that round. The score of missed
    duties is reduced to at most WAITED_MISSES. With this score the slot is not dropped, but rounds do not wait for it (F16).
    """
    client = state.epoch.clients[slot]
    if client.state is ClientState.Ejected:
        raise CoordinatorError("InvalidWitness", f"slot {slot} is ejected and cannot come back in this epoch")
    if not any(member.signer == client.id.signer for member in state.pending):
        raise CoordinatorError("InvalidWitness", f"slot {slot} is {client.state.name}; join first, then say that you are ready")
    if client.id not in state.pending:
        message = f"slot {slot} joined again with another transport key; with that it can take part from the next epoch on"
        raise CoordinatorError("InvalidWitness", message)
    if client.rejoins >= MAX_REJOINS:
        message = f"slot {slot} has come back {MAX_REJOINS} times in this epoch; it takes part in the next one"
        raise CoordinatorError("RejoinsExhausted", message)

    clients = list(state.epoch.clients)
    clients[slot] = replace(
        client, state=ClientState.Healthy, rejoins=client.rejoins + 1, missed=min(client.missed, WAITED_MISSES)
    )
    ready = tuple(sorted({*state.epoch.ready, slot}))
    state = replace(state, epoch=replace(state.epoch, clients=tuple(clients), ready=ready))
    return state, (ClientsReturned(epoch=state.progress.epoch, slots=(slot,)),)


def health_check(state: CoordinatorState, command: HealthCheck, now: int) -> Outcome:
    """Drop slots whose share was seen by less than half of the witnesses.

    Slots that at least half saw, but no quorum, may be reported too, but are not dropped: `rounds` counts a missed duty for each
    (F16). The decision uses the statements of the previous round, which are about the round before it. Only the elected witnesses
    of the previous round may report (F8). If any reported slot was seen, the whole report is rejected. A reported slot that was
    absent and has returned since is not dropped. Raises CoordinatorError (Halted, InvalidRunState, NoActiveRound,
    InvalidHealthCheck).
    """
    if state.run_state.halted:
        raise CoordinatorError("Halted", f"the run is {state.run_state.name}")
    if not state.run_state.active:
        raise CoordinatorError("InvalidRunState", f"health is judged while rounds are played, not in {state.run_state.name}")

    current = active_round(state)
    attesting, attested = state.round_at(current.height - 1), state.round_at(current.height - 2)
    if attesting is None or attested is None:
        raise CoordinatorError("InvalidHealthCheck", f"nothing is attested before height 2, this is height {current.height}")

    sender = state.slot_of(command.sender)
    if sender is None or not is_witness(state, attesting, sender):
        raise CoordinatorError("InvalidHealthCheck", f"{command.sender} was no witness of the previous round")

    needed = quorum(len(witness_slots(state, attesting)))
    if len(attesting.statements) < needed:
        stated = len(attesting.statements)
        raise CoordinatorError("InvalidHealthCheck", f"{stated} of {needed} needed witnesses stated, which judges nobody")

    unseen = shares(state, attested).keys() - accepted_slots(state, attested)
    healthy = sorted(set(command.slots) - unseen)
    if healthy or not command.slots:
        got = f"slots {healthy} were seen or had no samples" if healthy else "no slot was named"
        raise CoordinatorError("InvalidHealthCheck", got)

    returned_slots = {slot for slot in command.slots if _returned_since(state.epoch.clients[slot], attested)}
    return exited(state, set(command.slots) - returned_slots - split_vote_slots(state, attested), ClientState.Dropped, now)


def _returned_since(client: Client, attested: Round) -> bool:
    """Whether the client was absent in a round, which explains its missing result, and has returned since."""
    return client.rejoins > 0 and attested.height <= client.exited_height
