"""Processes of start mode: the client, and the tools that prepare it.

Each process has its own session, so Ctrl-C in a terminal reaches only the manager. The manager signals the client once; a second
signal would kill it. Output is passed on unread; output of tools goes to stderr, so that stdout contains only the client's
output. A process that does not end in time gets stronger signals. A client's arguments and environment are never printed,
because they contain secrets.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import anyio
import anyio.abc
import click

from psyche_core.errors import UserError
from psyche_core.text_safety import printable_lines

STDERR = 2
TOOL_LEAVE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Launch:
    """How a client is started. environment: all variables, including secrets. end: a command that ends it if signals do not."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    end: tuple[str, ...] = ()


Ready = Callable[[], Launch]
"""Makes a launch; each start of a client needs a new one."""


def print_line(sentence: str) -> None:
    """Print a sentence for the user on stderr."""
    click.echo(printable_lines(sentence), err=True)


class Client:
    """A running client."""

    def __init__(self, process: anyio.abc.Process, launch: Launch) -> None:
        self._process = process
        self._launch = launch
        self.signalled: bool = False
        """Whether it was asked to leave."""

    @classmethod
    async def start(cls, launch: Launch) -> Client:
        """Start a client. Raises UserError if the program cannot be started."""
        return cls(await _open(launch.arguments, launch.environment, stdout=None), launch)

    async def wait(self) -> int:
        """Wait for its end and return its exit code, which is negative for a signal."""
        code = await self._process.wait()
        if code < 0 and self._launch.end:  # the ended process may only represent one that runs elsewhere
            await _run_quietly(self._launch)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        self.signalled = True
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def ask(self) -> None:
        """Ask it to leave cleanly, unless it was asked before, because a second signal would kill it."""
        if not self.signalled:
            self.send_signal(signal.SIGINT)

    async def leave(self, *, grace: float, firm: float) -> None:
        """Ask it to leave cleanly, and ensure that it ends. grace: seconds it has. firm: seconds after each stronger signal."""
        self.ask()
        if await self._ended(grace):
            return

        print_line(f"the client has not left within {grace:g} s; ending it")
        if self._launch.end:
            await _run_quietly(self._launch)
        else:
            self.send_signal(signal.SIGTERM)
        if not await self._ended(firm):
            self.send_signal(signal.SIGKILL)
            await self._process.wait()

    async def _ended(self, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            await self._process.wait()
            return True

        return False


async def run_tool(arguments: Sequence[str], environment: Mapping[str, str], *, timeout: float) -> int:
    """Run a tool to its end, show its output, return its exit code. Raises UserError if it cannot start or takes too long."""
    process = await _open(arguments, environment, stdout=STDERR)
    code = await _within(timeout, process)
    if code is None:
        message = f"{arguments[0]} has not ended within {timeout:g} s; look at its output, and try again"
        raise UserError(message)

    return code


async def succeeds(arguments: Sequence[str], environment: Mapping[str, str], *, timeout: float) -> bool:
    """Whether a tool ends with 0 within `timeout` seconds; its output is not shown. Raises UserError if it cannot start."""
    process = await _open(arguments, environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return await _within(timeout, process) == 0


async def _run_quietly(launch: Launch) -> None:
    with contextlib.suppress(UserError):
        await succeeds(launch.end, launch.environment, timeout=60.0)


async def _open(
    arguments: Sequence[str], environment: Mapping[str, str], *, stdout: int | None, stderr: int | None = None
) -> anyio.abc.Process:
    try:
        with anyio.CancelScope(shield=True):  # a process started by a cancelled call would be lost
            process = await anyio.open_process(
                list(arguments),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
    except OSError as error:
        message = f"cannot start {arguments[0]}: {error.strerror}"
        raise UserError(message) from error

    return process


async def _within(seconds: float, process: anyio.abc.Process) -> int | None:
    """A tool's exit code; None if it took longer and was stopped."""
    code = None
    try:
        with anyio.move_on_after(seconds):
            code = await process.wait()
    finally:
        with anyio.CancelScope(shield=True):
            await _end_group(process)
    return code


async def _end_group(process: anyio.abc.Process) -> None:
    """End a tool that still runs, and all processes that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with anyio.move_on_after(TOOL_LEAVE_SECONDS):
            await process.wait()
