"""Whose folder of checkpoints it is: a small file in it names the member that used it last for a run.

Checkpoints and the journal do not say who wrote them, because the model is the same whoever saved it. So a folder of another
member can be used and is not refused; but it may have been chosen by mistake, so the user is told. The file is only a note: if it
cannot be read or written, everything goes on.
"""

from __future__ import annotations

import os
from pathlib import Path

from psyche_core.regular_files import regular
from psyche_core.training.checkpoints.checkpoint import name_of

_KEY_BYTES = 32


def member_file(folder: Path, run_id: str) -> Path:
    """Where a folder names its member."""
    return folder / f".{name_of(run_id)}-member"


def last_member(folder: Path, run_id: str) -> bytes | None:
    """The public key of the member that used the folder last, None where nobody wrote it down."""
    try:
        with open(member_file(folder, run_id), "rb", opener=regular) as file:
            key = bytes.fromhex(file.read(2 * _KEY_BYTES).decode("ascii"))
    except (OSError, ValueError):
        return None

    return key if len(key) == _KEY_BYTES else None


def note_member(folder: Path, run_id: str, public: bytes) -> None:
    """Write down who uses the folder from now on."""
    path = member_file(folder, run_id)
    partial = path.with_name(f"{path.name}.new")
    try:
        with open(partial, "wb", opener=regular) as file:
            file.write(public.hex().encode() + b"\n")
        os.replace(partial, path)  # noqa: PTH105 - it replaces on every system
    except OSError:
        return  # a disk that cannot take this says so where it matters
