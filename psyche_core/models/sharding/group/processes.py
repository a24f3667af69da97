"""Starts the ranks of one machine as child processes, gives them the secret, checks them, and ends them.

Each child has a pipe to its stdin, through which it gets the secret and which then stays open. The system closes the pipe when
the client ends, even after kill -9, and then the child ends itself. Each child has its own session, so that Ctrl-C reaches only
the client, which then ends the children in an orderly way. The last lines of their stderr are kept; the last one is shown if a
child ends without an error sentence.
"""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Sequence
from typing import Final

from psyche_core.config.options.loading import ENVIRONMENT_PREFIX
from psyche_core.plugin_switches import passed_on

END_SECONDS: Final = 60.0
_KEPT_LINES: Final = 40
_ERROR: Final = "Error: "


def rank_environment(*, threads: int | None) -> dict[str, str]:
    """Our environment without PSYCHE_ variables but for those that switch plugins, with the number of CPU threads if given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
    return kept | passed_on() | ({} if threads is None else {"OMP_NUM_THREADS": str(threads)})


class LocalRanks:
    """Child processes, one for each rank that was started here."""

    def __init__(self) -> None:
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._said: dict[int, collections.deque[str]] = {}
        self._readers: dict[int, threading.Thread] = {}

    def start(self, rank: int, arguments: Sequence[str], *, secret: bytes, threads: int | None) -> None:
        """Start a rank's program: `python -m psyche_core.training.sidecar ARGUMENTS`.

        secret: of the group, sent through stdin. threads: CPU threads of the rank, None for the default.
        """
        environment = rank_environment(threads=threads)
        child = subprocess.Popen(  # noqa: S603 - the same interpreter, with our own arguments
            [sys.executable, "-m", "psyche_core.training.sidecar", "--end-with-parent", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self._children[rank] = child
        self._said[rank] = collections.deque(maxlen=_KEPT_LINES)
        reader = threading.Thread(target=_keep, args=(child, self._said[rank]), name=f"stderr of rank {rank}", daemon=True)
        reader.start()
        self._readers[rank] = reader
        assert child.stdin is not None, "it was asked for"
        try:
            child.stdin.write(secret.hex().encode() + b"\n")
            child.stdin.flush()
        except BrokenPipeError:
            return  # it has already ended: `problem` reports it

    @property
    def processes(self) -> dict[int, int]:
        """Process ids by rank."""
        return {rank: child.pid for rank, child in self._children.items()}

    def all_ended(self) -> bool:
        """Whether all child processes have ended."""
        return all(child.poll() is not None for child in self._children.values())

    def problem(self, *, expected: Collection[int] = ()) -> str | None:
        """Return a sentence if a child has ended with an unexpected exit code, else None.

        It is the child's own error sentence if it wrote one. expected: exit codes that are no error.
        """
        for rank, child in list(self._children.items()):
            code = child.poll()
            if code is not None and code not in expected:
                return self._ended(rank, child, code)
        return None

    def wait(self) -> dict[int, int]:
        """Wait until all children have ended and return their exit codes by rank. After END_SECONDS the others are killed."""
        end = time.monotonic() + END_SECONDS
        for child in self._children.values():
            try:
                child.wait(timeout=max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        return self._reap()

    def kill(self) -> dict[int, int]:
        """Kill all children and return their exit codes by rank."""
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.wait()
        return self._reap()

    def _reap(self) -> dict[int, int]:
        codes = {rank: child.returncode for rank, child in self._children.items()}
        for child in self._children.values():
            if child.stdin is not None:
                try:
                    child.stdin.close()
                except BrokenPipeError:
                    continue
        self._children.clear()
        return codes

    def _ended(self, rank: int, child: subprocess.Popen[bytes], code: int) -> str:
        self._readers[rank].join(timeout=1.0)  # its last lines may still be in the pipe
        said = [line for line in list(self._said[rank]) if line.strip()]
        own = [line.removeprefix(_ERROR) for line in said if line.startswith(_ERROR)]
        if own:
            return own[-1]
        if code < 0:
            name = signal.Signals(-code).name
            memory = (
                "; if memory ran out, try a smaller --micro-batch-size or --gradient-checkpointing" if name == "SIGKILL" else ""
            )
            return f"rank {rank} (process {child.pid}) was ended by {name}{memory}"

        last = f": {said[-1].strip()}" if said else ""
        return f"rank {rank} (process {child.pid}) ended with exit code {code}{last}"


def _keep(child: subprocess.Popen[bytes], said: collections.deque[str]) -> None:
    assert child.stderr is not None, "it was asked for"
    with child.stderr:
        for line in child.stderr:
            said.append(line.decode(errors="replace").rstrip("\n"))
