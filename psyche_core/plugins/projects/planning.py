"""What an update does with each file of a project. Only reads.

A file is replaced only if its digest says that it is as it was generated. So an author's text stays where it is, always, and a
newer text of the template is put beside it, as FILE.new.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from psyche_core.errors import UserError
from psyche_core.plugins.projects.generating import Answers, generated, words_of
from psyche_core.plugins.projects.record import RECORD, Record, digest
from psyche_core.regular_files import NotRegular, regular

Outcome = Literal["added", "replaced", "beside", "kept", "removed", "left", "current"]
"""What happens to a file.

added: the template is new, and the project has no such file. replaced: the author has not changed it, the template has. beside:
both have, so the template's text is put beside it. kept: only the author has. removed: the author has removed it. left: the
templates no longer have it; it stays. current: it is what the template gives.
"""

_MOST_BESIDE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What happens to one file.

    Attributes:
        path: in the project.
        outcome: see `Outcome`.
        mine: what is there; None if nothing is, or what is no plain file.
        template: what the template gives; None if no template has it.
        new: path of the file that is written; empty if none is.
    """

    path: str
    outcome: Outcome
    mine: bytes | None = None
    template: bytes | None = None
    new: str = ""

    def diff(self) -> str:
        """From what is there to the template's text, as a unified diff; empty if nothing is written."""
        if not self.new or self.template is None:
            return ""
        try:
            before, after = ((side or b"").decode() for side in (self.mine, self.template))
        except UnicodeDecodeError:
            return f"--- {self.path}\n+++ {self.new}\n(no text)\n"
        lines = difflib.unified_diff(
            before.splitlines(keepends=True),
            after.splitlines(keepends=True),
            "/dev/null" if self.mine is None else self.path,
            self.new,
        )
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An update of a project.

    Attributes:
        folder: of the project.
        made_by: the psyche-core that made it or updated it last; empty if that is not known.
        record: what the project's record says afterwards.
        recorded: whether it says so already.
        changes: by path, in order.
    """

    folder: Path
    made_by: str
    record: Record
    recorded: bool
    changes: tuple[Change, ...]


def plan_update(folder: Path, *, kind: str | None = None, name: str | None = None) -> Plan:
    """What the present templates change in a project.

    kind, name: of the plugin, for a project that has no record of it; what its author wrote cannot be told from what was
    generated there, so nothing is replaced. Raises UserError for a folder that is no project, for a record that is damaged or
    of a newer psyche, and where a file would be written through a symbolic link.
    """
    record = Record.read(folder)
    answers = _adopted(folder, kind, name) if record is None else record.answers
    if record is not None and (kind or answers.kind, name or answers.name) != (answers.kind, answers.name):
        message = f"{folder / RECORD} says {answers.kind}.{answers.name}; leave out --kind and --name"
        raise UserError(message)

    contents = generated(answers)
    changes = compared(folder, {} if record is None else record.digests, contents)
    after = Record.of(answers, contents)
    version = "" if record is None else record.version
    return Plan(folder=folder, made_by=version, record=after, recorded=record == after, changes=changes)


def compared(folder: Path, digests: Mapping[str, str], contents: Mapping[str, bytes]) -> tuple[Change, ...]:
    """Each file of a record and of the templates. digests: of files as they were generated. Raises UserError."""
    try:
        changes = tuple(_change(folder, path, digests.get(path), contents) for path in sorted({*digests, *contents}))
        for change in changes:
            if change.new:
                _expect_folders(folder, change.new)
    except OSError as error:
        message = f"cannot read {error.filename}: {error.strerror}; nothing was changed"
        raise UserError(message) from error

    return changes


def _change(folder: Path, path: str, made: str | None, contents: Mapping[str, bytes]) -> Change:
    """made: digest of the file as it was generated."""
    place, template = folder / path, contents.get(path)
    there = os.path.lexists(place)
    if template is None:
        return Change(path=path, outcome="left" if there else "removed")

    mine = _content(place)
    known = Change(path=path, outcome="current", mine=mine, template=template)
    if mine == template:
        return known
    if not there:
        outcome: Outcome = "added" if made is None else "removed"
        return Change(path=path, outcome=outcome, template=template, new=path if made is None else "")
    if mine is not None and digest(mine) == made:
        return Change(path=path, outcome="replaced", mine=mine, template=template, new=path)
    if digest(template) == made:
        return Change(path=path, outcome="kept", mine=mine, template=template)
    return Change(path=path, outcome="beside", mine=mine, template=template, new=_beside(folder, path, contents))


def _content(place: Path) -> bytes | None:
    """What is in a file; None if there is none, or a link, a folder or a device in its place. Raises OSError."""
    if place.is_symlink():
        return None
    try:
        with open(place, "rb", opener=regular) as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError, NotRegular):
        return None


def _beside(folder: Path, path: str, contents: Mapping[str, bytes]) -> str:
    """The first name beside a file that is free, or has the template's text already."""
    for number in range(1, _MOST_BESIDE):
        beside = f"{path}.new" if number == 1 else f"{path}.{number}.new"
        place = folder / beside
        if beside not in contents and (not os.path.lexists(place) or _content(place) == contents[path]):
            return beside
    message = f"there are {_MOST_BESIDE} newer texts beside {path}; remove what you do not need"
    raise UserError(message)


def _expect_folders(folder: Path, path: str) -> None:
    """Raises UserError if something on the way to a file is no folder of the project."""
    for parent in (Path(path), *Path(path).parents)[1:-1]:
        place = folder / parent
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            what = "a symbolic link" if place.is_symlink() else "no folder"
            message = f"cannot write {path} into {folder}: {parent} is {what}; nothing was changed; move it away for the update"
            raise UserError(message)


def _adopted(folder: Path, kind: str | None, name: str | None) -> Answers:
    """The answers of a project without a record. Raises UserError."""
    named = _entry_points(folder)
    if kind is None or name is None:
        known = f"--kind {named[0].replace('.', ' --name ', 1)}" if len(named) == 1 else "--kind and --name"
        message = (
            f"{folder} has no {RECORD}, so nothing says which files its author changed; if psyche plugins new made it, give "
            f"{known}: nothing is replaced then, and newer texts are put beside its files"
        )
        raise UserError(message)
    if f"{kind}.{name}" not in named:
        message = f"pyproject.toml in {folder} names no plugin {kind}.{name}; it names {', '.join(named) or 'none'}"
        raise UserError(message)

    answers = Answers(kind=kind, name=name, year=datetime.now(tz=UTC).year)
    licence = _content(folder / "LICENSE") or b""
    year = re.search(rb"Copyright \(c\) (\d{4}) the authors of " + words_of(answers)["distribution"].encode(), licence)
    return answers if year is None else Answers(kind=kind, name=name, year=int(year[1]))


def _entry_points(folder: Path) -> list[str]:
    """The plugins that a project says it has. Raises UserError for a folder that is no project."""
    path = folder / "pyproject.toml"
    try:
        with open(path, "rb", opener=regular) as file:
            project: Any = tomllib.load(file)
        return sorted(map(str, project["project"]["entry-points"]["psyche.plugins"]))
    except (KeyError, TypeError):
        return []
    except OSError as error:
        message = f"{folder} is no project of a plugin: cannot read {path}: {error.strerror}; give the folder of one"
        raise UserError(message) from error
    except ValueError as error:
        message = f"cannot read {path}: {error}; mend it first"
        raise UserError(message) from error
