"""Writes the project of a new plugin: what `psyche plugins new` does."""

from __future__ import annotations

from pathlib import Path

from psyche_core.errors import UserError
from psyche_core.plugins.projects.generating import Answers, generated, words_of
from psyche_core.plugins.projects.record import RECORD, Record


def make_project(kind: str, name: str, *, out: Path | None = None) -> Path:
    """Write the project of a new plugin, and return its folder.

    kind: one of KINDS. name: the plugin's name, as runs and options will say it. out: the project's folder, which must be missing
    or empty; None for one in the current folder, named like the distribution. Raises UserError; then nothing was written.
    """
    answers = Answers.of(kind, name)
    contents = generated(answers)
    folder = Path(words_of(answers)["distribution"]) if out is None else out
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            message = f"{folder} exists and is not an empty folder; nothing was written; choose another with --out"
            raise UserError(message)
        for path, content in {**contents, RECORD: Record.of(answers, contents).document()}.items():
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    except OSError as error:
        message = f"cannot write the project to {folder}: {error.strerror}"
        raise UserError(message) from error

    return folder
