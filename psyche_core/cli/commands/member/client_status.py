"""`psyche client status`: which event files are a client's own, and its status from them. As text: `ui.client_status_text`."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from psyche_core.errors import InputError
from psyche_core.observer.client_status import ClientStatus
from psyche_core.telemetry.event_files import EventFolderReader, event_files, find_runs, source_of

CLIENT_PREFIX = "client-"
"""How the event files of clients begin in a folder, see `telemetry.event_files`."""

_OF_FOLDER = re.compile(rf"{CLIENT_PREFIX}([0-9a-f]{{16}})")
"""Files of --events-dir. --keep-event-files deletes the first ones, which say who wrote them in which run; their names do too."""


def newest_client(folder: Path) -> list[Path]:
    """The event files of the client in a folder of `--events-dir` that wrote last. Raises InputError if there is none."""
    places = {folder, *find_runs(folder).values()} if folder.is_dir() else set[Path]()
    files = [path for place in places for path in event_files(place) if path.name.startswith(CLIENT_PREFIX)]
    if not files:
        message = (
            f"there are no event files of a client ({CLIENT_PREFIX}*.jsonl) in {folder}; "
            "`psyche client train --events-dir` writes them"
        )
        raise InputError(message)

    newest = max(files, key=_changed)
    return sorted(path for path in files if path.parent == newest.parent and source_of(path) == source_of(newest))


def read_status(files: list[Path]) -> ClientStatus:
    """The status after all events in files of one client. Raises InputError if they are not a client's."""
    named = _OF_FOLDER.fullmatch(source_of(files[0]))
    status, told = (ClientStatus(run_id=unquote(files[0].parent.name), id=named[1]) if named else ClientStatus()), 0
    for told, each in enumerate(EventFolderReader(*files).read(), 1):  # noqa: B007  # counted
        status.handle(each.time, each.event)
    shown = files[-1]
    if told == 0:
        why = "has no events yet" if shown.exists() else "does not exist"
        message = f"{shown} {why}; `psyche client train --events-file` writes a client's events"
        raise InputError(message)
    if status.role not in ("", "client"):
        message = f"{shown} was written by a {status.role}, expected the events of a client; `psyche replay` shows other files"
        raise InputError(message)

    return status


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
