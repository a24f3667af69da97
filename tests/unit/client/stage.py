"""The simulator's world with the test as its director.

All of the simulator's invariants hold here too: a test that breaks one ends with `InvariantViolation`. Set `liar` on a member of
which the test requires none of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import Any

from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.coordinator import commands
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.simulator.script import Fault, Script, Shape
from psyche_core.simulator.world import CHECK_EVERY, World
from psyche_core.types import ClientState, NodeIdentity, RunState
from psyche_core.wire.messages import Message
from stage_member import Member

__all__ = ["Member", "Stage"]


class Stage(World):
    """A world of `clients` members, and `late` ones that come when told to. Each callable may be replaced at any time.

    config: fields of Shape, and total_steps. stores, sourceless: members with a store, and without the model's description.
    """

    member = Member

    def __init__(
        self,
        clients: int = 3,
        *,
        late: int = 0,
        seed: int = 0,
        stores: Collection[int] = (),
        sourceless: Collection[int] = (),
        faults: tuple[Fault, ...] = (),
        total_steps: int = 9,
        **config: Any,
    ) -> None:
        self.late, self.stores, self.sourceless = range(clients, clients + late), stores, sourceless
        self.random = random.Random(f"{seed}/stage")
        self.loses_message: Callable[[Member, Member, Message], bool] = lambda source, target, message: False
        self.loses_payload: Callable[[Member, Member, bytes], bool] = lambda source, target, payload_hash: False
        self.invalid: Callable[[Member, bytes], bool] = lambda member, payload_hash: False
        self.breaks: Callable[[Member, act.Work], ev.WorkDone | None] = lambda member, work: None
        self.train_delay: Callable[[Member], float] = lambda member: self.random.uniform(0.2, 0.6)
        self.store_breaks: Callable[[Member], bool] = lambda member: False
        self.store_seconds, self.close_seconds = 0.1, 0.005
        self.reminds = True
        self.stores_begun: list[tuple[str, int]] = []
        self.commands: list[commands.Command] = []
        self.refused: list[tuple[commands.Command, str]] = []
        self.coordinator_events: list[commands.Event] = []
        self.epoch_clients: dict[int, list[NodeIdentity]] = {}
        least = config.pop("min_clients", min(clients, 2))
        times = {"warmup_time": 20, "cooldown_time": 2, "max_round_train_time": 10, "extra_time": 2, "epoch_time": 400}
        shape = Shape(**{"min_clients": least, "init_min_clients": least, "rounds_per_epoch": 3, **times, **config})
        super().__init__(Script(seed=seed, clients=clients + late, rounds=total_steps, shape=shape, faults=faults))
        self._check = self.coordinator.changed
        self.coordinator.changed = self._note  # type: ignore[method-assign]  # listens, and passes everything on
        self.coordinator._no_excuse = False  # whatever the test does happens to honest members
        self._due = 0.0

    def _note(self, old: CoordinatorState, new: CoordinatorState, command: commands.Command, **others: Any) -> None:
        self.commands.append(command)
        self.coordinator_events.extend(others["events"])
        if new.run_state is RunState.Warmup:
            self.epoch_clients[new.progress.epoch] = [client.id for client in new.epoch.clients]
        self._check(old, new, command, **others)

    @property
    def members(self) -> list[Member]:
        """All of them."""
        return self.nodes  # type: ignore[return-value]  # of this class

    @property
    def state(self) -> CoordinatorState:
        """The coordinator's."""
        return self.server.state

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self.clock.now

    def takes(self, member: Member, work: act.Work) -> float | None:
        """Seconds for a piece of work; None for whatever the simulator draws."""
        match work:
            case act.Train():
                return self.train_delay(member)
            case act.CloseEpoch():
                return self.close_seconds
        return None

    def run(self, *, until: Callable[[], bool] | None = None, limit: float = 600.0) -> None:  # type: ignore[override]
        """Let time pass until everybody who is here has stopped (or `until`); fails after `limit` virtual seconds."""
        end = self.now + limit
        done = until or (lambda: all(member.stop is not None for member in self.survivors()))
        while not done():
            self.clock.step()
            assert self.now < end, f"no end after {limit} virtual seconds in {self.state.run_state.name}, {self.state.progress}"
            if self.now >= self._due:
                self._due = self.now + CHECK_EVERY
                self._check_progress()
        if until is None:
            self._check_end()

    def arrive(self) -> Member:
        """A late member comes now."""
        member = next(self.members[index] for index in self.late if self.members[index].away)
        member.away = False
        member.boot()
        return member

    def kill(self, member: Member) -> None:
        """The process is gone; nobody is told."""
        member.away = True
        member.crash()

    def restart(self, member: Member) -> None:
        """The process dies and comes back at once, with nothing but its key."""
        member.crash()
        member.boot()

    def settled(self) -> list[commands.RoundSettled]:
        """The coordinator's decisions about rounds."""
        return [event for event in self.coordinator_events if isinstance(event, commands.RoundSettled)]

    def survivors(self) -> list[Member]:
        """Members that are here."""
        return [member for member in self.members if not member.away]


def with_a_slow_member_dropped(stage: type[Stage] = Stage) -> tuple[Stage, Member]:
    """A run of four in which a member was so slow for a while that it was dropped, and its end. Returns it and that member."""
    world = stage(4, total_steps=60, rounds_per_epoch=60)
    slow = world.members[2]
    world.run(until=lambda: world.state.progress.step == 4)
    world.train_delay = lambda member: 24.0 if member is slow else 0.4
    world.run(until=lambda: any(client.state is ClientState.Dropped for client in world.state.epoch.clients))
    world.train_delay = lambda member: 0.4
    world.run(limit=2000)
    return world, slow
