"""A coordinator inside this process with what its clients need: a server like any other, but without a listening socket.

Its clients share one in-process network. Whoever has the object can take part, so there are no keys to check and no allow-list.
Nothing is stored on disk: a run that must survive its process needs a backend with a server, such as tcp.
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
    """Make it in the event loop that uses it. Raises ConfigError for what it cannot do: keep state, serve data, check keys."""

    def __init__(self, context: ServerContext) -> None:
        asked = {"state_dir": context.state_dir, "allow_list": context.allow_list, "data": context.data}
        for name, value in asked.items():
            if value is not None:
                message = f"a coordinator inside one process has no {name}; host it with the backend tcp to have one"
                raise ConfigError(message)

        self._tick_seconds = context.tick_seconds
        self._coordinator = MemoryCoordinator(context.state, on_event=context.on_event)
        self._network = MemoryNetwork()

    @property
    def address(self) -> str:
        """Words for people: there is nothing to connect to."""
        return ADDRESS

    @property
    def state(self) -> CoordinatorState:
        """The state now."""
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
        """Until the run is finished."""
        await self._coordinator.run(tick_seconds=self._tick_seconds)

    async def aclose(self) -> None:
        """Nothing is held."""
