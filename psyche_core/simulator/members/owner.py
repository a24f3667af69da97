"""What the run's owner does in a simulated run: resumes it, and decides what happens when its model is lost.

The owner answers after a while, and again and again while the server is down. Pauses of the script are in `faults`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psyche_core.config.run_config import Choice
from psyche_core.coordinator.commands import Pause, Resume, UpdateConfig
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.types import RunState

if TYPE_CHECKING:
    from psyche_core.simulator.world import World

OWNER_DELAY = 8.0
"""Virtual seconds until the owner answers."""

CHECKPOINT_TIMEOUT = 60.0
"""Virtual seconds after which the owner looks whether the run goes on with the stored checkpoint."""


class Owner:
    """gave_up: the run cannot go on, because no disk and no stored checkpoint has the model; whoever owns it ends it."""

    def __init__(self, world: World, *, excused_until: float) -> None:
        self.gave_up: bool = False
        self._world = world
        self._excused_until = excused_until
        self._deciding = False
        self._asked = 0

    def state_changed(self, state: CoordinatorState) -> None:
        """The coordinator's phase or progress has changed."""
        if state.model_lost and not self._deciding:
            self._world.counts["model lost"] += 1
            self._deciding = True
            self._world.clock.after(OWNER_DELAY, self._decide)

    def _decide(self) -> None:
        """Wait for members to return, resume once more, then use the stored checkpoint."""
        server, clock = self._world.server, self._world.clock
        if not server.up or clock.now < self._excused_until:
            clock.after(1.0, self._decide)
            return

        self._deciding = False
        if server.state.model_lost:
            self._asked += 1
            server.apply(Resume(from_checkpoint=self._asked > 1))
            clock.after(CHECKPOINT_TIMEOUT, self._check_restart)

    def _check_restart(self) -> None:
        """Nobody could begin with the stored checkpoint: name another one that has the signed digest, if there is any.

        A checkpoint's location is the word of the member that stored it, which may be a liar.
        """
        server, state = self._world.server, self._world.server.state
        waits = state.run_state in (RunState.WaitingForMembers, RunState.Warmup)
        if not (server.up and waits and state.from_checkpoint and state.epoch.unplayed):
            return

        valid = next((name for name in self._world.stored if self._is_valid(name, state)), None)
        if valid is None:
            self.gave_up = True
            return

        self._world.counts["owner named another checkpoint"] += 1
        language_model = state.model.LLM.model_copy(update={"checkpoint": Choice("Hub", {"repo_id": valid})})
        server.apply(Pause())
        server.apply(UpdateConfig(model=state.model.model_copy(update={"LLM": language_model})))
        server.apply(Resume())

    def _is_valid(self, name: str, state: CoordinatorState) -> bool:
        masters, step = self._world.stored[name]
        replica = self._world.new_replica()
        replica.restore(masters)
        return step == state.stored.step and replica.digest() == state.stored.digest
