"""Processes of a benchmark that are told what to do over their standard input, a JSON object a line, and answer the same way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LOOPBACK = Path(__file__).parents[1] / "tools" / "loopback.sh"
_INSIDE = "PSYCHE_BENCHMARK_INSIDE"


def enter_loopback(module: str) -> None:
    """Go on in a network namespace with nothing but loopback: the benchmark starts again there. module: the benchmark's."""
    if _INSIDE not in os.environ and LOOPBACK.exists():
        os.environ[_INSIDE] = "1"
        os.execv(LOOPBACK, [str(LOOPBACK), sys.executable, "-m", module, *sys.argv[1:]])


class Child:
    """One process. command: what follows `python -m`. hello: what it said first."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.hello: dict[str, Any] = self.listen()

    def order(self, **what: Any) -> dict[str, Any]:
        """Tell it something and wait for its answer."""
        self.tell(**what)
        return self.listen()

    def tell(self, **what: Any) -> None:
        """Tell it something."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def listen(self) -> dict[str, Any]:
        """Wait for its next answer. Raises SystemExit if it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            message = f"a process of this benchmark ended with {self._process.wait()}"
            raise SystemExit(message)

        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """Close its input, which ends it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def say(**facts: Any) -> None:
    """In the child: an answer."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
