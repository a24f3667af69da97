"""The coordinator's state on the server: commands change it, and each change is counted until it is on disk.

Pure. The `Hub` decides which commands are applied and who is informed. `version` counts changes, including those of members'
addresses, which are in the same document; `saved` is the newest version on disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from psyche_backend_tcp.server.data_key import with_data_key
from psyche_core.config.run_config import CoordinatorConfig
from psyche_core.coordinator.commands import Command, Event, UpdateConfig
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.coordinator.transitions import apply
from psyche_core.types import ClientState


@dataclass(frozen=True, slots=True)
class ClockTime:
    """A time. monotonic: seconds, for timeouts; unix: whole seconds since 1970, for the coordinator."""

    monotonic: float
    unix: int


class HostedState:
    """See the module. draw_seed, opening, data_key: see `Hub`."""

    def __init__(
        self,
        state: CoordinatorState,
        *,
        draw_seed: Callable[[], int],
        opening: CoordinatorConfig | None,
        data_key: bytes | None,
    ) -> None:
        self.current: CoordinatorState = state
        self.opening = opening
        self.version: int = 0
        self.saved: int = 0
        self._taken = 0
        self._draw_seed = draw_seed
        self._data_key = data_key
        self._changes: deque[tuple[int, CoordinatorState, tuple[Event, ...]]] = deque()

    def members(self) -> set[bytes]:
        """Return the signers of all clients that wait for an epoch or take part in the current one."""
        return self._waiting() | {client.id.signer for client in self.current.epoch.clients}

    def awaited(self) -> set[bytes]:
        """Return the signers of members that the coordinator waits for: those that wait for an epoch, and healthy ones."""
        clients = self.current.epoch.clients
        return self._waiting() | {client.id.signer for client in clients if client.state is ClientState.Healthy}

    def is_healthy(self, signer: bytes) -> bool:
        """Return whether a member takes part in the current epoch, and was neither dropped nor withdrawn."""
        return any(client.id.signer == signer and client.state is ClientState.Healthy for client in self.current.epoch.clients)

    def apply(self, command: Command, unix: int, *, data_key: bytes | None = None) -> None:
        """Apply a command. unix: seconds since 1970. data_key: written into the model afterwards. Raises CoordinatorError."""
        state, events = apply(self.current, command, unix, self._draw_seed())
        if data_key is not None:
            state = replace(state, model=with_data_key(state.model, data_key))
        if state == self.current and not events:
            return

        if self.opening is not None and state.run_state.active:
            state = replace(state, config=self.opening)
            self.opening = None
        self.current = state
        self.version += 1
        self._changes.append((self.version, state, events))

    def apply_owners(self, command: Command, unix: int) -> None:
        """Apply a command of the run's owner, whose model names the data server without a key, as the run's file does.

        The coordinator checks the model in this form; with the key it would be too long.
        """
        if isinstance(command, UpdateConfig) and self._data_key is not None:
            model = with_data_key(command.model or self.current.model, None)
            self.apply(replace(command, model=model), unix, data_key=self._data_key)
        else:
            self.apply(command, unix)

    def take_unsaved(self) -> int | None:
        """Return the version to write to disk now; None if the newest one was taken already."""
        if self._taken == self.version:
            return None

        self._taken = self.version
        return self.version

    def take_changes(self) -> list[tuple[CoordinatorState, tuple[Event, ...]]]:
        """Return saved states that differ from their predecessor, with their events, since the last call."""
        changes = []
        while self._changes and self._changes[0][0] <= self.saved:
            _, state, events = self._changes.popleft()
            changes.append((state, events))
        return changes

    def _waiting(self) -> set[bytes]:
        return {identity.signer for identity in self.current.pending}
