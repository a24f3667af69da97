"""Requests to the coordinator: joining, our address, commands. They are repeated, and the user is informed if no answer arrives.

The machine decides what is asked, and what follows from an answer. `runtime` reads the coordinator's states.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable

import anyio

from psyche_core.client.machine.events import CommandAnswered
from psyche_core.coordinator.commands import Command, WarmupWitness, Witness
from psyche_core.errors import BackendError, CommandRefused, PsycheError
from psyche_core.interfaces import Backend, Transport
from psyche_core.telemetry.events import Event, Joined, Mended, Problem

logger: logging.Logger = logging.getLogger("psyche.client")

COMMAND_TIMEOUT = 10.0
COMMAND_ATTEMPTS = 3
"""After a time-out a command is sent again, because a lost statement slows the whole round down."""

REPUBLISH_SECONDS = 10.0
"""Shortest time between two publications of our address: on a blockchain each one is a transaction."""

PASSING_REFUSALS = ("ClientsFull", "Halted")
"""Refusals of a join that do not end the client: the machine asks again, or the next state says that the run is finished."""


class CoordinatorRequests:
    """The requests of one client to its coordinator. report: takes the events for people."""

    def __init__(self, backend: Backend, transport: Transport, report: Callable[[Event], None], *, run_id: str) -> None:
        self._backend = backend
        self._transport = transport
        self._report = report
        self._run_id = run_id
        self._published = b""
        self._published_at = -math.inf
        self._joining = False
        self._joined = False
        self._silent_since: float | None = None

    @property
    def joined(self) -> bool:
        """Whether the coordinator has accepted us and this was reported."""
        return self._joined

    async def join(self, prepare: Callable[[], Awaitable[None]]) -> None:
        """Run `prepare`, then join, however long the coordinator takes to answer. While one call runs, others return at once.

        Raises CommandRefused for a refusal that is not in PASSING_REFUSALS, and any PsycheError of `prepare` and the backend.
        """
        if self._joining:
            return

        self._joining = True
        try:
            await prepare()
            await self._join()
        except CommandRefused as refusal:
            logger.info("joining was refused: %s", refusal.message)
            if refusal.code not in PASSING_REFUSALS:
                raise
        finally:
            self._joining = False

    async def _join(self) -> None:
        while True:
            address = self._transport.address
            try:
                await self._backend.join(address, timeout=COMMAND_TIMEOUT)
            except TimeoutError:
                self.note_silence()
                continue

            self._published, self._published_at = address, anyio.current_time()
            self.note_answer()
            if not self._joined:
                self._joined = True
                self._report(Joined(self._run_id))
            return

    def address_is_due(self, now: float) -> bool:
        """Return whether our address changed since it was published and may be published again; then call `publish_address`."""
        due = now - self._published_at >= REPUBLISH_SECONDS
        if self._joined and not self._joining and due and self._transport.address != self._published:
            self._published_at = now
            return True
        return False

    async def publish_address(self) -> None:
        """Publish our address again. Joining is idempotent, and other members get the newest address."""
        address = self._transport.address
        try:
            await self._backend.join(address, timeout=COMMAND_TIMEOUT)
        except (TimeoutError, PsycheError) as error:
            logger.info("our new address was not published: %s", error)
        else:
            self._published = address
            logger.info("our address has changed and was published again")

    async def send(self, command: Command) -> CommandAnswered | None:
        """Send a command. Return the answer; None if none comes in time or the backend has ended."""
        for _ in range(COMMAND_ATTEMPTS):
            try:
                await self._backend.send(command, timeout=COMMAND_TIMEOUT)
            except CommandRefused as refusal:
                level = logging.DEBUG if isinstance(command, Witness | WarmupWitness) else logging.INFO
                logger.log(level, "%s was refused: %s", type(command).__name__, refusal.message)
                return CommandAnswered(command, refusal.code)
            except TimeoutError:
                self.note_silence()
                continue
            except BackendError:
                return None  # the reader of states reports the reason

            self.note_answer()
            return CommandAnswered(command, None)
        return None

    def note_silence(self) -> None:
        """Note that the coordinator did not answer in time. Report it once, until it answers again."""
        if self._silent_since is None:
            self._silent_since = anyio.current_time() - COMMAND_TIMEOUT
            self._report(Problem("warning", f"the coordinator has not answered for {COMMAND_TIMEOUT:g} s; still trying"))

    def note_answer(self) -> None:
        """Note that the coordinator answered. Report it if its silence was reported."""
        if self._silent_since is not None:
            seconds = anyio.current_time() - self._silent_since
            self._silent_since = None
            self._report(Mended(f"the coordinator answers again, after {seconds:.0f} s"))
