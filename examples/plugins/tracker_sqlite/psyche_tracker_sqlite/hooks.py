"""Registers the tracker `sqlite`."""

from __future__ import annotations

import os

from psyche_core.errors import UserError
from psyche_core.hookspecs import TrackerContext, TrackerRegistration, hookimpl
from psyche_core.interfaces import Tracker
from psyche_tracker_sqlite.settings import SqliteSettings

PSYCHE_PLUGIN_API = "1.0"


@hookimpl
def psyche_register_trackers() -> list[TrackerRegistration]:
    """One tracker."""
    summary = "figures and texts of all runs in one SQLite database"
    return [TrackerRegistration(name="sqlite", summary=summary, create=create, settings=SqliteSettings, check=check)]


def create(context: TrackerContext) -> Tracker:
    """The tracker of a member; context.settings is a validated SqliteSettings."""
    from psyche_tracker_sqlite.tracker import Sqlite

    return Sqlite(context.settings, context.run)


def check(settings: SqliteSettings) -> None:
    """Called before the run is joined, so that nobody trains for a week and finds nothing kept. Raises UserError."""
    file = settings.sqlite_file.absolute()
    existing = next(path for path in (file, *file.parents) if path.exists())
    fits = existing.is_file() if existing == file else existing.is_dir()
    if not fits or not os.access(existing, os.W_OK):
        message = f"{file} cannot be written; give another file with --sqlite-file"
        raise UserError(message)
