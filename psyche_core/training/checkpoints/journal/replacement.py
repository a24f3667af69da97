"""Writes a new journal next to the old one and then replaces the old one, so that there is always a complete one.

`journal` decides when, and which records of the old one are copied.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from psyche_core.errors import ModelError, WireError
from psyche_core.storage.disk_errors import disk_error_in
from psyche_core.training.checkpoints.journal.file import JournalFile, named
from psyche_core.training.checkpoints.journal.lock import earlier_path, replacement_path
from psyche_core.training.checkpoints.journal.quarantined_journals import keep_of_another_run
from psyche_core.training.checkpoints.journal_records import AppliedRound, Header, StoredResult

_COPY_BYTES: Final = 8 * 2**20
"""A copy is synced when this many bytes are in memory; one payload more may be in memory."""

_REWOUND = 2
"""Number of results per slot and step that `rewind` keeps: those of the two newest histories."""


@contextmanager
def replacement(journal: Path, header: Header, *, keep_old: bool) -> Iterator[JournalFile]:
    """Give a new file to write; it replaces the journal's file when the block ends, and stays open.

    keep_old: whether the old one becomes the earlier one. Raises ModelError, also for a disk error in the block; then the old
    journal stays.
    """
    path, earlier = replacement_path(journal), earlier_path(journal)
    try:
        new = JournalFile.create(path, header)
        try:
            yield new
            new.sync()
            if keep_old:
                keep_of_another_run(earlier, instance=header.instance)
                os.replace(journal, earlier)  # noqa: PTH105 - it replaces on every system
            try:
                os.replace(path, journal)  # noqa: PTH105
            except OSError:
                if keep_old:
                    os.replace(earlier, journal)  # noqa: PTH105
                raise
        except BaseException:
            new.close()
            with contextlib.suppress(OSError):
                path.unlink()
            raise
    except (OSError, WireError) as error:
        message = f"the journal {journal} could not be restarted with step {header.base_step}: {disk_error_in(error) or error}"
        raise ModelError(message) from error


def newest_results(records: Iterable[StoredResult | AppliedRound], *, after: int) -> set[StoredResult | AppliedRound]:
    """Return the newest results of each slot and step after `after`: a limited number, however often the run goes back."""
    found: dict[tuple[int, int], deque[StoredResult]] = {}
    for each in records:
        if isinstance(each, StoredResult) and each.step > after:
            found.setdefault((each.step, each.slot), deque(maxlen=_REWOUND)).append(each)
    return {each for kept in found.values() for each in kept}


def copy_records(source: JournalFile, records: Iterable[StoredResult | AppliedRound], target: JournalFile) -> None:
    """Copy records and the payloads they refer to into `target`. Raises OSError, WireError."""
    for record in records:
        for each in named(record):
            if not target.has_payload(each):
                target.add_payload(source.payload(each), each)
        target.add(record)
        if target.waiting > _COPY_BYTES:
            target.sync()
