"""The display's own process: `python -m psyche_core.tui`. Only `screen.Screen` starts it."""

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
    """Show the lines that come, until they end or the user closes the screen. Return the exit code."""
    parser = argparse.ArgumentParser(description="Shows a run; started by `psyche … --logs tui`.")
    parser.add_argument("--kind", choices=sorted(TABS), required=True)
    parser.add_argument("--title", required=True)
    for name in ("feed", "replies", "errors"):
        parser.add_argument(f"--{name}", type=int, required=True)
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program handles it; in this process Ctrl+C is only a key
    sys.stderr = os.fdopen(given.errors, "w", buffering=1)  # textual draws on the original standard error

    feed: queue.Queue[FeedLine] = queue.Queue(WAITING_LINES)
    replies = os.fdopen(given.replies, "wb", buffering=0)

    def ask(request: Request) -> None:
        with contextlib.suppress(OSError):  # the program has ended, and this process will end soon
            replies.write(request_line(request))

    app = RunScreen(given.kind, title=given.title, feed=feed, ask=ask)
    threading.Thread(target=_take, args=(os.fdopen(given.feed, "rb"), feed), name="feed", daemon=True).start()

    async def show() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.exit)
        await app.run_async()

    try:
        asyncio.run(show())
    except Exception as error:  # reported to the program, which tells the user and continues
        traceback.print_exc()
        ask(Request("failed", f"{type(error).__name__}: {error}"))
        return 1
    if app.return_code:
        ask(Request("failed", _last_words(app)))
    return app.return_code or 0


def _take(stream: BinaryIO, feed: queue.Queue[FeedLine]) -> None:
    """Read the program's lines into the queue until they end. Blocks."""
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
