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

OWNER = 8.0
"""Virtual seconds until the owner answers."""

STANDS = 60.0
"""Virtual seconds after which the owner looks whether the run goes on with the stored checkpoint."""


class Owner:
    """gave_up: the run cannot go on, because no disk and no stored checkpoint has the model; whoever owns it ends it."""

    def __init__(self, world: World, *, calm_after: float) -> None:
        self.gave_up: bool = False
        self._world = world
        self._calm_after = calm_after
        self._decides = False
        self._asked = 0

    def looks(self, state: CoordinatorState) -> None:
        """The coordinator's phase or progress has changed."""
        if state.model_lost and not self._decides:
            self._world.counts["model lost"] += 1
            self._decides = True
            self._world.clock.after(OWNER, self._decide)

    def _decide(self) -> None:
        """Wait for members to return, resume once more, then use the stored checkpoint."""
        server, clock = self._world.server, self._world.clock
        if not server.up or clock.now < self._calm_after:
            clock.after(1.0, self._decide)
            return

        self._decides = False
        if server.state.model_lost:
            self._asked += 1
            server.take(Resume(from_checkpoint=self._asked > 1))
            clock.after(STANDS, self._look_again)

    def _look_again(self) -> None:
        """Nobody could begin with the stored checkpoint: name another one that has the signed digest, if there is any.

        A checkpoint's location is the word of the member that stored it, which may be a liar.
        """
        server, state = self._world.server, self._world.server.state
        waits = state.run_state in (RunState.WaitingForMembers, RunState.Warmup)
        if not (server.up and waits and state.from_checkpoint and state.epoch.unplayed):
            return

        sound = next((name for name in self._world.stored if self._is_sound(name, state)), None)
        if sound is None:
            self.gave_up = True
            return

        self._world.counts["owner named another checkpoint"] += 1
        language_model = state.model.LLM.model_copy(update={"checkpoint": Choice("Hub", {"repo_id": sound})})
        server.take(Pause())
        server.take(UpdateConfig(model=state.model.model_copy(update={"LLM": language_model})))
        server.take(Resume())

    def _is_sound(self, name: str, state: CoordinatorState) -> bool:
        masters, step = self._world.stored[name]
        replica = self._world.new_replica()
        replica.restore(masters)
        return step == state.stored.step and replica.digest() == state.stored.digest
