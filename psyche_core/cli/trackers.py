"""Trackers of a command: chosen by name, checked before anything starts, running while the command does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from pydantic import BaseModel

from psyche_core.cli.options import option_words
from psyche_core.config.options.loading import load_settings
from psyche_core.telemetry.sinks import Sink

if TYPE_CHECKING:
    from psyche_core.interfaces import TrackedRun, Tracker
    from psyche_core.plugins import PluginRegistry


@contextmanager
def running_trackers(names: Sequence[str], given: Mapping[str, Any], registry: PluginRegistry) -> Iterator[list[Sink]]:
    """Sinks of trackers, which end with the block; that waits for them, but not for long.

    given: all options of the command, those of the trackers among them. Raises UserError for a name that is not there and for
    settings that cannot work.
    """
    if not names:
        yield []
        return

    from psyche_core.exporters.tracker_thread import TrackerThread, close_all

    makers = _makers(names, given, registry)
    threads = [TrackerThread(name, create, explain=registry.explain) for name, create in makers]
    try:
        yield [*threads]
    finally:
        if close_all(threads):
            abandon()


def abandon() -> None:
    """Let `main` end the process at once: a library that hangs would wait in its exit handlers, too."""
    context = click.get_current_context(silent=True)
    switches = None if context is None else context.find_root().obj
    if switches is not None:
        switches.abandons = True


def _makers(
    names: Sequence[str], given: Mapping[str, Any], registry: PluginRegistry
) -> list[tuple[str, Callable[[TrackedRun], Tracker]]]:
    """Each tracker's name and what makes it, all of them checked."""
    from psyche_core.hookspecs import TrackerContext

    found: list[tuple[str, Callable[[TrackedRun], Tracker]]] = []
    for name in names:
        registration = registry.load("tracker", name)
        settings = _settings(registration.settings, given)
        if registration.check is not None:
            registration.check(settings)

        def create(
            run: TrackedRun, *, make: Callable[[TrackerContext], Tracker] = registration.create, settings: Any = settings
        ) -> Tracker:
            return make(TrackerContext(run=run, settings=settings))

        found.append((name, create))
    return found


def tracker_words(names: Sequence[str], given: Mapping[str, Any], registry: PluginRegistry) -> list[str]:
    """The options that make another command use the same trackers. Paths are absolute. Raises UserError as above."""
    words: list[str] = []
    for name, _ in _makers(names, given, registry):
        words += ["--tracker", name]
        words += option_words(_settings(registry.load("tracker", name).settings, given))
    return words


def _settings(cls: type[BaseModel] | None, given: Mapping[str, Any]) -> BaseModel | None:
    if cls is None:
        return None

    return load_settings(cls, {name: value for name, value in given.items() if name in cls.model_fields})
