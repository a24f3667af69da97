"""Every check that a tracker must pass. `read` reads back what it kept, with a connection of its own."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from psyche_tracker_sqlite.hooks import psyche_register_trackers
from psyche_tracker_sqlite.settings import SqliteSettings

from psyche_core.testing.registration import RegistrationConformance
from psyche_core.testing.tracker import Kept, TrackerConformance


class TestSqlite(TrackerConformance):
    registration = psyche_register_trackers()[0]
    hooks = "psyche_tracker_sqlite.hooks"

    def settings(self, folder: Path) -> SqliteSettings:
        return SqliteSettings(sqlite_file=folder / "figures.sqlite3")

    def read(self, folder: Path) -> Kept:
        with closing(sqlite3.connect(folder / "figures.sqlite3")) as database:
            figures = {(key, step): value for key, step, value in database.execute("SELECT key, step, value FROM figures")}
            texts = {(key, step): text for key, step, text in database.execute("SELECT key, step, text FROM texts")}
            (config,) = database.execute("SELECT config FROM runs ORDER BY id DESC").fetchone()
        return Kept(figures, texts, {name: str(value) for name, value in json.loads(config).items()})


class TestRegistration(RegistrationConformance):
    kind, name = "tracker", "sqlite"

    def settings(self, folder: Path) -> dict[str, str]:
        return {"sqlite_file": str(folder / "figures.sqlite3")}
