"""The coordinator server: sockets, clock and randomness around the `Hub`, which decides everything."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from typing import Self

import anyio

from psyche_backend_tcp.data_server import DataServer
from psyche_backend_tcp.hub import Hub, Moment
from psyche_backend_tcp.limits import Limits
from psyche_backend_tcp.listener import CONNECTION_LOST, Listener, Visitor
from psyche_backend_tcp.login import COORDINATOR
from psyche_core.coordinator.commands import Command
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import BackendError, WireError
from psyche_core.hookspecs import ServerContext
from psyche_core.interfaces.backend import BackendServer
from psyche_core.types import NodeIdentity
from psyche_core.wire.frames import FramedStream

logger = logging.getLogger("psyche.backend.tcp")

_FAREWELL_SECONDS = 1.0


class TcpServer(BackendServer):
    """Hosts a run. Entering binds the ports; `serve` runs it.

    limits: time-outs and bounds. clock: unix seconds, for tests and simulations; the time-outs of connections keep to real time.
    """

    def __init__(self, context: ServerContext, *, limits: Limits | None = None, clock: Callable[[], float] = time.time) -> None:
        self._context = context
        self._limits = limits or Limits()
        self._clock = clock
        self._hub = Hub(
            context.state,
            self._limits,
            draw_seed=lambda: secrets.randbits(64),
            withdraw_on_disconnect=context.withdraw_on_disconnect,
        )
        self._listener: Listener | None = None
        self._data: DataServer | None = None
        self._wakes: dict[int, anyio.Event] = {}
        self._stirred = anyio.Event()
        self._serving: anyio.CancelScope | None = None

    async def __aenter__(self) -> Self:
        """Bind. Raises UserError when a port cannot be used, DataError when the data cannot be read."""
        context = self._context
        run_id = context.state.run_id
        self._listener = await Listener.bind(context.host, context.port, service=COORDINATOR, run_id=run_id, limits=self._limits)
        try:
            if context.data is not None:
                self._data = await DataServer.bind(
                    context.data,
                    context.host,
                    context.data_port or 0,
                    run_id=run_id,
                    limits=self._limits,
                    state=lambda: self._hub.state,
                )
        except BaseException:
            await self._listener.aclose()
            raise

        return self

    @property
    def address(self) -> str:
        """Where clients connect."""
        return self._bound().address

    @property
    def data_address(self) -> str | None:
        """Where the data server listens, None when there is none."""
        return self._data.address if self._data is not None else None

    @property
    def state(self) -> CoordinatorState:
        """The state now."""
        return self._hub.state

    @property
    def connected(self) -> int:
        """Logged-in connections to the coordinator."""
        return self._hub.connected

    def submit(self, command: Command) -> None:
        """Apply a command of the run's owner, such as Pause. Raises CoordinatorError."""
        try:
            self._hub.submit(command, self._now())
        finally:
            self._stir()

    def tick(self) -> None:
        """Let the coordinator look at the clock now; `serve` does so by itself."""
        self._hub.tick(self._now())
        self._stir()

    async def serve(self) -> None:
        """Run until the run is finished and everybody was told, or until cancelled."""
        listener = self._bound()
        async with anyio.create_task_group() as group:
            self._serving = group.cancel_scope
            group.start_soon(listener.serve, self._attend)
            if self._data is not None:
                group.start_soon(self._data.serve)
            group.start_soon(self._keep_time)
            await self._until(lambda: self._hub.finished)
            with anyio.move_on_after(self._limits.finish_seconds):
                await self._until(lambda: self._hub.told and not self._hub.connected)
            self._hub.close_all("Finished", "the run is finished")
            self._stir()
            with anyio.move_on_after(_FAREWELL_SECONDS):
                await self._until(lambda: not self._hub.connected)
            group.cancel_scope.cancel()

    async def aclose(self) -> None:
        """Stop listening and close all connections; idempotent."""
        if self._serving is not None:
            self._serving.cancel()
        if self._listener is not None:
            await self._listener.aclose()
        if self._data is not None:
            await self._data.aclose()

    def _bound(self) -> Listener:
        if self._listener is None:
            message = "the server is not listening; enter it with `async with` first"
            raise BackendError(message)

        return self._listener

    def _now(self) -> Moment:
        return Moment(anyio.current_time(), int(self._clock()))

    async def _keep_time(self) -> None:
        while True:
            try:
                self.tick()
            except Exception:  # a defect in the rules must show in the log, not end the run
                logger.exception("a tick failed")
            await anyio.sleep(self._context.tick_seconds)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while True:
            stirred = self._stirred
            if condition():
                return

            await stirred.wait()

    def _stir(self) -> None:
        """Pass on what the hub has to say since the last call."""
        for number in self._hub.take_stirred():
            if number in self._wakes:
                self._wakes[number].set()

        for state, events in self._hub.take_changes():
            if self._context.on_event is not None:
                try:
                    self._context.on_event(state, events)
                except Exception:  # whoever watches must not stop the run
                    logger.exception("on_event failed")

        self._stirred.set()
        self._stirred = anyio.Event()

    async def _attend(self, visitor: Visitor) -> None:
        number = self._hub.connect(NodeIdentity(visitor.public, visitor.public), self._now())
        self._stir()
        try:
            async with anyio.create_task_group() as group:

                async def read() -> None:
                    await self._read(number, visitor.frames)
                    group.cancel_scope.cancel()

                group.start_soon(read)
                await self._write(number, visitor.frames)
                group.cancel_scope.cancel()
        finally:
            self._wakes.pop(number, None)
            self._hub.disconnect(number, self._now())
            self._stir()

    async def _read(self, number: int, frames: FramedStream) -> None:
        while True:
            try:
                payload = await frames.receive()
            except CONNECTION_LOST:
                return
            except WireError as error:
                self._hub.refuse(number, str(error))
                self._stir()
                await anyio.sleep_forever()  # the writer says good-bye and ends us

            pause = self._hub.receive(number, payload, self._now())
            self._stir()
            await anyio.sleep(pause)

    async def _write(self, number: int, frames: FramedStream) -> None:
        while True:
            wake = self._wakes[number] = anyio.Event()
            payloads = self._hub.outgoing(number)
            if payloads:
                with anyio.move_on_after(self._limits.send_seconds) as scope:
                    try:
                        await frames.send(*payloads)
                    except CONNECTION_LOST:
                        return
                if scope.cancelled_caught:
                    return
                self._stirred.set()
                self._stirred = anyio.Event()
                continue

            if self._hub.is_closing(number):
                return

            await wake.wait()
