"""What is particular to sqlite."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from psyche_tracker_sqlite.hooks import check
from psyche_tracker_sqlite.settings import SqliteSettings
from psyche_tracker_sqlite.tracker import Sqlite

from psyche_core.errors import UserError
from psyche_core.testing.tracker import tracked


def test_members_share_a_database_while_they_train(tmp_path: Path) -> None:
    settings = SqliteSettings(sqlite_file=tmp_path / "new" / "figures.sqlite3")
    trackers = [Sqlite(settings, tracked(member=member * 32)) for member in ("ab", "cd")]
    for step in (1, 2):
        for number, tracker in enumerate(trackers):
            tracker.log_figures(step, {"train/loss": 4.0 - step - number / 4}, time=float(step))
    with closing(sqlite3.connect(settings.sqlite_file)) as database:
        query = (
            "SELECT member, step, value FROM figures JOIN runs ON runs.id = run WHERE key = 'train/loss' ORDER BY member, step"
        )
        rows = [(member[:2], step, value) for member, step, value in database.execute(query)]
    assert rows == [("ab", 1, 3.0), ("ab", 2, 2.0), ("cd", 1, 2.75), ("cd", 2, 1.75)]
    for tracker in trackers:
        tracker.finish(success=True, reason="over")
    with closing(sqlite3.connect(settings.sqlite_file)) as database:
        assert database.execute("SELECT success, reason FROM runs").fetchall() == [(1, "over")] * 2


def test_a_folder_in_place_of_the_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--sqlite-file"):
        check(SqliteSettings(sqlite_file=tmp_path))
    check(SqliteSettings(sqlite_file=tmp_path / "new" / "figures.sqlite3"))
