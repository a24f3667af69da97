"""One database for all runs and members: their figures can be compared with SQL while they train.

SELECT runs.name, step, value FROM figures JOIN runs ON runs.id = run WHERE key = 'train/loss' ORDER BY step;
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

from psyche_core.interfaces.tracker import TrackedRun, Tracker
from psyche_tracker_sqlite.settings import SqliteSettings

LOCK_SECONDS = 30.0
"""How long a call waits for another member's."""

_TABLES = """
CREATE TABLE IF NOT EXISTS runs (
    id INTEGER PRIMARY KEY, name TEXT, run_id TEXT, member TEXT, config TEXT, success INTEGER, reason TEXT
);
CREATE TABLE IF NOT EXISTS figures (run INTEGER, step INTEGER, key TEXT, value REAL, time REAL, PRIMARY KEY (run, key, step));
CREATE TABLE IF NOT EXISTS texts (run INTEGER, step INTEGER, key TEXT, text TEXT, time REAL, PRIMARY KEY (run, key, step));
"""


class Sqlite(Tracker):
    """Made, called and ended by one thread, which may wait for the disk. A step that comes again replaces the earlier one."""

    def __init__(self, settings: SqliteSettings, run: TrackedRun) -> None:
        settings.sqlite_file.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(settings.sqlite_file, timeout=LOCK_SECONDS)
        self._database.execute("PRAGMA journal_mode=WAL")  # so that who reads waits for nobody
        self._database.executescript(_TABLES)
        row = (run.name, run.run_id, run.member, json.dumps(dict(run.config), default=str))
        with self._database:
            added = self._database.execute("INSERT INTO runs (name, run_id, member, config) VALUES (?, ?, ?, ?)", row)
        self._run = added.lastrowid

    def log_figures(self, step: int, figures: Mapping[str, float], *, time: float) -> None:
        """A row for each figure, all in one transaction."""
        rows = [(self._run, step, key, float(value), time) for key, value in figures.items()]
        with self._database:
            self._database.executemany("INSERT OR REPLACE INTO figures VALUES (?, ?, ?, ?, ?)", rows)

    def log_text(self, step: int, key: str, text: str, *, time: float) -> None:
        """A row with the text as it is."""
        with self._database:
            self._database.execute("INSERT OR REPLACE INTO texts VALUES (?, ?, ?, ?, ?)", (self._run, step, key, text, time))

    def finish(self, *, success: bool, reason: str) -> None:
        """How the run ended."""
        with self._database:
            self._database.execute("UPDATE runs SET success = ?, reason = ? WHERE id = ?", (success, reason, self._run))
        self._database.close()
