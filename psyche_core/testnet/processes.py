"""Child processes that write JSON lines, started and stopped together.

Each child leads its own process group, so that stopping also reaches the processes it started, and Ctrl-C reaches only this
process, which decides what to do. Stopping is SIGTERM, a grace time of some seconds, then SIGKILL. Leaving the context always
stops all children, also when cancelled. If this process is killed, the children end at once (psyche_core.cli.end_with_parent):
their stdin is a pipe that closes with this process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from psyche_core.config.options.loading import ENVIRONMENT_PREFIX, RAW_IDENTITY
from psyche_core.plugin_switches import passed_on
from psyche_core.telemetry.events import Event
from psyche_core.telemetry.sinks import from_json
from psyche_core.testnet.forking import ForkedProcess, ForkServer

GRACE_SECONDS = 10.0
MAX_LINE_BYTES = 1 << 20
_ERROR_PREFIX = "Error: "


class Child:
    """A running `psyche` program.

    log: file with its stderr, and all output that is not an event. killed: whether we killed it on purpose.
    """

    def __init__(self, name: str, process: Process | ForkedProcess, log: Path) -> None:
        self.name = name
        self.log = log
        self.process = process
        self.killed: bool = False

    async def events(self) -> AsyncIterator[tuple[float, Event]]:
        """(unix seconds, event) as they come, until the child closes its stdout."""
        assert self.process.stdout is not None, "children are started with a pipe"
        lines = BufferedByteReceiveStream(self.process.stdout)
        while True:
            try:
                line = await lines.receive_until(b"\n", MAX_LINE_BYTES)
            except (anyio.EndOfStream, anyio.IncompleteRead, anyio.DelimiterNotFound):
                return

            text = line.decode(errors="replace")
            parsed = from_json(text)
            if parsed is not None:
                yield parsed
            else:
                with self.log.open("a", encoding="utf-8") as log:
                    log.write(text + "\n")

    @property
    def sentence(self) -> str | None:
        """The child's error sentence, if it ended with one."""
        said = [line for line in self.last_lines(50) if line.startswith(_ERROR_PREFIX)]
        return said[-1].removeprefix(_ERROR_PREFIX) if said else None

    def last_lines(self, count: int) -> list[str]:
        """The end of its log."""
        try:
            return self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-count:]
        except OSError:
            return []

    def kill(self) -> None:
        """SIGKILL, on purpose: it is not expected to end well."""
        self.killed = True
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal to the child's whole group, unless the child has ended."""
        if self.process.returncode is None:
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                return  # it has just ended


class Children:
    """Starts children and stops them all on exit. An async context manager.

    logs: folder for their log files. forks: entered and left with this; forks children if it can.
    """

    def __init__(self, logs: Path, forks: ForkServer | None = None) -> None:
        self._logs = logs
        self._forks = forks
        self._children: list[Child] = []

    async def start(self, name: str, arguments: Sequence[str], *, environment: Mapping[str, str], forked: bool = False) -> Child:
        """Start `psyche ARGUMENTS` with the current interpreter. A name that is started again appends to its log.

        forked: forks it if that is possible; the environment must be that of `forks`.
        """
        log = self._logs / f"{name}.log"
        with log.open("ab") as stderr:
            process: Process | ForkedProcess | None = None
            if forked and self._forks is not None:
                assert self._forks.environment == environment, "a fork has the environment of what it is forked from"
                process = await self._forks.start(arguments, stderr=stderr.fileno())
            process = process or await anyio.open_process(
                [sys.executable, "-m", "psyche_core.cli.end_with_parent", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                start_new_session=True,
            )
        child = Child(name, process, log)
        self._children.append(child)
        return child

    async def __aenter__(self) -> Self:
        if self._forks is not None:
            await self._forks.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            try:
                await self._stop()
            finally:
                if self._forks is not None:
                    await self._forks.__aexit__(exc_type, exc, traceback)

    async def _stop(self) -> None:
        for child in self._children:
            child.signal(signal.SIGTERM)
        with anyio.move_on_after(GRACE_SECONDS):
            for child in self._children:
                await child.process.wait()
        for child in self._children:
            child.signal(signal.SIGKILL)
            await child.process.wait()
            await child.process.aclose()


def child_environment(*, threads: int) -> dict[str, str]:
    """Our environment without PSYCHE_ variables (children get all settings as arguments), with thread counts set.

    What switches plugins off stays. Also without an identity, which only one of them could have.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX) and name != RAW_IDENTITY
    }
    return (
        environment | passed_on() | {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
    )
