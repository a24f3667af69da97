"""A run's coordinator inside a program: for this process only, or as a server that other machines can reach."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from psyche_core.builtin.memory_server import MemoryServer
from psyche_core.coordinator.commands import Command, Event, Pause, Resume
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import BackendError, ConfigError
from psyche_core.hookspecs import ServerContext
from psyche_core.interfaces.backend import BackendServer, OwnerControl
from psyche_core.plugins import PluginRegistry, discover_and_tell
from psyche_core.sdk.address import Address, HostedAddress
from psyche_core.sdk.arguments.checks import folder_of, port_of, text_of
from psyche_core.sdk.event_log import EventLog
from psyche_core.sdk.run_config import RunConfig
from psyche_core.sdk.run_events import MemberLeft, RunEvent, run_events_between
from psyche_core.storage.folder_lock import locked_folder
from psyche_core.types import RunState
from psyche_core.wire.signing import SecretKey

_HOST = "127.0.0.1"

OnChange = Callable[[CoordinatorState, tuple[Event, ...]], None]


class Coordinator:
    """Hosts the coordinator of one run while its `async with` block lasts. It moves no weights and loads no torch.

    Example:
        async with psyche.Coordinator(run) as coordinator:
            print(coordinator.address)
            await coordinator.wait()

    Raises at once TypeError for arguments of the wrong type and ConfigError for unusable values. Raises on entering: ConfigError
    for what the backend does not support, PluginError for a backend that is missing or has no server, UserError for a port that
    cannot be used. Guaranteed: leaving the block stops the coordinator and frees its ports. Not guaranteed: that the run is
    finished then; see `wait`. A coordinator belongs to one event loop and is used once; it is not thread-safe.

    Args:
        run: the run to host.
        backend: "memory", for clients in this event loop, or the name of a backend plugin with a server, such as "tcp".
        host: where that server listens; port 0 picks a free one.
        port: where that server listens; port 0 picks a free one.
        state_dir: folder where one server at a time saves the state; a coordinator started again with the same folder continues
            the run (tcp; "memory" saves nothing).
        key: the server's identity; a new one for each start if not given.
        on_change: called from the event loop with each new state and the events that led to it; must not block or raise.
        plugins: the registry to load plugins from; the installed plugins if not given.
    """

    def __init__(
        self,
        run: RunConfig,
        *,
        backend: str = "memory",
        host: str = "127.0.0.1",
        port: int = 0,
        state_dir: Path | str | None = None,
        key: SecretKey | None = None,
        on_change: OnChange | None = None,
        plugins: PluginRegistry | None = None,
    ) -> None:
        what: object = run
        if not isinstance(what, RunConfig):
            message = f"Coordinator takes a RunConfig, got a {type(what).__name__}; make one with psyche.load_run(path)"
            raise TypeError(message)

        text_of("backend", backend, example="tcp")
        text_of("host", host, example=_HOST)
        port_of("port", port)
        if backend == "memory" and (host, port) != (_HOST, 0):
            name, value = ("port", port) if port != 0 else ("host", host)
            message = f"a coordinator inside one process has no {name}, got {value!r}; host it with backend='tcp' to have one"
            raise ConfigError(message)

        self._run = run
        self._backend = backend
        self._host, self._port = host, port
        self._state_dir = folder_of("state_dir", state_dir)
        self._key = key
        self._on_change = on_change
        self._plugins = plugins
        self._server: BackendServer | None = None
        self._tasks: TaskGroup | None = None
        self._stack = AsyncExitStack()
        self._ended: anyio.Event | None = None
        self._failure: Exception | None = None
        self._log: EventLog[RunEvent] | None = None
        self._reported_state: CoordinatorState | None = None
        self._withdrawn: dict[bytes, str] = {}

    @property
    def address(self) -> Address:
        """The address for clients. Raises RuntimeError outside the block."""
        server = self._hosted()
        inside = server if isinstance(server, MemoryServer) else None
        return HostedAddress(
            run_id=self._run.run_id,
            backend=self._backend,
            location=server.address,
            base=self._run.base,
            server=inside,
            state=lambda: server.state,
        )

    @property
    def state(self) -> CoordinatorState:
        """The run's current state: phase, step, members. Immutable. Raises RuntimeError outside the block."""
        return self._hosted().state

    @property
    def failure(self) -> Exception | None:
        """The error that stopped the server; None if there is none."""
        return self._failure

    @property
    def log(self) -> EventLog[RunEvent]:
        """The events with their numbers, for code that forwards them; see `events`. Raises RuntimeError before the block."""
        self._hosted()
        assert self._log is not None
        return self._log

    def pause(self) -> None:
        """Pause the run for all members: the epoch ends early with all its results applied, then all members wait.

        This is an owner's command. Raises CoordinatorError if the run's phase does not allow it, ConfigError for a backend that
        does not accept owner's commands from this process.
        """
        self._submit(Pause())

    def resume(self) -> None:
        """Continue a paused run. Raises like `pause`."""
        self._submit(Resume())

    async def events(self) -> AsyncIterator[RunEvent]:
        """All events from the start until the run is finished or the block is left.

        Their classes are in `psyche_core.run_events`. The first events describe the members and the phase of the first state.
        Each call has its own position in the stream. The last 4096 events are kept: a slow reader misses older ones and delays
        nobody. Cancel-safe. After the last event, raises the error that stopped the server, if any. Raises RuntimeError before
        the block.
        """
        async for event in self.log.read():
            yield event
        if self._failure is not None:
            raise self._failure

    async def wait(self) -> CoordinatorState:
        """Wait until the run is finished and its members know it; return the last state. Cancel-safe.

        Raises BackendError if the server stopped before that, and any error that the server raised.
        """
        server = self._hosted()
        assert self._ended is not None
        await self._ended.wait()
        if self._failure is not None:
            raise self._failure
        if server.state.run_state is not RunState.Finished:
            message = (
                f"the coordinator stopped in {server.state.run_state.name}, before the run was finished; "
                "with a folder for its state it continues when it is started again"
            )
            raise BackendError(message)

        return server.state

    async def __aenter__(self) -> Self:
        if self._ended is not None:
            message = "a Coordinator is used once; make a new one for another start"
            raise RuntimeError(message)

        self._ended = anyio.Event()
        self._log = EventLog()
        async with AsyncExitStack() as stack:
            server = await self._make()
            if self._state_dir is not None:
                stack.enter_context(locked_folder(self._state_dir, argument="state_dir"))
            self._server = await stack.enter_async_context(server)
            self._note(server.state, ())
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            self._tasks.start_soon(self._serve)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,  # Python's signature
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()
        await self._stack.__aexit__(None, None, None)  # so that the block's own exception is not wrapped in a group

    async def _make(self) -> BackendServer:
        context = ServerContext(
            state=self._run.first_state(),
            host=self._host,
            port=self._port,
            key=self._key,
            state_dir=self._state_dir,
            on_event=self._changed,
            on_withdrawn=self._withdrawn.__setitem__,
        )
        if self._backend == "memory":
            return MemoryServer(context)

        plugins = self._plugins
        if plugins is None:
            plugins = await anyio.to_thread.run_sync(discover_and_tell)
        registration = await anyio.to_thread.run_sync(plugins.load, "backend", self._backend)
        create = registration.create_server
        if create is None:
            message = f"the backend {self._backend} has no server to host; its clients need no Coordinator"
            raise ConfigError(message)
        made: BackendServer = create(context)
        return made

    async def _serve(self) -> None:
        assert self._server is not None
        assert self._ended is not None
        assert self._log is not None
        try:
            await self._server.serve()
        except Exception as error:  # raised by `wait` and `events`; must not cancel the caller's block
            self._failure = error
        finally:
            self._log.close()
            self._ended.set()

    def _changed(self, state: CoordinatorState, events: tuple[Event, ...]) -> None:
        self._note(state, events)
        if self._on_change is not None:
            self._on_change(state, events)

    def _note(self, state: CoordinatorState, events: tuple[Event, ...]) -> None:
        assert self._log is not None
        for event in run_events_between(self._reported_state, state, events, withdrawn=self._withdrawn):
            self._log.put(event)
            if isinstance(event, MemberLeft):
                self._withdrawn.pop(bytes.fromhex(event.member), None)
        self._reported_state = state

    def _hosted(self) -> BackendServer:
        if self._server is None:
            message = "the coordinator has not started; use it inside `async with psyche.Coordinator(run) as coordinator:`"
            raise RuntimeError(message)
        return self._server

    def _submit(self, command: Command) -> None:
        server = self._hosted()
        if not isinstance(server, OwnerControl):
            message = (
                f"the backend {self._backend} does not accept {type(command).__name__} from this process; use the "
                "backend's own commands"
            )
            raise ConfigError(message)
        server.submit(command)
