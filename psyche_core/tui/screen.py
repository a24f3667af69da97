"""The program's side of its screen: starts the screen as a process, sends it lines, and continues without it if it ends.

The screen can hang, fail or be killed; the program only puts lines into a queue. One thread writes the queue to the screen,
another waits for the screen's end. After its end, events go to `after`, which writes console lines. The screen's requests come
back through `requests`.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import anyio

from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry.events import Event
from psyche_core.text_safety import printable
from psyche_core.tui.lines import EndLine, EventLine, FeedLine, OutputLine, Request, StateLine, feed_line, parse_request
from psyche_core.tui.terminal import HeldTerminal

QUEUE_LINES = 20_000
"""Most lines that wait for a slow screen; further ones are left out."""

STATE_SECONDS = 0.25
"""Shortest time between two states that are sent."""

CLOSE_SECONDS = 3.0
"""How long a screen may take to end after it was asked to."""

TICK_SECONDS = 0.1
MODULE = "psyche_core.tui"


@dataclass(frozen=True, slots=True)
class Told:
    """An event and its source, for the display that follows the screen."""

    source: str
    event: Event


class Screen:
    """A screen that is shown until `close`, or until it ends by itself.

    kind: `client`, `server`, `testnet` or `replay`. title: of the run. after: takes events once the screen has ended; called from
    any thread, one call at a time. Raises OSError if no process can be started.
    """

    def __init__(self, kind: str, *, title: str, after: Callable[[Told], None]) -> None:
        self._after = after
        self._farewell_due = kind != "replay"  # closing the screen of a replay ends it, so no message is needed
        self._queue: queue.Queue[FeedLine] = queue.Queue(QUEUE_LINES)
        self._state: StateLine | None = None
        self._lock = threading.Lock()
        self._gone = threading.Event()
        self._requests: queue.Queue[Request] = queue.Queue(256)
        self._closing = False
        self._failure = ""
        self._terminal = HeldTerminal(self._note)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed with this process
        feed_end, self._feed = os.pipe()
        self._replies, reply_end = os.pipe()
        arguments = ["--kind", kind, "--title", title, "--feed", str(feed_end), "--replies", str(reply_end)]
        try:
            self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and module
                [sys.executable, "-m", MODULE, *arguments, "--errors", str(self._log.fileno())],
                stdin=0,
                stdout=self._terminal.output,
                stderr=self._terminal.errors,
                pass_fds=(feed_end, reply_end, self._log.fileno()),
            )
        except OSError:
            self._terminal.release(tidy=True)
            raise
        finally:
            os.close(feed_end)
            os.close(reply_end)
        for work in (self._write, self._read, self._wait):
            threading.Thread(target=work, name=f"screen{work.__name__}", daemon=True).start()

    @property
    def up(self) -> bool:
        """Whether the screen is still running."""
        return not self._gone.is_set()

    def show(self, source: str, event: Event, *, moment: float | None = None) -> None:
        """Show an event. moment: unix seconds; now if not given."""
        with self._lock:
            if self.up:
                with contextlib.suppress(queue.Full):
                    self._queue.put_nowait(EventLine(source, time.time() if moment is None else moment, event))
            else:
                self._after(Told(source, event))

    def follow(self, state: CoordinatorState) -> None:
        """Show a state of the coordinator. Of several states within a short time only the newest is shown."""
        self._state = StateLine(time.time(), state)

    async def requests(self) -> AsyncIterator[Request]:
        """Yield the requests that the user makes by key, until the screen has ended."""
        while True:
            try:
                yield self._requests.get_nowait()
            except queue.Empty:
                if not self.up:
                    return
                await anyio.sleep(TICK_SECONDS)

    async def caught_up(self) -> None:
        """Wait until the screen has shown most of its lines, for a program that can wait (a replay)."""
        while self.up and self._queue.qsize() > QUEUE_LINES // 2:  # noqa: ASYNC110  # threads change it
            await anyio.sleep(TICK_SECONDS)

    async def closed(self) -> None:
        """Wait until the screen has ended."""
        while self.up:  # noqa: ASYNC110  # as above
            await anyio.sleep(TICK_SECONDS)

    def end(self, *, stays: bool = False) -> None:
        """Tell the screen that no more lines come. stays: the screen stays until the user closes it."""
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(EndLine(stays))

    def close(self) -> None:
        """End the screen and restore the terminal. Blocks for some seconds at most; idempotent."""
        self._closing = True
        if self.up:
            self.end()
            if not self._gone.wait(CLOSE_SECONDS):
                with contextlib.suppress(OSError):
                    self._process.kill()
                self._gone.wait(CLOSE_SECONDS)
        self._terminal.release(tidy=False)

    # ---- threads; each ends with the screen

    def _note(self, text: str) -> None:
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(OutputLine(time.time(), text))

    def _write(self) -> None:
        """Write the waiting lines to the screen. Blocks."""
        sent = 0.0
        with os.fdopen(self._feed, "wb", buffering=0), contextlib.suppress(OSError):  # raised when the screen has ended
            while self.up:
                with contextlib.suppress(queue.Empty):
                    line = self._queue.get(timeout=STATE_SECONDS)
                    self._write_all(feed_line(line))
                state, now = self._state, time.monotonic()
                if state is not None and now - sent >= STATE_SECONDS:
                    self._state, sent = None, now
                    self._write_all(feed_line(state))

    def _write_all(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._feed, data) :]

    def _read(self) -> None:
        """Take the screen's requests. Blocks."""
        with os.fdopen(self._replies, "rb") as stream:
            for line in stream:
                request = parse_request(line)
                if request is None:
                    continue
                if request.what == "interrupt":
                    os.kill(os.getpid(), signal.SIGINT)
                elif request.what == "failed":
                    self._failure = request.argument
                else:
                    with contextlib.suppress(queue.Full):
                        self._requests.put_nowait(request)

    def _wait(self) -> None:
        """Wait for the screen's end, restore the terminal, and let console lines follow. Blocks."""
        code = self._process.wait()
        self._terminal.release(tidy=code == 0)
        with self._lock:
            self._gone.set()
            if not self._closing and (self._farewell_due or code or self._failure):
                print(self._farewell(code), file=sys.stderr, flush=True)
            self._drain()

    def _drain(self) -> None:
        """Show what the screen did not show before it ended."""
        with contextlib.suppress(queue.Empty):
            while True:
                match self._queue.get_nowait():
                    case EventLine(source=source, event=event):
                        self._after(Told(source, event))
                    case OutputLine(text=text) if text:
                        print(printable(text), file=sys.stderr, flush=True)

    def _farewell(self, code: int) -> str:
        if code == 0 and not self._failure:
            return "the screen is closed, the run goes on; its log lines follow, Ctrl-C stops it"
        why = printable(self._failure or f"it ended with {_ending(code)}", at_most=200)
        return f"warning: the screen failed ({why}); the run goes on, its log lines follow"


def _ending(code: int) -> str:
    try:
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
