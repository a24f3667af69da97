"""The terminal of a screen: checks whether it is usable, restores it at the end, and redirects other output meanwhile."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

MIN_COLUMNS, MIN_ROWS = 40, 12

_RESTORE = (
    b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l"  # no mouse
    b"\x1b[?1004l\x1b[?2004l\x1b[?2048l\x1b[<u"  # no focus reports, bracketed paste, reports of sizes, kitty keys
    b"\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[0m"  # wrap lines, the usual screen, a cursor, no colour
)
"""Resets the terminal modes that a screen leaves set if it ends unexpectedly."""


def why_unfit(environment: Mapping[str, str]) -> str | None:
    """Return why no full screen can be shown here, as the first half of a sentence; None if it can be shown."""
    if importlib.util.find_spec("textual") is None:
        return "--logs tui needs the extra `tui` (pip install 'psyche-core[tui]')"
    if os.name != "posix":
        return "--logs tui needs a POSIX system"
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stdout) and _is_terminal(sys.stderr)):
        return "--logs tui needs a terminal for input, output and errors, and one of them is a file or a pipe"
    kind = environment.get("TERM", "")
    if kind in ("", "dumb", "unknown"):
        return f"--logs tui needs a terminal that can move its cursor, and TERM is {kind!r}"
    if (sys.stdout.encoding or "").lower().replace("-", "") != "utf8":
        return f"--logs tui needs a terminal for UTF-8, and this one has {sys.stdout.encoding} (set LANG or PYTHONIOENCODING)"
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    if (columns or MIN_COLUMNS) < MIN_COLUMNS or (rows or MIN_ROWS) < MIN_ROWS:  # 0 if the size is unknown
        return f"--logs tui needs at least {MIN_COLUMNS} columns and {MIN_ROWS} rows, and this terminal has {columns} by {rows}"

    return None


def _is_terminal(stream: object) -> bool:
    try:
        return os.isatty(stream.fileno())  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):  # the stream was replaced or closed
        return False


class HeldTerminal:
    """Keeps the terminal's modes and its standard output and error as files, while a screen uses the terminal.

    Everything that this process and its libraries write to standard output or error meanwhile goes to `take`, line by line, from
    a thread. After `release` it goes to the terminal again, and so does output of child processes that were started meanwhile.
    """

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._modes = _modes()
        sys.stdout.flush()
        sys.stderr.flush()
        self._kept = {number: os.dup(number) for number in (1, 2)}
        read_end, write_end = os.pipe()
        for number in self._kept:
            os.dup2(write_end, number)
        os.close(write_end)
        self._released = False
        lines = os.fdopen(read_end, "rb")
        threading.Thread(target=self._pass_on, args=(lines,), name="screen-output", daemon=True).start()

    @property
    def output(self) -> int:
        """The descriptor of the terminal's output, for the screen."""
        return self._kept[1]

    @property
    def errors(self) -> int:
        """The descriptor of the terminal's error output, for the screen."""
        return self._kept[2]

    def release(self, *, tidy: bool) -> None:
        """Restore the terminal. tidy: whether the screen ended normally, so that no terminal modes need to be reset."""
        if self._released:
            return

        self._released = True
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        if not tidy:
            with contextlib.suppress(OSError):
                os.write(self._kept[1], _RESTORE)
        if self._modes is not None:
            import termios

            with contextlib.suppress(termios.error):  # the terminal was closed
                termios.tcsetattr(0, termios.TCSADRAIN, self._modes)
        for number, kept in self._kept.items():
            os.dup2(kept, number)

    def _pass_on(self, stream: BinaryIO) -> None:
        """Pass output on until no process can write it any more. Blocks."""
        with stream:
            for line in stream:
                if self._released:
                    with contextlib.suppress(OSError):
                        os.write(2, line)  # from a child process that was started meanwhile
                else:
                    self._take(line.decode(errors="replace").rstrip())


def _modes() -> list[Any] | None:
    import termios

    try:
        return termios.tcgetattr(0)
    except termios.error:
        return None
