"""Reads and writes the connections of logged-in clients, and checks whether a key's older connection still answers.

The `Hub` decides what is sent and what a frame means; the listener has admitted the client. `tcp_server` saves the state and
keeps the run's clock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import anyio

from psyche_backend_tcp.connections.listener import CONNECTION_LOST, AcceptedConnection
from psyche_backend_tcp.connections.login import LoginRefused
from psyche_backend_tcp.limits import Limits
from psyche_backend_tcp.protocol import Bye, encode_server
from psyche_backend_tcp.server.hosted_state import ClockTime
from psyche_backend_tcp.server.hub import KEY_IN_USE, NOT_ALLOWED, Hub
from psyche_core.errors import WireError
from psyche_core.types import NodeIdentity
from psyche_core.wire.frames import FramedStream

FAREWELL_SECONDS = 1.0
"""Seconds that a client has to close its connection after a bye."""


class ClientSessions:
    """All connections of one hub.

    now: reads the clock. allowed: whether a key may log in. notify: called when the hub may have something to save or to send.
    """

    def __init__(
        self,
        hub: Hub,
        limits: Limits,
        *,
        now: Callable[[], ClockTime],
        allowed: Callable[[bytes], bool],
        notify: Callable[[], None],
    ) -> None:
        self._hub = hub
        self._limits = limits
        self._now = now
        self._allowed = allowed
        self._notify = notify
        self._wakes: dict[int, anyio.Event] = {}
        self._changed = anyio.Event()

    def wake(self) -> None:
        """Wake the connections for which the hub has something to send."""
        for number in self._hub.take_to_flush():
            if number in self._wakes:
                self._wakes[number].set()

    def note_change(self) -> None:
        """Note that something may have changed, so that `until` checks its condition again."""
        self._changed.set()
        self._changed = anyio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition of the hub holds."""
        while True:
            changed = self._changed
            if condition():
                return

            await changed.wait()

    async def attend(self, accepted: AcceptedConnection) -> None:
        """Serve a client that has logged in until its connection ends."""
        try:
            await self.check_key(accepted.public)  # again, because another connection may have been accepted during the welcome
        except LoginRefused as refused:
            await _say_bye(accepted.frames, Bye(refused.code, refused.message), within=self._limits.send_seconds)
            return

        number = self._hub.connect(NodeIdentity(accepted.public, accepted.public), self._now(), known=accepted.known)
        self._notify()
        try:
            async with anyio.create_task_group() as group:

                async def read() -> None:
                    await self._read(number, accepted.frames)
                    group.cancel_scope.cancel()

                group.start_soon(read)
                await self._write(number, accepted.frames)
                group.cancel_scope.cancel()
        finally:
            self._wakes.pop(number, None)
            self._hub.disconnect(number, self._now())
            self._notify()

    async def check_key(self, public: bytes) -> None:
        """Raise LoginRefused while another connection of the key answers pings. A connection that does not answer is given up."""
        while (number := self._hub.connection_of(public)) is not None:
            pong = self._hub.ping(number, self._now())
            self._notify()
            with anyio.move_on_after(self._limits.probe_seconds):
                await self.until(partial(self._hub.is_settled, number, pong))
            if self._hub.has_answered(number, pong):
                raise LoginRefused(KEY_IN_USE.code, KEY_IN_USE.sentence)
            if not self._allowed(public):
                raise LoginRefused(NOT_ALLOWED.code, NOT_ALLOWED.sentence)
            self._hub.give_up(number)

    async def _read(self, number: int, frames: FramedStream) -> None:
        while True:
            try:
                payload = await frames.receive()
            except CONNECTION_LOST:
                return
            except WireError as error:
                self._hub.refuse(number, str(error))
                self._notify()
                await anyio.sleep_forever()  # the writer sends a bye and cancels us

            pause = self._hub.receive(number, payload, self._now())
            self._notify()
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
                self.note_change()
                continue

            if self._hub.is_closing(number):
                return

            await wake.wait()


async def _say_bye(frames: FramedStream, bye: Bye, *, within: float) -> None:
    """Tell a client why it is not served, and wait until it has closed: closing with unread bytes would discard the bye.

    within: seconds for sending the bye.
    """
    with contextlib.suppress(*CONNECTION_LOST, WireError):
        with anyio.move_on_after(within):
            await frames.send(encode_server(bye))
        with anyio.move_on_after(FAREWELL_SECONDS):
            while True:
                await frames.receive()
