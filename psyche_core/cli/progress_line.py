"""One line on a terminal that says how far something is, written anew each time; nothing where standard error is no terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from psyche_core.text_safety import printable

_CLEAR = "\r\x1b[K"
_WIDTH = 78


class ProgressLine:
    """The last line of a terminal. It is gone after `clear`, so that what is printed next stands alone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream if stream.isatty() else None
        self._began = time.monotonic()

    def tell(self, text: str) -> None:
        """Show this, with the seconds since the start."""
        if self._stream is not None:
            seconds = f"{time.monotonic() - self._began:.0f} s"
            self._stream.write(f"{_CLEAR}{printable(text, at_most=_WIDTH - len(seconds))} {seconds}")
            self._stream.flush()

    def clear(self) -> None:
        """Remove the line."""
        if self._stream is not None:
            self._stream.write(_CLEAR)
            self._stream.flush()


def steps_trained(event_files: Iterable[Path]) -> int:
    """The last step that event files know as trained, 0 for none. A line without an end is still being written."""
    return max((event["step"] for event in _events(event_files, "step_trained")), default=0)


def plugin_problem(event_files: Iterable[Path], labels: Collection[str]) -> str:
    """The first error that a member reported and for which it blames a plugin; empty if there is none.

    labels: of the plugins that are there, see `psyche_core.plugin_errors.labels`. The client machine passes on what failed as a
    sentence, so a plugin is found by its whole label, with kind, name, distribution and version, and not by a word.
    """
    problems = (str(event["message"]) for event in _events(event_files, "problem") if event["level"] == "error")
    return next((message for message in problems if any(label in message for label in labels)), "")


def _events(event_files: Iterable[Path], name: str) -> Iterator[dict[str, Any]]:
    for file in event_files:
        whole, _, _ = file.read_bytes().rpartition(b"\n")
        for line in whole.splitlines():
            if f'"{name}"'.encode() in line and (event := json.loads(line))["event"] == name:
                yield event
