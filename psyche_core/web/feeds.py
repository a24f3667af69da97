"""Keeps the views of runs up to date, and lets streams wait for changes.

A `Feed` is one run: a view, and an event that is set when it changes. All of it belongs to one event loop; only files are read in
threads.
"""

from __future__ import annotations

import itertools
import json
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio

from psyche_core.observer.documents import member_document, run_document
from psyche_core.observer.run_view import RunView

HEARTBEAT_SECONDS = 15.0
"""After this many seconds without a change a comment is sent, so that proxies keep the connection and a lost one is noticed."""

UPDATE_SECONDS = 0.5
"""Shortest time between two messages to one reader."""

_KEPT = 64


class Feed:
    """A run that can be watched. key: its name in addresses and lists. ready: whether all existing events have been read."""

    def __init__(self, key: str, view: RunView) -> None:
        self.key = key
        self.view = view
        self.ready: bool = True
        self._closed = False
        self._start = secrets.token_hex(4)
        self._waiting = anyio.Event()
        self._made: OrderedDict[tuple[str | None, int, int], str] = OrderedDict()

    def changed(self) -> None:
        """Wake all streams that wait for changes."""
        if self._waiting.statistics().tasks_waiting:
            self._waiting.set()
            self._waiting = anyio.Event()

    def close(self) -> None:
        """End all streams; the page is not served any more."""
        self._closed = True
        self.changed()

    def document(self, member: str | None, *, since: int = 0) -> str | None:
        """Return the JSON of the run or of one member; made once for all readers with the same version. None: no such member."""
        wanted = (member, since, self.view.version)
        text = self._made.get(wanted)
        if text is None:
            made = run_document(self.view, since=since) if member is None else member_document(self.view, member, since=since)
            if made is None:
                return None
            made["ready"] = self.ready
            text = self._made[wanted] = compact(made)
            while len(self._made) > _KEPT:
                self._made.popitem(last=False)
        return text

    def version_of(self, identity: str) -> int:
        """Return the version in a message id that a browser sends back; 0 if the id is not ours."""
        start, _, number = identity.partition("-")
        if start != self._start or not (number.isascii() and number.isdecimal()) or len(number) > 18:
            return 0
        return min(int(number), self.view.version)

    async def messages(self, *, after: str, member: str | None) -> AsyncIterator[str]:
        """Yield server-sent events: first all changes since a message (`after`, empty for everything), then each change."""
        start, version = self._start, self.version_of(after)
        told_ready = None
        while not self._closed:
            if self.view.version > version or version == 0 or told_ready != self.ready:
                text = self.document(member, since=version)
                if text is not None:
                    version, told_ready = self.view.version, self.ready
                    yield f"id: {start}-{version}\ndata: {text}\n\n"
                await anyio.sleep(UPDATE_SECONDS)
                if self.view.version > version or self._closed:
                    continue
            with anyio.move_on_after(HEARTBEAT_SECONDS) as beat:
                await self._waiting.wait()
            if beat.cancelled_caught:
                yield ": still here\n\n"


class Feeds:
    """The runs that are shown, by key, in the order in which they are listed."""

    def __init__(self) -> None:
        self._feeds: dict[str, Feed] = {}

    def __iter__(self) -> Iterator[Feed]:
        return iter(list(self._feeds.values()))

    def get(self, key: str) -> Feed | None:
        """Return the run with this key; None if there is none."""
        return self._feeds.get(key)

    def add(self, key: str, view: RunView | None = None) -> Feed:
        """Add a run. If its key is already in use, a number is added to it."""
        free = next(
            name for name in itertools.chain([key], (f"{key} ({n})" for n in itertools.count(2))) if name not in self._feeds
        )
        feed = self._feeds[free] = Feed(free, view or RunView())
        return feed


def compact(document: Any) -> str:
    """Return JSON without spaces. Raises ValueError for numbers that JSON cannot express."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False)
