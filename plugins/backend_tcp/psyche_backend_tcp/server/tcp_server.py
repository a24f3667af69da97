"""The coordinator server: ports, clock, randomness and disk around the `Hub`, which makes the decisions.

`client_sessions` reads and writes connections.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import anyio
import anyio.to_thread

from psyche_backend_tcp.connections.allow_list import AllowList
from psyche_backend_tcp.connections.listener import Listener
from psyche_backend_tcp.connections.login import COORDINATOR
from psyche_backend_tcp.data.server import DataServer
from psyche_backend_tcp.limits import Limits
from psyche_backend_tcp.server.client_sessions import FAREWELL_SECONDS, ClientSessions
from psyche_backend_tcp.server.hosted_state import ClockTime
from psyche_backend_tcp.server.hub import Hub, PendingSave
from psyche_backend_tcp.server.initial_state import InitialState, begin
from psyche_backend_tcp.server.state_store import StateStore
from psyche_core.coordinator.commands import Command
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.coordinator_clock import CoordinatorClock
from psyche_core.errors import BackendError, UserError
from psyche_core.hookspecs import LaterKnown, ServerContext
from psyche_core.interfaces.backend import BackendServer
from psyche_core.telemetry.repeated_problem import RepeatedProblem
from psyche_core.wire.signing import SecretKey

logger: logging.Logger = logging.getLogger("psyche.backend.tcp")

_SAVE_AGAIN_SECONDS = 1.0
_ALLOW_LIST_SECONDS = 1.0


class TcpServer(BackendServer):
    """Hosts a run. Entering reads the saved state and binds the ports; `serve` runs it.

    limits: timeouts and bounds. wall: unix seconds, read when the server is entered; the coordinator's time advances from there,
    or from the saved state's newest time, with the monotonic clock. clock: the coordinator's time in unix seconds instead, for
    tests and simulations; the timeouts of connections use real time.
    """

    def __init__(
        self,
        context: ServerContext,
        *,
        limits: Limits | None = None,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._context = context
        self._limits = limits or Limits(reconnect_seconds=context.reconnect_seconds)
        self._wall = wall
        self._given_clock = clock
        self._clock = clock or CoordinatorClock(context.state, wall=wall)
        self._key = context.key or SecretKey.generate()
        self._store: StateStore | None = None
        self._kept_later: LaterKnown | None = None
        self._allow_list: AllowList | None = None
        self._listener: Listener | None = None
        self._data: DataServer | None = None
        self._unsaved = anyio.Event()
        self._saving = anyio.Lock()
        self._writing: PendingSave | None = None
        self._resumed = False
        self._expelled: set[bytes] = set()
        self._serving: anyio.CancelScope | None = None
        self._hub, self._sessions = self._make_hub(InitialState(context.state, context.opening))

    async def __aenter__(self) -> Self:
        """Read the saved state, and bind the ports.

        Raises UserError when a port cannot be used or the saved state or the allow-list cannot be read, ConfigError when the
        saved state has another configuration, DataError when the data cannot be read.
        """
        context = self._context
        run_id = context.state.run_id
        if context.allow_list is not None:
            self._allow_list = await anyio.to_thread.run_sync(AllowList, context.allow_list)
        beginning = await anyio.to_thread.run_sync(self._begin)
        self._resumed = beginning.resumed
        self._clock = self._given_clock or CoordinatorClock(beginning.state, wall=self._wall)
        self._hub, self._sessions = self._make_hub(beginning)
        self._listener = await Listener.bind(
            context.host,
            context.port,
            service=COORDINATOR,
            run_id=run_id,
            key=self._key,
            limits=self._limits,
            allowed=self._may,
            members=self._hub.members,
            welcome=self._sessions.check_key,
        )
        try:
            if context.data is not None:
                self._data = await DataServer.bind(
                    context.data,
                    context.host,
                    context.data_port or 0,
                    run_id=run_id,
                    key=self._key,
                    limits=self._limits,
                    state=lambda: self._hub.state,
                    allowed=self._may,
                    members=self._hub.members,
                )
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._listener.aclose()
            raise

        return self

    @property
    def address(self) -> str:
        """The address for clients, with our key: `host:port#KEY`."""
        return self._bound().address

    @property
    def data_address(self) -> str | None:
        """The address of the data server, with our key; None when there is none."""
        return self._data.address if self._data is not None else None

    @property
    def state(self) -> CoordinatorState:
        """The current state."""
        return self._hub.state

    @property
    def connected(self) -> int:
        """Number of logged-in connections to the coordinator."""
        return self._hub.connected

    @property
    def resumed(self) -> bool:
        """Whether the run continues from a saved state."""
        return self._resumed

    @property
    def continued_from(self) -> Path | None:
        """File with the state from which the run continues; None for a run that begins."""
        return self._store.loaded if self._store is not None and self._resumed else None

    def submit(self, command: Command) -> None:
        """Apply a command of the run's owner, such as Pause. Raises CoordinatorError."""
        try:
            self._hub.submit(command, self._now())
        finally:
            self._notify()

    def expel(self, signer: bytes) -> None:
        """Remove a member, and refuse its key until this server is started again.

        Its connection is closed and it is withdrawn, as if its key had been removed from the allow-list. Raises ValueError for a
        key that no waiting or active member has.
        """
        if signer not in self._hub.members():
            message = f"no member has the key {signer.hex()}"
            raise ValueError(message)

        self._expelled.add(signer)
        self._hub.expel(self._may, self._now())
        if self._data is not None:
            self._data.expel(self._may)
        self._notify()

    def tick(self) -> None:
        """Let the coordinator check the clock now; `serve` does so regularly."""
        self._hub.tick(self._now())
        self._notify()

    async def serve(self) -> None:
        """Run until the run is finished and all clients were informed, or until cancelled."""
        listener = self._bound()
        if self._kept_later is not None and self._context.on_later_state is not None:
            self._context.on_later_state(self._kept_later)
        async with anyio.create_task_group() as group:
            self._serving = group.cancel_scope
            group.start_soon(self._keep_saved)
            group.start_soon(listener.serve, self._sessions.attend)
            if self._data is not None:
                group.start_soon(self._data.serve)
            if self._allow_list is not None:
                group.start_soon(self._watch_allow_list, self._allow_list)
            group.start_soon(self._keep_time)
            await self._sessions.until(lambda: self._hub.finished)
            with anyio.move_on_after(self._limits.finish_seconds):
                await self._sessions.until(lambda: self._hub.all_sent and not self._hub.connected)
            self._hub.close_all("Finished", "the run is finished")
            self._notify()
            with anyio.move_on_after(FAREWELL_SECONDS):
                await self._sessions.until(lambda: not self._hub.connected)
            group.cancel_scope.cancel()

    async def aclose(self) -> None:
        """Stop listening, close all connections, and save changes that were not sent yet; idempotent."""
        if self._serving is not None:
            self._serving.cancel()
        with anyio.CancelScope(shield=True):  # stopping cancels the server, and a cancelled close leaves sockets open
            if self._listener is not None:
                await self._listener.aclose()
            if self._data is not None:
                await self._data.aclose()
            try:
                await self._save()
            except UserError as error:
                logger.error("%s", error)  # noqa: TRY400  # the message is enough

    # ------------------------------------------------------------ beginning

    def _begin(self) -> InitialState:
        """Read the saved state. Blocks."""
        context = self._context
        saved = None
        if context.state_dir is not None:
            self._store = StateStore(context.state_dir, context.state.run_id)
            saved = self._store.load()
            later = None if saved is None else self._store.keep_later(saved.update.state)
            if later is not None:
                at = later.progress
                kept = self._store.later_path
                self._kept_later = LaterKnown(epoch=at.epoch, step=at.step, path=self._store.path, later_path=kept)
        path = self._store.path if self._store is not None else None
        data_key = self._key.public if context.data is not None else None
        return begin(context.state, context.opening, saved, path=path, data_key=data_key)

    def _make_hub(self, beginning: InitialState) -> tuple[Hub, ClientSessions]:
        hub = Hub(
            beginning.state,
            self._limits,
            draw_seed=lambda: secrets.randbits(64),
            withdraw_on_disconnect=self._context.withdraw_on_disconnect,
            opening=beginning.opening,
            addresses=beginning.addresses,
            began=self._now() if beginning.resumed else None,
            relays=self._context.relays,
            data_key=self._key.public if self._context.data is not None else None,
        )
        return hub, ClientSessions(hub, self._limits, now=self._now, allowed=self._may, notify=self._notify)

    def _may(self, public: bytes) -> bool:
        return public not in self._expelled and (self._allow_list is None or public in self._allow_list)

    def _bound(self) -> Listener:
        if self._listener is None:
            message = "the server is not listening; enter it with `async with` first"
            raise BackendError(message)

        return self._listener

    def _now(self) -> ClockTime:
        try:
            monotonic = anyio.current_time()
        except anyio.NoEventLoopError:  # made before the loop runs, or in a worker thread
            monotonic = time.monotonic()
        return ClockTime(monotonic, int(self._clock()))

    # ------------------------------------------------------------ time, changes, disk

    async def _keep_time(self) -> None:
        while True:
            try:
                self.tick()
            except Exception:  # a bug in the coordinator is logged and must not end the run
                logger.exception("a tick failed")
            await anyio.sleep(self._context.tick_seconds)

    async def _watch_allow_list(self, allow_list: AllowList) -> None:
        while True:
            await anyio.sleep(_ALLOW_LIST_SECONDS)
            if await anyio.to_thread.run_sync(allow_list.refresh):
                self._hub.expel(self._may, self._now())
                if self._data is not None:
                    self._data.expel(self._may)
                self._notify()

    async def _keep_saved(self) -> None:
        """Save every change to disk, then inform the members. Changes during a write go together into the next write."""
        disk = RepeatedProblem()
        while True:
            self._unsaved = changed = anyio.Event()
            try:
                await self._save()
            except UserError as error:
                if disk.failed():
                    logger.error("%s; members get no new state until it can be saved", error)  # noqa: TRY400  # the sentence
                await anyio.sleep(_SAVE_AGAIN_SECONDS)
                continue

            if disk.went_well():
                logger.warning("the run's state is saved again, and members get the new state")

            self._pass_on()
            await changed.wait()

    async def _save(self) -> None:
        async with self._saving:
            self._writing = pending_save = self._writing or self._hub.take_pending_save()
            if pending_save is None:
                return

            if self._store is not None and pending_save.draft is not None:
                await anyio.to_thread.run_sync(self._store.save, pending_save)
            self._writing = None
            self._hub.saved(pending_save)

    def _notify(self) -> None:
        """Note that something may have changed: save it, and send what needs no saving."""
        self._unsaved.set()
        self._pass_on()

    def _pass_on(self) -> None:
        """Wake connections with something to send, and report saved changes to the owner."""
        self._sessions.wake()
        for signer, why in self._hub.take_withdrawn():
            if self._context.on_withdrawn is not None:
                self._context.on_withdrawn(signer, why)

        for state, events in self._hub.take_changes():
            if self._context.on_event is not None:
                try:
                    self._context.on_event(state, events)
                except Exception:  # an error of an observer must not stop the run
                    logger.exception("on_event failed")

        for signer, figures in self._hub.take_figures():
            if self._context.on_figures is not None:
                self._context.on_figures(signer, figures)

        for signer, known in self._hub.take_later():
            if self._context.on_later_state is not None and self._store is not None:
                later = LaterKnown(epoch=known.epoch, step=known.step, path=self._store.path, member=signer)
                self._context.on_later_state(later)

        self._sessions.note_change()
