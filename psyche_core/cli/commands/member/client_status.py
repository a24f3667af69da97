"""`psyche client status`: which event files are a client's own, and its status as lines of text."""

from __future__ import annotations

import re
import time
from pathlib import Path
from urllib.parse import unquote

from psyche_core.errors import InputError
from psyche_core.observer.client_status import ClientStatus, Document
from psyche_core.telemetry.event_files import EventFolderReader, event_files, find_runs, source_of
from psyche_core.ui.console import PATH_WORDS, paths_text
from psyche_core.ui.formatting import bytes_text, count_text, duration_text

QUIET_SECONDS = 120.0
"""A client that runs tells something at least every half minute."""

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


def status_lines(document: Document, *, now: float | None = None) -> list[str]:
    """A document of `ClientStatus` as lines for people. now: unix seconds; default: the present."""
    now = time.time() if now is None else now
    rows = [
        ("run", f"{document['run_id'] or 'unknown'}, client {document['id'][:16] or 'unknown'}"),
        ("place", _place(document, now)),
        ("phase", _phase(document)),
        ("step", _step(document)),
        ("traffic", f"sent {bytes_text(document['bytes_sent'])}, received {bytes_text(document['bytes_received'])}"),
        ("members", _members(document, now)),
    ]
    lines = [f"{name + ':':<12} {value}" for name, value in rows]
    width = max((len(peer["peer"]) for peer in document["peers"]), default=0)
    for peer in document["peers"]:
        rtt = "" if peer["rtt_ms"] is None else f"{peer['rtt_ms']:.0f} ms"
        rates = f"sent {bytes_text(peer['sent_per_second'])}/s, received {bytes_text(peer['received_per_second'])}/s"
        lines.append(f"  {peer['peer']:<{width}}  {peer['path']:<7}  {rtt:>7}  {rates}")
    for name, word in (("checkpoint", "path"), ("stored", "location")):
        if document[name] is not None:
            saved = document[name]
            lines.append(f"{name + ':':<12} after step {saved['step']}, {_ago(saved['time'], now)}: {saved[word]}")
    if document["checkpoint"] is None and document["stored"] is None:
        lines.append(f"{'checkpoint:':<12} none yet")
    if document["problem"] is not None:
        lines.append(f"{'problem:':<12} {_ago(document['problem']['time'], now)}: {document['problem']['text']}")
    newest = document["newest"]
    if newest is not None:
        quiet = now - newest > QUIET_SECONDS and document["place"] not in ("finished", "failed", "ejected")
        lines.append(f"{'last event:':<12} {_ago(newest, now)}{'; the client may have stopped' if quiet else ''}")
    return lines


def _place(document: Document, now: float) -> str:
    if document["place"] is None:
        return "unknown"

    why = f": {document['place_why']}" if document["place_why"] else ""
    return f"{document['place']}, for {duration_text(max(0.0, now - document['place_since']))}{why}"


def _phase(document: Document) -> str:
    if document["phase"] is None:
        return "unknown"

    height = "" if document["round"] is None else f", round {document['round']}"
    return f"{document['phase']}, epoch {document['epoch']}{height}, {document['clients']} clients"


def _step(document: Document) -> str:
    total = "" if document["total_steps"] is None else f" of {document['total_steps']}"
    loss = "" if document["loss"] is None else f", loss {document['loss']:.3f} at step {document['trained_step']}"
    rate = f", {count_text(document['tokens_per_second'])} tokens/s" if document["tokens_per_second"] else ""
    return f"{document['step']}{total}{loss}{rate}"


def _members(document: Document, now: float) -> str:
    if document["peers_at"] is None:
        return "nothing told of the paths to them yet"

    counts = {path: sum(peer["path"] == path for peer in document["peers"]) for path in PATH_WORDS}
    return f"{paths_text(counts) if document['peers'] else 'no others'} ({_ago(document['peers_at'], now)})"


def _ago(moment: float, now: float) -> str:
    return f"{duration_text(max(0.0, now - moment))} ago"


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
