"""Finished cells in a file, one JSON line each: written at once, and not measured again."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

from benchmarks.peers.systems import SYSTEMS


class Results:
    """The file of a measurement. Its first line says with what it was measured; other settings need another file.

    No other program can measure into the same file until this context is left. Raises SystemExit if one does.
    """

    def __init__(self, file: Path, setting: Mapping[str, Any]) -> None:
        self._file = file
        self.cells: dict[str, dict[str, Any]] = {}
        file.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(file)
        try:
            self._open(setting)
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def _open(self, setting: Mapping[str, Any]) -> None:
        file = self._file
        lines = _whole_lines(file)
        if not lines:
            file.write_text(json.dumps({"setting": dict(setting)}) + "\n")
            return
        if lines[0].get("setting") != json.loads(json.dumps(dict(setting))):
            message = f"{file} was measured with other settings; choose another --out, or delete it"
            raise SystemExit(message)
        unknown = sorted({line["key"].split("/")[0] for line in lines[1:]} - set(SYSTEMS))
        if unknown:
            message = f"{file} has cells of {', '.join(unknown)}, which this version does not measure; choose another --out"
            raise SystemExit(message)
        self.cells = {line["key"]: line for line in lines[1:]}
        self._mend()

    def _mend(self) -> None:
        """Take the file's last line away if it was cut off."""
        text = self._file.read_bytes()
        if not text.endswith(b"\n"):
            os.truncate(self._file, text.rfind(b"\n") + 1)

    def add(self, found: Mapping[str, Any]) -> None:
        """Keep a finished cell."""
        self.cells[found["key"]] = dict(found)
        with self._file.open("a") as stream:
            stream.write(json.dumps(dict(found)) + "\n")
            stream.flush()
            os.fsync(stream.fileno())


def _locked(file: Path) -> IO[str]:
    """The file, opened and locked until it is closed."""
    opened = file.open("a")
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        opened.close()
        message = f"another program measures into {file.parent}; wait until it has ended, or choose another --out"
        raise SystemExit(message) from None
    return opened


def _whole_lines(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]]
