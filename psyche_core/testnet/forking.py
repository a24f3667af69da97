"""Programs forked from a process that has imported what they need (`psyche_core.cli.fork_server`), which saves each some seconds.

`ForkServer` starts that process and asks it. Whatever goes wrong there, or on a system that lacks what it needs, its `start`
returns None, and the caller starts the program as usual. The reason is in its log.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import ByteReceiveStream, Process

ANSWER_SECONDS = 300.0
"""Longest wait for an answer, in seconds: the first comes once everything is imported, which takes long from a slow disk."""

_ANSWER_BYTES = 1 << 16
_ROOM = "-" * 4096
"""In its place forked programs show their command lines, of which the kernel shows no more than that."""

_SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 36, 37  # prctl(2)


class ForkedProcess:
    """A process that was forked for us and is our child. Has what is used of anyio.abc.Process, with the same meaning.

    stdin: descriptor of a pipe, kept open until `aclose`. stdout: descriptor of a pipe to read from.
    """

    def __init__(self, pid: int, *, stdin: int, stdout: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout: ByteReceiveStream = _PipeReader(stdout)
        self._stdin = stdin

    async def wait(self) -> int:
        """Wait for its end. Returns its exit code, or minus the number of the signal that ended it."""
        while self.returncode is None:
            handle = os.pidfd_open(self.pid)  # its number is not another's: nobody has waited for it yet
            try:
                await anyio.wait_readable(handle)
            finally:
                os.close(handle)
            if self.returncode is None:  # otherwise another task has waited for it, too
                self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])  # noqa: ASYNC222  # it has ended

        return self.returncode

    async def aclose(self) -> None:
        """Close the pipes."""
        os.close(self._stdin)
        await self.stdout.aclose()


class ForkServer:
    """An async context manager. modules: imported before anything is forked; without any nothing is forked. log: folder.

    Until it is left, this process is a child subreaper: children of our children whose parent has ended become ours.
    """

    def __init__(self, modules: Sequence[str], *, environment: Mapping[str, str], log: Path) -> None:
        self.environment: dict[str, str] = dict(environment)
        self._modules = list(modules)
        self._log = log
        self._process: Process | None = None
        self._connection: socket.socket | None = None
        self._asking = anyio.Lock()
        self._was_subreaper: int | None = None

    async def start(self, arguments: Sequence[str], *, stderr: int) -> ForkedProcess | None:
        """Start `psyche ARGUMENTS` in a session of its own, once everything is imported; None if it must be started otherwise.

        stderr: descriptor. It ends when this process ends (psyche_core.cli.end_with_parent).
        """
        async with self._asking:
            if self._connection is None:
                return None

            theirs_in, ours_in = os.pipe()
            ours_out, theirs_out = os.pipe()
            pid = None
            try:
                pid = await self._ask(self._connection, arguments, (theirs_in, theirs_out, stderr))
            finally:
                os.close(theirs_in)
                os.close(theirs_out)
                if pid is None:  # whoever was forked nevertheless ends when its stdin closes
                    os.close(ours_in)
                    os.close(ours_out)
                    self._end()
            return None if pid is None else ForkedProcess(pid, stdin=ours_in, stdout=ours_out)

    async def __aenter__(self) -> Self:
        if not self._modules or not _supported():
            return self

        self._was_subreaper = _subreaper()
        if self._was_subreaper is None or not _be_subreaper(1):
            return self

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._connection = ours
        with theirs, (self._log / "fork-server.log").open("ab") as log:
            self._process = await anyio.open_process(
                [sys.executable, "-m", "psyche_core.cli.fork_server", str(theirs.fileno()), *self._modules, _ROOM],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=self.environment,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()
        if self._process is not None:
            with anyio.CancelScope(shield=True):
                await self._process.wait()
        if self._was_subreaper is not None:
            _be_subreaper(self._was_subreaper)

    def _end(self) -> None:
        """Fork nothing more. It holds nothing that must be left in order."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _ask(self, connection: socket.socket, arguments: Sequence[str], files: Sequence[int]) -> int | None:
        """Send a request and return the number of the process, None if there is none."""
        try:
            socket.send_fds(connection, [json.dumps(list(arguments)).encode()], files)
            with anyio.fail_after(ANSWER_SECONDS):
                await anyio.wait_readable(connection)
            answer = connection.recv(_ANSWER_BYTES)
        except (OSError, TimeoutError):  # it has ended, or hangs
            return None

        return json.loads(answer).get("pid") if answer else None


class _PipeReader(ByteReceiveStream):
    """The end of a pipe that is read."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.wait_readable(self._descriptor)
        received = os.read(self._descriptor, max_bytes)
        if not received:
            raise anyio.EndOfStream

        return received

    async def aclose(self) -> None:
        os.close(self._descriptor)


def _supported() -> bool:
    """Whether this system has all that is used: Linux of 5.3 or newer, and nothing forbids it."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return False

    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def _subreaper() -> int | None:
    """Whether this process is a child subreaper; None if the system does not say."""
    found = ctypes.c_int()
    return None if _prctl(_GET_CHILD_SUBREAPER, ctypes.addressof(found)) else found.value


def _be_subreaper(wanted: int) -> bool:
    return _prctl(_SET_CHILD_SUBREAPER, wanted) == 0


def _prctl(option: int, argument: int) -> int:
    call = ctypes.CDLL(None).prctl
    call.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    return int(call(option, argument, 0, 0, 0))
