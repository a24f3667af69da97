"""`psyche replay`: a finished run once more, in the console or on a page."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import click

from psyche_core.cli.lazy import example
from psyche_core.cli.options import ENVIRONMENT_NOTE, settings_options
from psyche_core.cli.program import log_to_stderr, run_program
from psyche_core.cli.reference_options import SettingsCommand
from psyche_core.config.options.loading import load_settings
from psyche_core.config.options.replay import ReplaySettings
from psyche_core.errors import InputError
from psyche_core.telemetry.event_files import EventFolderReader, SourcedEvent, event_files, find_runs


@click.command(
    cls=SettingsCommand,
    epilog=example(
        "psyche replay runs/demo",
        "psyche replay runs/demo --speed 100 --from-step 400",
        "psyche replay server.jsonl client-1.jsonl client-2.jsonl --speed 60 --web-port 8420",
        note=ENVIRONMENT_NOTE,
    ),
)
@click.argument("events", nargs=-1, required=True, type=click.Path(path_type=Path))
@settings_options(ReplaySettings)
def replay(events: tuple[Path, ...], **given: Any) -> int:
    """Play a finished run from its event files, at any speed. EVENTS are its members' files, or a folder of them.

    `psyche testnet start` and --events-dir write them. All files are merged by the times in them. The run is shown as it was when
    it ran: as a live panel or with --tui as a full screen, and with --web-port also on a web page, which stays until Ctrl-C (the
    page beside a full screen: until that is closed).
    """
    settings = load_settings(ReplaySettings, given)
    log_to_stderr()
    run_program(functools.partial(_play, settings, [_run_at(place) for place in events]))
    return 0


def _run_at(place: Path) -> Path:
    """The event file, or the folder of one run's event files, that is meant by a path. Raises InputError."""
    if place.is_file():
        return place
    if not place.is_dir():
        message = f"there is nothing at {place}; give event files (*.jsonl) or the folder of a run"
        raise InputError(message)

    runs = find_runs(place)
    if len(runs) > 1:
        shown = ", ".join(sorted(runs)[:5])
        message = f"{place} holds {len(runs)} runs, and one is played at a time; give one of its folders: {shown}"
        raise InputError(message)
    found = next(iter(runs.values()), place)
    if not event_files(found):
        message = f"{place} has no event files (*.jsonl); `psyche testnet start --out` and --events-dir write them"
        raise InputError(message)

    return found


async def _play(settings: ReplaySettings, places: list[Path]) -> None:
    from rich.console import Console

    from psyche_core.cli.pages import Page
    from psyche_core.cli.screens import TUI, fitting
    from psyche_core.tui.screen import Screen
    from psyche_core.ui.live import Display, LineDisplay, LiveDisplay, SilentDisplay
    from psyche_core.ui.run_metrics import RunMetrics
    from psyche_core.ui.run_report import make_report
    from psyche_core.ui.summary import summary

    first = await anyio.to_thread.run_sync(lambda: next(EventFolderReader(*places).read(), None))
    if first is None:
        message = (
            f"no event of a run is in {', '.join(map(str, places))}; "
            "expected the folder of --events-dir or `psyche testnet start --out`"
        )
        raise InputError(message)

    page = Page(
        settings.web_port,
        host=settings.web_host,
        per_address=settings.web_per_address,
        token_file=settings.token_file,
        source="replay",
    )
    metrics, console = RunMetrics(run_id="", allow_lost_shares=True), Console()
    newest = first.time
    kinds: dict[str, type[Display]] = {"none": SilentDisplay, "console": LineDisplay}
    logs = fitting(settings.logs)
    kind = kinds.get(logs, LiveDisplay if console.is_terminal else LineDisplay)

    async def run() -> None:
        nonlocal newest
        began = time.monotonic()
        with kind(metrics, console, now=lambda: newest) as display:
            async for told in _timed(settings, EventFolderReader(*places).read(), began=began):
                newest = max(newest, told.time)
                _name(metrics, told)
                metrics.handle(told.source, told.time, told.event)
                display.show(told.source, told.event)
                page.enter(told)
        if settings.logs != "none":
            console.print(summary(metrics, make_report(metrics, wall_seconds=newest - first.time), files=[]))
        if settings.web_port is not None:
            click.echo("the run is over; its page stays until Ctrl-C", err=True)
            await anyio.sleep_forever()

    async def run_on_screen() -> None:
        with contextlib.closing(Screen("replay", title="", after=lambda _: None)) as screen:
            async for told in _timed(settings, EventFolderReader(*places).read(), began=time.monotonic()):
                await screen.caught_up()
                screen.show(told.source, told.event, moment=told.time)
                page.enter(told)
                if not screen.up:
                    return
            screen.end(stays=True)
            await screen.closed()

    await page.beside(run_on_screen if logs == TUI else run)


def _name(metrics: Any, told: SourcedEvent) -> None:
    """What a testnet knows from its run file, a replay learns from the members' first events."""
    from psyche_core.telemetry.events import Started

    if isinstance(told.event, Started):
        metrics.run_id = metrics.run_id or told.event.run_id
        metrics.total_steps = told.event.total_steps or metrics.total_steps


PATIENCE = 0.02
"""Shorter waits than this, in seconds, are put together."""

BATCH = 500
"""Events that are read at once, and played without a wait before the page's readers have their turn."""


async def _timed(settings: ReplaySettings, events: Iterator[SourcedEvent], *, began: float) -> AsyncIterator[SourcedEvent]:
    """The events, each when its time has come. Files are read as they are needed, in a thread, so a long run begins at once."""
    from psyche_core.observer.replay_timing import paced

    played = paced(events, speed=settings.speed, max_pause=settings.max_pause, from_step=settings.from_step)
    while batch := await anyio.to_thread.run_sync(lambda: list(itertools.islice(played, BATCH))):
        for moment, told in batch:
            ahead = began + moment - time.monotonic()
            if ahead > PATIENCE:
                await anyio.sleep(ahead)
            yield told
