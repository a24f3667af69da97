"""Changes of the pending list, and of slots that stop being healthy.

Slots never move: leaving only changes a client's state (F4). A client that leaves or is dropped is no longer pending and must
join again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from psyche_core.coordinator.commands import ClientsExited, Outcome
from psyche_core.coordinator.state import Client, CoordinatorState, Round
from psyche_core.types import ClientState, NodeIdentity


def with_pending(state: CoordinatorState, pending: tuple[NodeIdentity, ...], now: int) -> CoordinatorState:
    """Return the state with another pending list. Also updates since when the list has had init_min_clients members (F13)."""
    enough = len(pending) >= state.config.init_min_clients
    since = state.minimum_since if state.minimum_since is not None else now
    return replace(state, pending=pending, minimum_since=since if enough else None)


def exited(state: CoordinatorState, slots: Iterable[int], to: ClientState, now: int) -> Outcome:
    """Change healthy slots to the client state `to` and remove their members from the pending list.

    Slots of `slots` that are not healthy do not change. now: unix seconds.
    """
    leaving = tuple(sorted(set(slots) & set(state.healthy_slots)))
    if not leaving:
        return state, ()

    height = 0 if state.current_round is None else state.current_round.height
    clients = tuple(
        replace(client, state=to, exited_height=height) if slot in leaving else client
        for slot, client in enumerate(state.epoch.clients)
    )
    gone = {clients[slot].id.signer for slot in leaving}
    state = replace(state, epoch=replace(state.epoch, clients=clients))
    state = with_pending(state, tuple(member for member in state.pending if member.signer not in gone), now)
    return state, (ClientsExited(epoch=state.progress.epoch, slots=leaving),)


def ejected(state: CoordinatorState, slot: int, now: int) -> Outcome:
    """Eject the slot, whatever its health was, and remove its member from the pending list. now: unix seconds."""
    clients = list(state.epoch.clients)
    clients[slot] = _as_ejected(clients[slot], height=0 if state.current_round is None else state.current_round.height)
    signer = clients[slot].id.signer
    state = replace(state, epoch=replace(state.epoch, clients=tuple(clients)))
    state = with_pending(state, tuple(member for member in state.pending if member.signer != signer), now)
    return state, (ClientsExited(epoch=state.progress.epoch, slots=(slot,)),)


def _as_ejected(client: Client, *, height: int) -> Client:
    """Return the client as ejected. If it had already left, exited_height keeps the round in which it left."""
    left_before = client.state is not ClientState.Healthy
    return replace(client, state=ClientState.Ejected, exited_height=client.exited_height if left_before else height)


def share_voided(state: CoordinatorState, round_: Round, slot: int) -> CoordinatorState:
    """Return the state in which nobody applies the share of this slot of a stored round."""
    marked = replace(round_, voided=tuple(sorted({*round_.voided, slot})))
    rounds = tuple(marked if stored.height == round_.height else stored for stored in state.epoch.rounds)
    return replace(state, epoch=replace(state.epoch, rounds=rounds))
