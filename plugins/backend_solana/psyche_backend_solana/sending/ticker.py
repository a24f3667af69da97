"""Decides who sends a tick, and when. No I/O.

Anybody may send a tick, and each tick costs its sender a fee. A tick is due when `apply` says that it would change the state at
the chain's time. It is also due in a long phase in which no instruction has stored the hash for the next seed (`layouts.beacon`).
Members take turns in an order that each of them computes equally from the account's nonce and their keys. The first member ticks
at once, each next one only if nothing has happened for some more time. So usually one fee is paid, and no single member can stop
the run.
Unhealthy members come after healthy ones, and wallets that are not members last. The estimate of the chain's time only decides
when to look; the sender reads the clock before it ticks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from psyche_backend_solana.layouts.beacon import LATE_SECONDS, Beacon
from psyche_core.coordinator import apply
from psyche_core.coordinator.commands import Command, Tick
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import CoordinatorError
from psyche_core.types import RunState

FIRST_TURN_SECONDS = 2.0
"""Seconds that the second member waits for the first: about the time until a transaction is seen."""
LONGEST_TURN_SECONDS = 30.0
NO_BEACON = Beacon()
OUTSIDERS_TURN = 8
"""A wallet that is not a member ticks as if at least this many members came first."""


def due(state: CoordinatorState, now: int) -> bool:
    """Whether a tick would change the state at the chain's time `now`."""
    return follows(state, (Tick(),), now)


def misses_hash(state: CoordinatorState, beacon: Beacon, now: int) -> bool:
    """Whether a tick at the chain's time `now` is needed to take in the hash of the next seed, before it is forgotten.

    Usually another instruction of the round has done so long before.
    """
    return beacon.pending and not state.run_state.halted and now >= state.since + LATE_SECONDS


def wanted(state: CoordinatorState, beacon: Beacon, now: int) -> bool:
    """Whether a tick at the chain's time `now` is worth its fee."""
    return due(state, now) or misses_hash(state, beacon, now)


def follows(state: CoordinatorState, commands: Iterable[Command], now: int) -> bool:
    """Whether the commands would be accepted one after the other, and the last one would change something."""
    changed = False
    try:
        for command in commands:
            after, events = apply(state, command, now, 0)
            changed, state = after != state or bool(events), after
    except CoordinatorError:
        return False

    return changed


def order(state: CoordinatorState, nonce: int) -> tuple[bytes, ...]:
    """The signers of the members in the order of their turns.

    Healthy members of the epoch, or those waiting for one, come first, then the rest.
    """
    clients = state.epoch.clients
    healthy = {clients[slot].id.signer for slot in state.healthy_slots}
    pending = {member.signer for member in state.pending}
    first = pending if state.run_state is RunState.WaitingForMembers or not healthy else healthy
    rest = (healthy | pending) - first
    number = nonce.to_bytes(8, "little")

    def draw(signer: bytes) -> bytes:
        return hashlib.sha256(b"psyche/solana/tick/1" + number + signer).digest()

    return (*sorted(first, key=draw), *sorted(rest, key=draw))


def tick_delay(state: CoordinatorState, nonce: int, signer: bytes) -> float:
    """Seconds that a signer waits before it sends a due tick: 0 for the first in the order, then 2, 4, 8 … up to 30."""
    members = order(state, nonce)
    place = members.index(signer) if signer in members else max(len(members), OUTSIDERS_TURN)
    if place == 0:
        return 0.0

    return min(LONGEST_TURN_SECONDS, FIRST_TURN_SECONDS * 2.0 ** min(place - 1, 8)) + 0.25 * (place - 1)


@dataclass(slots=True)
class TickSchedule:
    """Remembers since when a tick is due in the current state, by local monotonic time."""

    nonce: int = -1
    since: float = 0.0

    def comes(
        self, state: CoordinatorState, nonce: int, *, signer: bytes, now: int, local: float, beacon: Beacon = NO_BEACON
    ) -> bool:
        """Whether it is this signer's turn. now: the chain's time. beacon: of the run's account."""
        if not wanted(state, beacon, now):
            self.nonce = -1
            return False
        if self.nonce != nonce:
            self.nonce, self.since = nonce, local

        return local - self.since >= tick_delay(state, nonce, signer)
