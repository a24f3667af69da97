"""Records which member uses a folder of checkpoints: a small file in it names the member that used it last for a run.

Checkpoints and the journal do not say who wrote them, because the model is the same for all members. So a folder of another
member can be used and is not an error; but the user may have chosen it by mistake, so the client shows a message. The file is
only informative: if it cannot be read or written, the client continues.
"""

from __future__ import annotations

import os
from pathlib import Path

from psyche_core.regular_files import regular
from psyche_core.storage.checkpoint_names import name_of

_KEY_BYTES = 32


def member_file(folder: Path, run_id: str) -> Path:
    """Return the path of the file that names the member of a folder."""
    return folder / f".{name_of(run_id)}-member"


def last_member(folder: Path, run_id: str) -> bytes | None:
    """Return the public key (32 bytes) of the member that used the folder last, or None if it is not known."""
    try:
        with open(member_file(folder, run_id), "rb", opener=regular) as file:
            key = bytes.fromhex(file.read(2 * _KEY_BYTES).decode("ascii"))
    except (OSError, ValueError):
        return None

    return key if len(key) == _KEY_BYTES else None


def note_member(folder: Path, run_id: str, public: bytes) -> None:
    """Record the member that uses the folder from now on. public: its public key, 32 bytes. Errors are ignored."""
    path = member_file(folder, run_id)
    partial = path.with_name(f"{path.name}.new")
    try:
        with open(partial, "wb", opener=regular) as file:
            file.write(public.hex().encode() + b"\n")
        os.replace(partial, path)  # noqa: PTH105 - it replaces on every system
    except OSError:
        return  # a full or broken disk is reported when a checkpoint is saved
