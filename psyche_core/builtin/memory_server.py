"""A coordinator inside this process, with the backend and transport for its clients. It has no listening socket.

Its clients share one in-process network. Every client that has the object can take part, so no keys are checked and there is no
allow-list. Nothing is stored on disk: a run that must survive its process needs a backend with a server, such as tcp.
"""

from __future__ import annotations

from psyche_core.builtin.memory_backend import MemoryCoordinator
from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.coordinator.commands import Command
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import ConfigError
from psyche_core.hookspecs import BackendRegistration, ServerContext, TransportRegistration
from psyche_core.interfaces.backend import BackendServer

ADDRESS = "in this process"


class MemoryServer(BackendServer):
    """A hosted coordinator for clients in this process.

    Create it in the event loop that uses it. Raises ConfigError for settings that it does not support: saving state, serving
    data, checking keys.
    """

    def __init__(self, context: ServerContext) -> None:
        asked = {"state_dir": context.state_dir, "allow_list": context.allow_list, "data": context.data}
        for name, value in asked.items():
            if value is not None:
                message = f"a coordinator inside one process has no {name}; use the backend tcp for that"
                raise ConfigError(message)

        self._tick_seconds = context.tick_seconds
        self._coordinator = MemoryCoordinator(context.state, on_event=context.on_event)
        self._network = MemoryNetwork()

    @property
    def address(self) -> str:
        """A description for display; clients cannot connect to it."""
        return ADDRESS

    @property
    def state(self) -> CoordinatorState:
        """The current state."""
        return self._coordinator.state

    def submit(self, command: Command) -> None:
        """Apply a command of the run's owner, such as Pause. Raises CoordinatorError."""
        self._coordinator.submit(command)

    def backend(self) -> BackendRegistration:
        """The backend of this coordinator's clients."""
        return BackendRegistration(
            name="memory",
            summary="this process's coordinator",
            create=lambda context: self._coordinator.backend(context.key),
            needs_address=False,
            route=lambda _: "",
        )

    def transport(self) -> TransportRegistration:
        """The transport between this coordinator's clients."""
        return TransportRegistration(
            name="memory",
            summary="between this process's clients",
            create=lambda context: MemoryTransport(self._network, context.key.public),
        )

    async def serve(self) -> None:
        """Tick until the run is finished."""
        await self._coordinator.run(tick_seconds=self._tick_seconds)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""
