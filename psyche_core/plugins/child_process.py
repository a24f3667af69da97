"""Runs foreign code in a process of its own, and waits for that process only.

What it writes goes to files that have no name. A pipe would end only when every process that inherited it has ended, and a plugin
may leave one in the background.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from psyche_core.errors import PluginFailed

MAX_OUTPUT_BYTES = 16 * 2**20
"""Most that is read of each of the two outputs."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended.

    Attributes:
        status: its exit status, negative for a signal; None if it was killed because it took too long.
        output: what was written to standard output before it ended, up to the limit.
        errors: the same, of standard error.
    """

    status: int | None
    output: bytes
    errors: bytes


def run_alone(command: Sequence[str], *, seconds: float, sent: bytes = b"", cwd: Path | None = None) -> Ended:
    """Run a command until it ends or the time is over; then it is killed.

    sent: what it reads from standard input. cwd: None for ours. Raises PluginFailed if no process can be started, or there is no
    room for what it writes.
    """
    try:
        return _run(command, seconds, sent, cwd)
    except OSError as error:
        message = f"{command[0]} cannot be started for the code of plugins: {error}; free some space or memory, then try again"
        raise PluginFailed(message) from error


def _run(command: Sequence[str], seconds: float, sent: bytes, cwd: Path | None) -> Ended:
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        status: int | None
        try:
            status = subprocess.run(  # noqa: S603  # our own commands
                command, input=sent, stdout=output, stderr=errors, cwd=cwd, timeout=seconds, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            status = None
        output.seek(0)
        errors.seek(0)
        return Ended(status, output.read(MAX_OUTPUT_BYTES), errors.read(MAX_OUTPUT_BYTES))
