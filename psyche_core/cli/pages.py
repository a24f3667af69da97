"""The web page beside other programs: of this very process, or of a folder of event files.

Starlette and uvicorn are imported only if a page is asked for.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeVar

import anyio
import click

from psyche_core.coordinator.state import CoordinatorState
from psyche_core.telemetry.event_files import SourcedEvent
from psyche_core.telemetry.sinks import Sink

_Result = TypeVar("_Result")

Beside = Callable[[Path], AbstractAsyncContextManager[None]]


def print_address(url: str) -> None:
    """Say on stderr where the page is: standard output may be a stream of events."""
    click.echo(f"the run's page is at {url}", err=True)


class Page:
    """A page of this process's run; of nothing if `port` is None.

    per_address: most connections of one address. sinks: what enters this process's events. follow: what enters its states; None
    without a page. enter: takes what another process told. Raises UserError if the page cannot be served.
    """

    def __init__(self, port: int | None, *, host: str, per_address: int, token_file: Path | None, source: str) -> None:
        self.sinks: tuple[Sink, ...] = ()
        self.follow: Callable[[CoordinatorState], None] | None = None
        self.enter: Callable[[SourcedEvent], None] = lambda _: None
        self._serving: Callable[[], AbstractAsyncContextManager[str]] | None = None
        if port is None:
            return

        from psyche_core.web.access import Access
        from psyche_core.web.feeds import Feeds
        from psyche_core.web.hosting import listen, new_server, serving
        from psyche_core.web.sources import own_events
        from psyche_core.web.visitors import VisitorLimits

        access, feeds = Access.load(token_file), Feeds()
        feed = feeds.add(source)
        new_server(feeds, access)  # reports what is missing now
        listening, limits = listen(host, port), VisitorLimits(per_address=per_address)

        def follow(state: CoordinatorState) -> None:
            feed.view.follow(time.time(), state)
            feed.changed()

        self.sinks = (own_events(feed, source=source),)

        def enter(told: SourcedEvent) -> None:
            feed.view.handle(told.source, told.time, told.event)
            feed.changed()

        self.follow, self.enter = follow, enter
        self._serving = lambda: serving(feeds, access, listening, limits=limits)

    async def beside(self, program: Callable[[], Awaitable[_Result]]) -> _Result:
        """Run a program, with the page beside it if there is one."""
        if self._serving is None:
            return await program()

        async with self._serving() as url:
            print_address(url)
            return await program()


def page_of_folder(port: int | None, *, host: str, per_address: int, token_file: Path | None) -> Beside | None:
    """What serves a page of a folder of events while it is entered; None if no port is given. Raises UserError."""
    if port is None:
        return None

    from psyche_core.web.access import Access
    from psyche_core.web.feeds import Feeds
    from psyche_core.web.hosting import listen, new_server, serving
    from psyche_core.web.sources import watch_folder
    from psyche_core.web.visitors import VisitorLimits

    access, feeds = Access.load(token_file), Feeds()
    new_server(feeds, access)  # reports what is missing now
    listening, limits = listen(host, port), VisitorLimits(per_address=per_address)

    @contextlib.asynccontextmanager
    async def beside(folder: Path) -> AsyncIterator[None]:
        async with serving(feeds, access, listening, limits=limits) as url, anyio.create_task_group() as tasks:
            print_address(url)
            tasks.start_soon(watch_folder, folder, feeds)
            yield
            tasks.cancel_scope.cancel()

    return beside
