"""One line on a terminal that says how far something is, written anew each time; nothing where standard error is no terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

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
    last = 0
    for file in event_files:
        whole, _, _ = file.read_bytes().rpartition(b"\n")
        for line in whole.splitlines():
            if b'"step_trained"' in line:
                last = max(last, json.loads(line)["step"])
    return last
