"""The screen's own process: `python -m psyche_core.tui`, started by `screen.Screen` and by nobody else."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import queue
import signal
import sys
import threading
import traceback
from typing import BinaryIO

from psyche_core.tui.app import TABS, RunScreen
from psyche_core.tui.lines import EndLine, FeedLine, Request, parse_feed, request_line

WAITING_LINES = 20_000


def main() -> int:
    """Show what comes until it ends or somebody closes the screen. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Shows a run; started by `psyche … --logs tui`.")
    parser.add_argument("--kind", choices=sorted(TABS), required=True)
    parser.add_argument("--title", required=True)
    for name in ("feed", "replies", "errors"):
        parser.add_argument(f"--{name}", type=int, required=True)
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program's matter; here Ctrl+C is a key
    sys.stderr = os.fdopen(given.errors, "w", buffering=1)  # textual draws on the real one

    feed: queue.Queue[FeedLine] = queue.Queue(WAITING_LINES)
    replies = os.fdopen(given.replies, "wb", buffering=0)

    def ask(request: Request) -> None:
        with contextlib.suppress(OSError):  # the program is gone, and so are we in a moment
            replies.write(request_line(request))

    app = RunScreen(given.kind, title=given.title, feed=feed, ask=ask)
    threading.Thread(target=_take, args=(os.fdopen(given.feed, "rb"), feed), name="feed", daemon=True).start()

    async def show() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.exit)
        await app.run_async()

    try:
        asyncio.run(show())
    except Exception as error:  # said to the program, which tells people and goes on
        traceback.print_exc()
        ask(Request("failed", f"{type(error).__name__}: {error}"))
        return 1
    if app.return_code:
        ask(Request("failed", _last_words(app)))
    return app.return_code or 0


def _take(stream: BinaryIO, feed: queue.Queue[FeedLine]) -> None:
    """Blocking: read what the program tells; its end is the end."""
    with stream:
        for line in stream:
            told = parse_feed(line)
            if told is not None:
                feed.put(told)
    feed.put(EndLine())


def _last_words(app: RunScreen) -> str:
    error = app._exception  # textual has no public name for it
    return "an unknown error" if error is None else f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    if not isinstance(sys.stdout, io.TextIOBase):
        sys.exit(2)
    sys.exit(main())
