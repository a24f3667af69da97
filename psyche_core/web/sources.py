"""The sources of views: folders of growing event files, a coordinator that is followed, or this process."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import anyio.to_thread

from psyche_core.errors import BackendClosed
from psyche_core.interfaces import Backend
from psyche_core.telemetry.event_files import EventFolderReader, SourcedEvent, event_files, find_runs
from psyche_core.telemetry.events import Event
from psyche_core.telemetry.sinks import Sink
from psyche_core.types import RunState
from psyche_core.web.feeds import Feed, Feeds

logger: logging.Logger = logging.getLogger("psyche.web")

POLL_SECONDS = 0.5
SEARCH_SECONDS = 3.0
"""Time between two searches for new runs in a folder."""

IDLE_SECONDS = 30.0
"""The files of a run that have not grown for this long are read less often, every SEARCH_SECONDS."""

BATCH = 2000
"""Most events added before other tasks of the event loop run."""


async def watch_folder(root: Path, feeds: Feeds) -> None:
    """Show every run in a folder, including new ones, and follow their files. Never returns."""
    followed: set[str] = set()
    async with anyio.create_task_group() as tasks:
        while True:
            runs = await anyio.to_thread.run_sync(find_runs, root)
            for name, folder in runs.items():
                if name not in followed:
                    followed.add(name)
                    feed = feeds.add(name)
                    feed.ready = False
                    tasks.start_soon(watch_run, folder, feed)
            await anyio.sleep(SEARCH_SECONDS)


async def watch_run(folder: Path, feed: Feed, *, clock: Callable[[], float] = time.time) -> None:
    """Add the events of a run's files, continue as the files grow, and notice when they stop growing. Never returns."""
    files = EventFolderReader(folder)
    grew = time.monotonic()
    while True:
        entered = await _read(files, feed)
        if feed.view.look(clock()) or not feed.ready:
            feed.ready = True
            feed.changed()
        now = time.monotonic()
        if entered:
            grew = now
        await anyio.sleep(POLL_SECONDS if now - grew < IDLE_SECONDS else SEARCH_SECONDS)


async def watch_silence(feed: Feed, *, clock: Callable[[], float] = time.time) -> None:
    """Notice when no events come any more, for a run that is followed in another way. Never returns."""
    while True:
        if feed.view.look(clock()):
            feed.changed()
        await anyio.sleep(SEARCH_SECONDS)


async def _read(files: EventFolderReader, feed: Feed) -> int:
    """Add new events; return their number. Files are read and parsed in a thread, some events at a time."""
    events = files.read()
    entered = 0
    while batch := await anyio.to_thread.run_sync(_some, events):
        for told in batch:
            feed.view.handle(told.source, told.time, told.event)
        entered += len(batch)
        feed.changed()
    return entered


def _some(events: Iterator[SourcedEvent]) -> list[SourcedEvent]:
    return list(itertools.islice(events, BATCH))


def check_folder(root: Path) -> str | None:
    """Return a sentence about why a folder cannot be watched; None if it can."""
    if not root.exists():
        return f"there is no folder {root}; give the folder that `psyche testnet start --out` or `--events-dir` wrote"
    if not root.is_dir():
        return f"{root} is a file, expected a folder of event files (*.jsonl), or of runs with such folders"
    if not find_runs(root) and not event_files(root):
        logger.warning("%s has no event files (*.jsonl) yet; the page shows them when they come", root)
    return None


async def follow_coordinator(backend: Backend, feed: Feed, *, clock: Callable[[], float] = time.time) -> None:
    """Add each state of a coordinator until the run is finished or the connection is closed permanently. Sends nothing."""
    async with backend:
        while True:
            try:
                update = await backend.next_state()
            except BackendClosed:
                if feed.view.ended is not None:
                    return
                raise
            feed.view.follow(clock(), update.state)
            feed.changed()
            if update.state.run_state is RunState.Finished:
                return


def own_events(feed: Feed, *, source: str, clock: Callable[[], float] = time.time) -> Sink:
    """Return a sink that adds the events of this process."""

    def enter(event: Event) -> None:
        feed.view.handle(source, clock(), event)
        feed.changed()

    return enter
