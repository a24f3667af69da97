"""Changes of the pending list, and of slots that stop being healthy.

Slots never move: leaving only changes a client's state (F4). A client that leaves or is dropped is no longer pending and must
join again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from psyche_core.coordinator.commands import ClientsExited, Outcome
from psyche_core.coordinator.state import CoordinatorState
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
