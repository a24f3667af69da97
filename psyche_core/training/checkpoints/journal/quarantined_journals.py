"""Journals that were set aside and may be needed again, because their run or history is the present one after all.

A coordinator may show another run of the same name for a while, for example because its server was started with a wrong folder.
Members then set their journal aside. When the right run is shown again, its journal must be used again. The caller decides which
rounds belong to the run's history; `journal` uses the file.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from psyche_core.errors import ModelError, WireError
from psyche_core.storage.disk_errors import disk_error_in
from psyche_core.storage.folders import flush
from psyche_core.training.checkpoints.journal.file import JournalFile, header_in
from psyche_core.training.checkpoints.journal_records import AppliedRound, Header
from psyche_core.training.checkpoints.quarantine_names import abandoned_name, abandoned_of, damaged_name

Reach = Callable[[Header, Sequence[AppliedRound]], int | None]
"""Returns the last step of the run's history up to which a journal with this header and these rounds can be used. It may be a
step before the journal's base. None if nothing in the journal belongs to that history."""


def take_journal_back(
    path: Path, *, instance: bytes, reach: Reach, certain: Callable[[Header], bool], report: Callable[[str], None]
) -> bool:
    """Restore the name of a journal that was set aside, if the present one is of another run, or missing. Returns whether it did.

    A present journal of this run is replaced only by a journal whose base is later than every step that the present one leads to,
    and only if that base is certain. A journal of another run is never used. path: of the journal, which must not be open.
    instance: of the run (32 bytes). certain: whether the model with which a journal begins is here and certainly belongs to the
    run's history. report: called with a sentence for each renamed file. Raises ModelError.
    """
    found = [(each, header) for each in abandoned_of(path) if (header := _header_of(each, instance)) is not None]
    if not found:
        return False

    ours = _header_of(path, instance) is not None
    present = _reach_of(path, reach) if ours else None
    usable: list[tuple[bool, bool, int, int, Path]] = []
    for each, header in found:
        to, sure = _reach_of(each, reach), certain(header)
        if to is None:
            continue
        leads = header.base_step <= to
        if not ours or (leads and sure and (present is None or (present <= header.base_step and present < to))):
            usable.append((leads, sure, to, header.base_step, each))
    if not usable:
        return False

    *_, base, chosen = max(usable, key=lambda one: one[:4])
    try:
        if path.exists():
            damaged = header_in(path) is None
            reason = "one that was set aside before leads further" if ours else "it belongs to another run"
            set_journal_aside(path, "it cannot be read" if damaged else reason, report=report, damaged=damaged)
        chosen.rename(path)
        flush(path.parent)
    except OSError as error:
        message = f"the journal {chosen} cannot be renamed back to {path.name}: {error.strerror or error}"
        raise ModelError(message) from error

    report(f"the journal {chosen}, which begins with step {base}, belongs to this run: it was renamed back to {path.name}")
    return True


def set_journal_aside(path: Path, reason: str, *, report: Callable[[str], None], damaged: bool = False) -> None:
    """Rename a journal's file that cannot be used now, and report why. damaged: it can never be used. Raises OSError."""
    target = damaged_name(path) if damaged else abandoned_name(path)
    path.rename(target)
    report(f"the journal {path} is not used: {reason}; it was renamed to {target.name}")


def keep_of_another_run(path: Path, *, instance: bytes) -> None:
    """Rename a file of another run's journal before it is replaced, because that run may return. Raises OSError."""
    header = header_in(path)
    if header is not None and header.instance != instance:
        path.rename(abandoned_name(path))


def _header_of(path: Path, instance: bytes) -> Header | None:
    header = header_in(path)
    return header if header is not None and header.instance == instance else None


def _reach_of(path: Path, reach: Reach) -> int | None:
    try:
        file = JournalFile.load(path)
    except (OSError, WireError):
        return None

    file.close()
    return reach(file.header, tuple(file.rounds))


def keep_damaged_end(file: JournalFile, path: Path) -> str:
    """Keep a copy of a file with a damaged end, unless the end is an unfinished write of less than a record.

    path: of the file. Returns what is lost, without a full stop. The caller removes the end.
    """
    if file.torn and file.lost <= file.largest:
        return f"the last {file.lost} bytes of the journal {path} were not completely written; they were removed"

    first, last = file.last_step + 1, file.lost_step
    lost = "what was added after it"
    if last is not None and last >= first:
        lost = (
            f"the rounds of steps {first} to {last}, {last + 1 - first} in all," if last > first else f"the round of step {last}"
        )
    copy = damaged_name(path)
    try:
        shutil.copyfile(path, copy)
        kept = f"a copy of the whole file was kept as {copy.name}"
    except OSError as error:
        with contextlib.suppress(OSError):
            copy.unlink()
        kept = f"no copy of it could be kept: {disk_error_in(error) or error}"
    return (
        f"the journal {path} is damaged after step {file.last_step}: {lost} cannot be restored from it, only from other members; "
        f"{kept}"
    )
