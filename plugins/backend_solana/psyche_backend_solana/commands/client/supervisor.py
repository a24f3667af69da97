"""Keeps a client running, of the version that its run asks for.

A client that fails is started again after a pause, until it fails too often in a short time. While it runs, the version that the
run asks for is read at intervals. A new version is prepared while the old client continues to train; then the old client is
asked to leave and the new one is started. If the preparation fails, the old client stays, and the preparation is tried again
with growing pauses. If the run asks for something that the member does not allow, the supervisor ends with a sentence that says
why. The first stop signal is passed to the client once; a second one is passed on, too, and kills it. The supervisor ends after
its client.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
import anyio.abc

from psyche_backend_solana.commands.client.plan import Plan
from psyche_backend_solana.commands.client.process import Client, Launch, Ready, print_line
from psyche_backend_solana.rpc.failures import RpcError
from psyche_core.errors import PsycheError

TRIES = 5
HEALTHY_SECONDS = 120.0
"""A client that ran for this many seconds has started successfully: its failures are counted from zero again."""
LONGEST_POLL_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorTimes:
    """Times in seconds.

    poll: between checks of the version. restart: before a failed client is started again. leave: time that a client has to leave
    cleanly. firm: after each stronger signal.
    """

    poll: float = 30.0
    restart: float = 5.0
    leave: float = 120.0
    firm: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The functions that handle versions.

    read: returns the version that the run asks for now. plan: returns the client for it; raises UserError for one that is not
    allowed. prepare: makes that client available; raises UserError.
    """

    read: Callable[[], Awaitable[str]]
    plan: Callable[[str], Plan]
    prepare: Callable[[Plan], Awaitable[Ready]]


@dataclass(slots=True)
class RestartPolicy:
    """Decides whether a client that ended is started again."""

    failures: int = 0

    def again(self, code: int, *, ran: float) -> bool:
        """Whether to start it again. code: its exit code, negative for a signal. ran: seconds that it ran."""
        if code in (0, 2) or code < 0 or code in (130, 143):
            return False  # it finished, the user must correct something, or somebody stopped it

        self.failures = 1 if ran >= HEALTHY_SECONDS else self.failures + 1
        return self.failures < TRIES


async def take_part(version: str, versions: Versions, *, times: SupervisorTimes | None = None) -> int:
    """Run clients until the run is over or we are stopped.

    Returns the last client's exit code, 128 + the number for a signal.

    version: the version that the run asks for at first. Raises UserError for one that is not allowed or cannot be prepared.
    """
    return await _Care(version, versions, times or SupervisorTimes()).run()


class _Care:
    def __init__(self, version: str, versions: Versions, times: SupervisorTimes) -> None:
        self._version = version
        self._versions = versions
        self._times = times
        self._plan = versions.plan(version)
        self._ready: Ready | None = None
        self._client: Client | None = None
        self._changed = anyio.Event()
        self._stopped: int | None = None
        self._code: int | None = None
        self._failure: PsycheError | None = None

    async def run(self) -> int:
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._obey_signals, tasks)
            try:
                self._ready = await self._versions.prepare(self._plan)
                tasks.start_soon(self._watch)
                self._code = await self._keep()
            except PsycheError as error:
                self._failure = error
            tasks.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure
        if self._code is None:
            assert self._stopped is not None
            return 128 + self._stopped

        return self._code if self._code >= 0 else 128 - self._code

    # ------------------------------------------------------------------------------------------------ the client

    async def _keep(self) -> int:
        restarts = RestartPolicy()
        while True:
            assert self._ready is not None
            ready, began = self._ready, anyio.current_time()
            code = await self._run_one(ready())
            if self._is_over():
                return code
            if self._ready is not ready:
                restarts = RestartPolicy()
                continue
            if not restarts.again(code, ran=anyio.current_time() - began):
                return code

            print_line(f"the client ended with {code}; starting it again in {self._times.restart:g} s")
            self._changed = anyio.Event()
            with anyio.move_on_after(self._times.restart):
                await self._changed.wait()
            if self._is_over():
                return code

    def _is_over(self) -> bool:
        """Whether no further client should be started."""
        return self._failure is not None or self._stopped is not None

    async def _run_one(self, launch: Launch) -> int:
        self._client = client = await Client.start(launch)
        try:
            return await client.wait()
        finally:
            self._client = None
            with anyio.CancelScope(shield=True):  # after any error, the client is not left running
                await client.leave(grace=self._times.leave, firm=self._times.firm)

    async def _end_one(self) -> None:
        self._changed.set()
        if self._client is not None:
            await self._client.leave(grace=self._times.leave, firm=self._times.firm)

    # ------------------------------------------------------------------------------------------------ stopping

    async def _obey_signals(
        self, tasks: anyio.abc.TaskGroup, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)  # nohup: ignore the signal
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, *hangup) as signals:
            task_status.started()
            async for number in signals:
                again, self._stopped = self._stopped is not None, self._stopped or int(number)
                client = self._client
                if client is None:
                    tasks.cancel_scope.cancel()
                elif again:
                    client.send_signal(signal.SIGINT)
                else:
                    client.ask()
                    print_line("stopping: the client leaves the run cleanly; a second signal ends it at once")
                    tasks.start_soon(self._end_one)

    # ------------------------------------------------------------------------------------------------ versions

    async def _watch(self) -> None:
        pause, silent = self._times.poll, False
        while True:
            await anyio.sleep(pause)
            try:
                version = await self._versions.read()
            except (PsycheError, RpcError) as error:
                if not silent:
                    print_line(f"cannot read which version the run asks for, trying again: {error}")
                silent = True
                continue
            silent = False
            pause = await self._follow(version, pause=pause)
            if self._failure is not None:
                await self._end_one()
                return

    async def _follow(self, version: str, *, pause: float) -> float:
        """Prepare and start another version if the run asks for one. Returns the seconds until the next check."""
        if version == self._version:
            return self._times.poll

        try:
            plan = self._versions.plan(version)
        except PsycheError as refusal:
            self._failure = refusal
            return pause

        if plan != self._plan:
            print_line(
                f"the run asks for client version {version!r:.120} now, no longer for {self._version!r:.120}: preparing {plan}"
            )
            try:
                ready = await self._versions.prepare(plan)
            except PsycheError as error:
                longer = min(2 * pause, max(LONGEST_POLL_SECONDS, self._times.poll))
                print_line(f"it could not be prepared; the client continues unchanged; trying again in {longer:g} s: {error}")
                return longer

            print_line(f"{plan} is ready: it replaces the running client")
            self._plan, self._ready, self._version = plan, ready, version
            await self._end_one()
        self._version = version
        return self._times.poll
