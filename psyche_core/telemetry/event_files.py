"""Files of events, one JSON object a line: written in parts, and read, also while they grow, merged by time.

A source is a member's program. Its file is `NAME.jsonl`, or several, `NAME.PART.jsonl`, read in the order of their names. Reading
is tolerant: a last line that is only half written waits for its other half, lines that are no events of ours are left out, and a
file that cannot be read now is tried again. All functions here block; programs with an event loop call them in a thread.
"""

from __future__ import annotations

import contextlib
import heapq
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from psyche_core.regular_files import regular
from psyche_core.telemetry.events import Event, PhaseChanged, Started
from psyche_core.telemetry.sinks import from_json, to_json

SUFFIX = ".jsonl"
CHUNK_BYTES = 1 << 18
MAX_LINE_BYTES = 1 << 20
"""A longer line is left out."""

MAX_FILES = 4096
MAX_RUNS = 512
MAX_EARLY_LINES = 200
"""Lines kept until a program has said who it is."""


class SourcedEvent(NamedTuple):
    """An event, who told it (name of the source), and when (unix seconds on the clock of that machine)."""

    time: float
    source: str
    event: Event


def source_of(path: Path) -> str:
    """The name of the source that wrote a file: `client-1` for `client-1.jsonl` and for `client-1.20260101T000000Z.jsonl`."""
    return path.name.removesuffix(SUFFIX).partition(".")[0] or path.name


class EventFolderReader:
    """All event files of one run: a folder of them, or files given one by one. `read` returns what is new at each call."""

    def __init__(self, *places: Path) -> None:
        self._places = places
        self._sources: dict[str, _Source] = {}

    def read(self) -> Iterator[SourcedEvent]:
        """The events that were written since the last call, merged by time. Exhaust it before the next call."""
        files = sorted({file for place in self._places for file in event_files(place)})
        for path in files[:MAX_FILES]:
            name = source_of(path)
            source = self._sources.get(name)
            if source is None:
                source = self._sources[name] = _Source(name)
            source.add(path)
        yield from heapq.merge(*(source.read() for source in list(self._sources.values())), key=lambda told: told.time)


def event_files(place: Path) -> list[Path]:
    """The event files in a folder, or the file itself; none if it cannot be read."""
    try:
        if not place.is_dir():
            return [place] if place.exists() else []
        return [path for path in place.iterdir() if path.name.endswith(SUFFIX) and not path.name.startswith(".")]
    except OSError:
        return []


def find_runs(root: Path) -> dict[str, Path]:
    """The runs in a folder: the folder itself, or the folders in it (and in those) that hold event files, by name.

    A folder counts as a run's if event files are in it, or in its folder `events`, as `psyche testnet start` lays them out.
    """
    own = _events_in(root)
    if own is not None:
        return {(root.resolve().name or "run"): own}

    found: dict[str, Path] = {}
    for child in _folders(root):
        inside = _events_in(child)
        if inside is not None:
            found[child.name] = inside
        else:
            found.update(
                {
                    f"{child.name}/{grandchild.name}": events
                    for grandchild in _folders(child)
                    if (events := _events_in(grandchild))
                }
            )
    return dict(list(found.items())[:MAX_RUNS])


def _events_in(folder: Path) -> Path | None:
    for place in (folder, folder / "events"):
        if place.is_dir() and event_files(place):
            return place

    return None


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))
    except OSError:
        return []


class _Source:
    """One program's files, read in the order of their names."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._files: dict[Path, int] = {}

    def add(self, path: Path) -> None:
        self._files.setdefault(path, 0)

    def read(self) -> Iterator[SourcedEvent]:
        for path in sorted(self._files):
            for told in self._read_file(path):
                yield SourcedEvent(told[0], self._name, told[1])

    def _read_file(self, path: Path) -> Iterator[tuple[float, Event]]:
        """Complete lines from where we were. The place is kept after each chunk, so a half line is read again."""
        with contextlib.suppress(OSError):
            size = path.stat().st_size
            if size < self._files[path]:
                self._files[path] = 0  # somebody wrote it anew
            if size == self._files[path]:
                return

            with open(path, "rb", buffering=0, opener=regular) as stream:  # Path.open has no opener
                stream.seek(self._files[path])
                kept = b""
                while chunk := stream.read(CHUNK_BYTES):
                    *lines, kept = (kept + chunk).split(b"\n")
                    for line in lines:
                        parsed = from_json(line.decode(errors="replace")) if len(line) <= MAX_LINE_BYTES else None
                        if parsed is not None:
                            yield parsed
                    if len(kept) > MAX_LINE_BYTES:
                        kept = kept[: MAX_LINE_BYTES + 1]  # its end is still to come, and then it is left out
                    self._files[path] = stream.tell() - len(kept)


class EventFolderWriter:
    """A sink that writes a program's events into a folder: `FOLDER/RUN/ROLE-ID.TIME.jsonl`, a new file for each epoch.

    keep: how many of the program's newest files are kept; 0 for all. Files of a program that was started again count too. Its
    first file since its start, which alone says whose they are, is kept besides. It is made once the program has said who it is
    (Started). Call `close` at the end. Raises OSError as files do; the
    event bus removes a sink that raises.
    """

    def __init__(self, folder: Path, *, keep: int = 0) -> None:
        self._folder = folder
        self._keep = keep
        self._early: list[str] = []
        self._place: Path | None = None
        self._name = ""
        self._epoch: int | None = None
        self._stream: io.TextIOWrapper | None = None
        self._first: Path | None = None

    def __call__(self, event: Event) -> None:
        """Write an event."""
        line = to_json(event) + "\n"
        if isinstance(event, Started) and self._place is None:
            self._place = self._folder / _folder_name(event.run_id)
            self._name = f"{event.role}-{event.id[:16]}"
            self._place.mkdir(parents=True, exist_ok=True)
            self._next_part()
        if self._stream is None:
            self._early = [*self._early, line][-MAX_EARLY_LINES:]
            return

        self._stream.write(line)
        self._stream.flush()
        if isinstance(event, PhaseChanged) and event.epoch != self._epoch:
            begun, self._epoch = self._epoch, event.epoch
            if begun is not None:
                self._next_part()

    def close(self) -> None:
        """Close the file."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _next_part(self) -> None:
        assert self._place is not None, "called after Started"
        self.close()
        path = self._place / f"{self._name}.{_stamp()}{SUFFIX}"
        self._stream = open(path, "a", encoding="utf-8", opener=regular)  # noqa: SIM115  # closed by close
        self._stream.writelines(self._early)
        self._early = []
        self._first = self._first or path
        if self._keep:
            mine = sorted(self._place.glob(f"{self._name}.*{SUFFIX}"))
            for old in [each for each in mine[: -self._keep] if each != self._first]:
                with contextlib.suppress(OSError):
                    old.unlink()


def _folder_name(run_id: str) -> str:
    """A run's name as the name of a folder, whatever characters it has."""
    name = quote(run_id, safe=" ")
    return name.replace(".", "%2E") if name.strip(".") == "" else name


def _stamp() -> str:
    """Now, so that names sort by time; with milliseconds, since epochs may be short."""
    now = time.time()
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime(now)) + f"{int(now * 1000) % 1000:03}Z"
