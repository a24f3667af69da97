"""The full screen on a real terminal: a testnet is seen to train, the screen is closed by key, and the run goes on to its end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.quic, pytest.mark.timeout(300)]

_ESCAPES = re.compile(rb"\x1b(\[[0-9;?<>=]*[A-Za-z]|\][^\x07]*\x07|.)")


class Terminal:
    """A terminal of 80 columns and 24 rows with a program on it. seen: all that was written, without escape sequences."""

    def __init__(self, *arguments: object, **environment: str) -> None:
        self.ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.modes = termios.tcgetattr(self.theirs)
        self.raw = b""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PSYCHE_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "psyche_core", *map(str, arguments)],
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env=kept | {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONUTF8": "1"} | environment,
            start_new_session=True,
        )

    @property
    def seen(self) -> str:
        return _ESCAPES.sub(b"", self.raw).decode(errors="replace")

    def press(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def until(self, reached: Callable[[], bool], *, seconds: float = 120) -> None:
        """Read what is written until something holds."""
        deadline = time.monotonic() + seconds
        while not reached():
            assert time.monotonic() < deadline, self.seen[-3000:]
            if select.select([self.ours], [], [], 0.1)[0]:
                self.raw += os.read(self.ours, 1 << 16)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def new(*arguments: object, **environment: str) -> Terminal:
        opened.append(Terminal(*arguments, **environment))
        return opened[-1]

    yield new
    for each in opened:
        each.close()


def arguments_for(config: Path, port: int, out: Path) -> list[object]:
    return ["testnet", "start", "--num-clients", 3, "--config-path", config, "--server-port", port, "--out", out, "--tui", "true"]


@pytest.mark.soak  # a whole run beside the screen
def test_a_screen_that_is_closed_by_key_leaves_the_terminal_as_it_was_and_the_run_goes_on(
    terminal: Callable[..., Terminal], short_run: Path, free_port: Callable[[], int], tmp_path: Path
) -> None:
    screen = terminal(*arguments_for(short_run, free_port(), tmp_path / "out"))
    screen.until(lambda: "of 12" in screen.seen and "perplexity" in screen.seen)
    assert b"\x1b[?1049h" in screen.raw
    assert termios.tcgetattr(screen.theirs) != screen.modes, "keys are read one by one"

    screen.press("q")
    screen.until(lambda: "Close this screen?" in screen.seen)
    screen.press("y")
    screen.until(lambda: "the screen is closed, the run goes on" in screen.seen)
    assert termios.tcgetattr(screen.theirs) == screen.modes
    assert screen.raw.rindex(b"\x1b[?1049l") > screen.raw.rindex(b"\x1b[?1049h")
    screen.until(lambda: screen.process.poll() is not None)
    assert screen.process.returncode == 0, screen.seen[-3000:]
    assert (tmp_path / "out" / "report.json").exists()


def test_a_dumb_terminal_gets_lines_and_a_sentence(
    terminal: Callable[..., Terminal], short_run: Path, free_port: Callable[[], int], tmp_path: Path
) -> None:
    screen = terminal(*arguments_for(short_run, free_port(), tmp_path / "out"), TERM="dumb")
    screen.until(lambda: "TERM is 'dumb'; log lines follow instead" in screen.seen and "has reached run" in screen.seen)
    assert b"\x1b[?1049h" not in screen.raw
