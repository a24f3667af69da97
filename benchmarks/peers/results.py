"""Finished cells in a file, one JSON line each: written at once, and not measured again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Results:
    """The file of a measurement. Its first line says with what it was measured; other settings need another file."""

    def __init__(self, file: Path, setting: Mapping[str, Any]) -> None:
        self._file = file
        self.cells: dict[str, dict[str, Any]] = {}
        lines = _whole_lines(file)
        if not lines:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({"setting": dict(setting)}) + "\n")
            return
        if lines[0].get("setting") != json.loads(json.dumps(dict(setting))):
            message = f"{file} was measured with other settings; choose another --out, or delete it"
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


def _whole_lines(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]]
