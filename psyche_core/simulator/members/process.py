"""A simulated member's process: it starts, crashes and freezes, has a clock of its own, and gives events to its machine.

A paused process (SIGSTOP, a long garbage collection) handles what happened meanwhile afterwards, late but in order.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, get_args

from psyche_core.client.actions import Actions
from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.machine.machine import ClientMachine, Timeouts
from psyche_core.coordinator.commands import Join
from psyche_core.simulator.invariants.replica_checker import check_sizes
from psyche_core.simulator.members.keys import RUN_ID, identity_of, join_of, signed_by, verified
from psyche_core.types import NodeIdentity

if TYPE_CHECKING:
    from psyche_core.simulator.network import Packet
    from psyche_core.simulator.world import World

TICK_SECONDS = 1.0
"""Seconds between two TimePassed events."""

SIZES_EVERY = 4
"""TimePassed events between two checks of the machine's sizes; unbounded growth is still noticed."""

_NUMBERED: dict[type, int] = {kind: number for number, kind in enumerate(get_args(ev.Event))}


class Process(Actions[None]):
    """See the module. index: the member's number, which also gives its key. liar: no invariant is required of it."""

    def __init__(self, world: World, index: int, *, rng: random.Random, liar: bool) -> None:
        self.index = index
        self.name: str = f"client-{index}"
        self.identity: NodeIdentity = identity_of(index)
        self.liar = liar
        self.forged_join: Join | None = None
        self.rpc_lags: list[float] = []
        self.rpc_fails: list[float] = []
        self.lineage: int = 0
        self.incarnation: int = 0
        self.running: bool = False
        self.booted_at: float = 0.0
        self.paused: int = 0
        self.clock_offset: float = 0.0
        self.clock_rate: float = 1.0
        self.stop: act.Stop | None = None
        self.left: bool = False
        self.counts: Counter[str] = world.counts
        self.members: tuple[NodeIdentity, ...] = ()
        self.peers: set[int] = set()
        self.links: set[int] = set()
        self.notified_peers: frozenset[bytes] = frozenset()
        self.seen: set[int] = set()
        self.packets: dict[int, Packet] = {}
        self.joined: bool = False
        self.state_due: bool = False
        self.version: int = -1
        self._world = world
        self._rng = rng
        self._held: list[tuple[ev.Event, int | None]] = []
        self._ticks = 0
        self._has_store = False

    def __repr__(self) -> str:
        return self.name

    # ------------------------------------------------------------------------------------ life

    def boot(self, *, disk: bool = False) -> None:
        """Start a process. disk: whether it has what an earlier one saved."""
        world = self._world
        self.incarnation += 1
        self.running = True
        self.booted_at = world.clock.now
        self.stop = None
        self.machine: ClientMachine = ClientMachine(
            self.identity,
            RUN_ID,
            sign=lambda commitment: signed_by(self.index, commitment),
            verify=verified,
            timeouts=Timeouts(payload=20.0, peers=3.0, last_peers=1.0, offers=4.0, answer=10.0, leaving=5.0),
            can_store=self._has_store,
        )
        self._forget(disk=disk)
        self.members, self.peers, self.links, self.notified_peers = (), set(), set(), frozenset()
        self.seen, self.packets = set(), {}
        self.joined = self.state_due = False
        self.version = -1
        self.lineage = 0
        self._held = []
        self.trace("starts" + (" with its disk" if disk else ""))
        world.clock.after(self._rng.random() * TICK_SECONDS, self._tick, self.incarnation)
        world.server.reconnect(self)

    @abstractmethod
    def _forget(self, *, disk: bool) -> None:
        """Lose what an earlier process had in memory. disk: whether its disk stays."""

    def _restart(self, incarnation: int) -> None:
        if incarnation == self.incarnation and not self.running:
            self.boot(disk=True)

    def crash(self) -> None:
        """The process ends at once without telling anybody."""
        self.trace("crashes")
        self.running = False
        self.incarnation += 1
        self.links = set()
        self._world.network.changed()

    def pause(self) -> None:
        """The process stops running."""
        self.paused += 1

    def unpause(self) -> None:
        """The process continues and handles what happened meanwhile."""
        self.paused -= 1
        if self.paused:
            return

        held, self._held = self._held, []
        if self._rng.random() < 0.5:  # the backend may have kept the newest state only
            states = [event for event, _ in held if event.__class__ is ev.StateSeen]
            held = [one for one in held if one[0].__class__ is not ev.StateSeen or one[0] is states[-1]]
        for event, lineage in held:
            self.receive(self.incarnation, event, lineage=lineage)

    def ask_to_leave(self) -> None:
        """The user wants to leave."""
        self.left = True
        self.receive(self.incarnation, ev.LeaveRequested())

    @property
    def now(self) -> float:
        """The time of this member's clock."""
        return self.clock_offset + self.clock_rate * self._world.clock.now

    def trace(self, what: str) -> None:
        """Add a line to the timeline."""
        if self._world.timeline is not None:
            self._world.note(self.name, what)

    def _tick(self, incarnation: int) -> None:
        if incarnation != self.incarnation or self.stop is not None:
            return

        self.receive(incarnation, ev.TimePassed())
        self._ticks += 1
        if not self.paused and self._ticks % SIZES_EVERY == 0:
            sizes = self.machine.size_report()
            check_sizes(self.name, sizes, packets=len(self.packets), members=self._world.script.clients)
        self._world.clock.after(TICK_SECONDS, self._tick, incarnation)

    # ------------------------------------------------------------------------------------ events in, actions out

    def receive(self, incarnation: int, event: ev.Event, *, lineage: int | None = None) -> None:
        """Handle an event of the process with this number, unless it is gone. lineage: of a state in the event."""
        if incarnation != self.incarnation or self.stop is not None:
            return

        if self.paused:
            self.counts["held by a pause"] += 1
            self._held.append((event, lineage))
            return

        self.lineage = self.lineage if lineage is None else lineage
        world = self._world
        world.handled += 1
        world.mark = hash((world.mark, world.clock.now, self.index, _NUMBERED[event.__class__]))
        try:
            actions = self.machine.handle(event, self.now)
        except Exception as error:
            world.raised(self, event, error)
            return

        for action in actions:
            self.carry_out(action)

    def join_command(self) -> Join:
        """The command with which this member joins."""
        return self.forged_join or join_of(self.index)
