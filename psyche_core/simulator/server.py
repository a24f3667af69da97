"""The simulated server: the real coordinator with a clock of whole seconds, a disk that keeps every state, and downtimes.

The backend around it is simulated: commands arrive late, twice or not at all. States are merged: each member reads the newest
when its turn comes. When a member connects again its join is repeated, as the TCP backend does. A member may follow through a
provider that lags or fails (`slow-rpc`, `failing-rpc`); by contract it never shows an older state after a newer one. The server
may come back with an older state of its own (`older-state`).
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from psyche_core.client.machine.events import CommandAnswered, StateSeen
from psyche_core.coordinator import apply
from psyche_core.coordinator.commands import Command, Join, Tick, Withdraw
from psyche_core.coordinator.serialization import from_plain, to_plain
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import CoordinatorError
from psyche_core.simulator.clock import Clock
from psyche_core.simulator.invariants.coordinator_checker import CoordinatorChecker
from psyche_core.simulator.network import Network
from psyche_core.simulator.run_result import InvariantViolation
from psyche_core.simulator.sample_tracker import SampleTracker
from psyche_core.types import RunState
from psyche_core.wire.codec import decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from psyche_core.simulator.members.process import Process

START_TIME = 1_800_000_000
"""The unix second at which every simulated run begins."""

TICK = 1.0
ANSWER_TIMEOUT = 10.0
ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class PastState:
    """A past state, its time in virtual seconds, and its tracker where that is needed."""

    time: float
    version: int
    lineage: int
    seen: StateSeen
    tracker: SampleTracker | None


class WentBack(Protocol):
    """Called when the coordinator has returned to an older state or step: what follows has a new lineage.

    of: lineage of the state that it continues from; after two restores this need not be the last one.
    """

    def __call__(self, lineage: int, before: CoordinatorState, state: CoordinatorState, *, of: int) -> None:
        """before, state: the one that is left, and the one that the coordinator continues from."""


class Server:
    """See the module. withdraw_after: seconds until a lost member is withdrawn, 0 for never.

    remember: seconds for which older states are kept, 0 for none; with_tracker: whether the server may continue from them.
    lineage: grows with each return to an older state or step; what was decided after it is forgotten.
    """

    def __init__(
        self,
        state: CoordinatorState,
        clock: Clock,
        network: Network,
        *,
        rng: random.Random,
        watch: CoordinatorChecker,
        counts: Counter[str],
        sealed: bool,
        withdraw_after: float,
        remember: float = 0.0,
        with_tracker: bool = False,
    ) -> None:
        self.lineage: int = 0
        self.went_back: WentBack | None = None
        self.changed: Callable[[CoordinatorState, float], None] | None = None
        self._history: deque[PastState] = deque()
        self._remember = remember
        self._with_tracker = with_tracker
        self.state: CoordinatorState = state
        self.up: bool = True
        self.version: int = 0
        self._clock = clock
        self._network = network
        self._rng = rng
        self._watch = watch
        self._counts = counts
        self._sealed = sealed
        self._withdraw_after = withdraw_after
        self._last_seen = (-1, StateSeen(state))
        self._incarnation = 0
        self._lost_since: dict[int, float] = {}
        self._went_down = 0.0
        clock.after(rng.random(), self._tick, 0)

    @property
    def now(self) -> int:
        """Unix seconds."""
        return START_TIME + int(self._clock.now)

    # ------------------------------------------------------------------------------------ life

    def crash(self) -> None:
        """Go down; every state is on disk and stays there."""
        self.up = False
        self._went_down = self._clock.now
        self._incarnation += 1
        self._counts["server-restart"] += 1

    def restart(self, *, older: float = 0.0) -> None:
        """Come up with the state on disk, or one from `older` seconds before; members reconnect one by one."""
        if older:
            self._restore_older(older)
        self.up = True
        self._clock.after(TICK, self._tick, self._incarnation)
        for node in self._network.nodes:
            self.reconnect(node)

    def _restore_older(self, seconds: float) -> None:
        """Continue from a state that long before the crash, or the oldest kept; later states are lost."""
        wanted = self._went_down - seconds
        kept = next(
            (item for item in reversed(self._history) if item.time <= wanted), self._history[0] if self._history else None
        )
        if kept is None or kept.tracker is None or kept.seen.state is self.state or self.finished:
            return

        self._counts["older-state"] += 1
        before, self.state = self.state, kept.seen.state
        self.version += 1
        self.lineage += 1
        self._watch.restored(self.state, kept.tracker)
        if self.went_back is not None:
            self.went_back(self.lineage, before, self.state, of=kept.lineage)
        self._record_state()

    def _record_state(self) -> None:
        """Keep the current state, to show it later as an older one."""
        tracker = self._watch.sample_tracker.copy() if self._with_tracker else None
        history = self._history
        history.append(PastState(self._clock.now, self.version, self.lineage, self._seen(), tracker))
        while len(history) > 2 and history[1].time < self._clock.now - self._remember:
            history.popleft()

    def reconnect(self, node: Process) -> None:
        """A member's connection returns after a moment: it sees the newest state, and its join is repeated."""
        self._clock.after(0.2 + self._rng.random(), self._connected, node, node.incarnation)

    def _connected(self, node: Process, incarnation: int) -> None:
        if node.incarnation == incarnation and node.running and self.up:
            if node.joined:
                self.submit(node, node.join_command())
            self.notify(node)

    def _tick(self, incarnation: int) -> None:
        if not self.up or incarnation != self._incarnation:
            return

        if not self.state.run_state.halted:
            self.apply(Tick())
        if self._withdraw_after:
            self._withdraw_lost()
        self._clock.after(TICK, self._tick, incarnation)

    def _withdraw_lost(self) -> None:
        for node in self._network.nodes:
            if node.running and not self._network.is_cut(node.index, -1):
                self._lost_since.pop(node.index, None)
            elif self._clock.now - self._lost_since.setdefault(node.index, self._clock.now) >= self._withdraw_after:
                self._lost_since[node.index] = self._clock.now
                self.apply(Withdraw(node.identity))

    # ------------------------------------------------------------------------------------ commands

    def submit(self, node: Process, command: Command, attempt: int = 1) -> None:
        """A node sends a command."""
        seconds = self._network.to_server(node)
        lost = seconds is None or not self.up or self._network.hits("drop", node.index, -1) or self._rpc_fails(node)
        if lost or seconds is None:
            self._clock.after(ANSWER_TIMEOUT, self._submit_again, node, node.incarnation, command, attempt)
            return

        self._clock.after(seconds, self._arrive, node, node.incarnation, command, attempt, self._incarnation)
        if self._network.hits("duplicate", node.index, -1):
            self._clock.after(2.0 * seconds, self._arrive, node, node.incarnation, command, ATTEMPTS, self._incarnation)

    def _submit_again(self, node: Process, incarnation: int, command: Command, attempt: int) -> None:
        if node.incarnation == incarnation and node.running and attempt < ATTEMPTS:
            self._counts["command repeated"] += 1
            self.submit(node, command, attempt + 1)

    def _arrive(self, node: Process, incarnation: int, command: Command, attempt: int, own_incarnation: int) -> None:
        if not self.up or own_incarnation != self._incarnation:
            self._clock.after(ANSWER_TIMEOUT, self._submit_again, node, incarnation, command, attempt)
            return

        code = self.apply(command)
        seconds = self._network.from_server(node)
        if seconds is None:
            self._clock.after(ANSWER_TIMEOUT, self._submit_again, node, incarnation, command, attempt)
        elif not isinstance(command, Join):
            self._clock.after(seconds, node.receive, incarnation, CommandAnswered(command, code))

    def apply(self, command: Command) -> str | None:
        """Apply a command to the state; returns the code of a refusal."""
        before = self.state
        try:
            state, events = apply(before, command, self.now, self._rng.getrandbits(64))
        except CoordinatorError as error:
            self._counts[f"refused {error.name}"] += 1
            return error.name
        except Exception as error:
            raise InvariantViolation("nothing-raises", f"apply({command!r:.300}) raised {error!r}") from error

        if state is not before:
            self.state = state
            self.version += 1
            self._watch.changed(before, state, command, events=events, now=self.now)
            if state.generation != before.generation:
                self.lineage += 1
                if self.went_back is not None:
                    self.went_back(self.lineage, before, state, of=self.lineage - 1)
            if self.changed is not None and (state.progress is not before.progress or state.run_state is not before.run_state):
                self.changed(state, self._clock.now)
            if self._remember:
                self._record_state()
            for node in self._network.nodes:
                self.notify(node)
        return None

    # ------------------------------------------------------------------------------------ states

    def notify(self, node: Process) -> None:
        """Tell a node that there is a newer state; it reads the newest when its turn comes."""
        if node.state_due or not node.running:
            return

        seconds = self._network.from_server(node)
        if seconds is not None and self.up:
            node.state_due = True
            self._clock.after(seconds, self._deliver, node, node.incarnation, self._incarnation)

    def _deliver(self, node: Process, incarnation: int, own_incarnation: int) -> None:
        if node.incarnation != incarnation:
            return

        node.state_due = False
        if own_incarnation != self._incarnation:
            self.notify(node)
            return
        if node.version == self.version or self._network.is_cut(-1, node.index):
            return

        lag = max(node.rpc_lags, default=0.0)
        if lag or self._rpc_fails(node):
            self._deliver_stale(node, lag)
            return

        node.version = self.version
        node.receive(incarnation, self._seen(), lineage=self.lineage)

    def _rpc_fails(self, node: Process) -> bool:
        """Whether a call of the member's provider fails."""
        failing = bool(node.rpc_fails) and self._rng.random() < max(node.rpc_fails)
        if failing:
            self._counts["failing-rpc"] += 1
        return failing

    def _deliver_stale(self, node: Process, lag: float) -> None:
        """A provider shows nothing or a state that is behind, but never one older than it showed before."""
        if lag:
            self._counts["slow-rpc"] += 1
            wanted = self._clock.now - lag * (0.5 + self._rng.random())
            kept = next((item for item in reversed(self._history) if item.time <= wanted), None)
            if kept is not None and kept.version > node.version:
                node.version = kept.version
                node.receive(node.incarnation, kept.seen, lineage=kept.lineage)
        node.state_due = True  # it asks again
        self._clock.after(0.3 + self._rng.random(), self._deliver, node, node.incarnation, self._incarnation)

    def _seen(self) -> StateSeen:
        if self._last_seen[0] != self.version:
            state = self.state
            if self._sealed:
                state = from_plain(decode(encode(to_plain(state)), max_bytes=2**24, max_depth=16))
                if state != self.state:
                    raise InvariantViolation("states-travel-whole", "a state read back from its plain form is another one")
            self._last_seen = (self.version, StateSeen(state))
        return self._last_seen[1]

    @property
    def finished(self) -> bool:
        """Whether the run is over."""
        return self.state.run_state is RunState.Finished
