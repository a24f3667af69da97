"""Keeps the run's state on disk: written before anybody is informed of a change, read at the next start.

Guarantee: everything that a member was told (a state, or that its request was done) is in the file or in a newer one. It holds
when the process is killed at any moment and when the machine loses power, if the file system implements fsync and rename
correctly. It holds for every single statement, not only for transitions: changes that arrive during a write are written together,
so a change waits for at most one more write. Changes that no member was told of may be lost.

A file is a line `psyche state 1`, the SHA-256 of the rest, and the rest: canonical CBOR. It is written beside the old one,
synced and renamed; the previous one is kept as `.previous`. The name is the run's id with everything but letters, digits, `_`,
`.`, `~` and `-` written as %XX, plus eight digits of its hash for case-insensitive file systems. A damaged file raises
UserError; an older state is never used in its place automatically, because members may know a newer one. If the file is
missing, as after a kill between the two renames, the previous one is used with a warning. If the owner puts an older file in
place, the previous one may be of a later state: it is kept as `.later`, so that the owner can still continue from there.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from psyche_backend_tcp.limits import SERVER_FRAME
from psyche_backend_tcp.protocol import MAX_PATCH_DEPTH, LaterState, read_document
from psyche_backend_tcp.server.hub import PendingSave
from psyche_core.config.run_config import CoordinatorConfig, from_plain, to_plain
from psyche_core.coordinator.serialization import VERSION
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import ConfigError, UserError, WireError
from psyche_core.interfaces.backend import StateUpdate
from psyche_core.regular_files import regular, regular_private
from psyche_core.wire.codec import decode, encode

logger: logging.Logger = logging.getLogger("psyche.backend.tcp")

_MAGIC = b"psyche state 1\n"
_OTHER_FORMAT = re.compile(rb"psyche state [0-9]{1,6}\n")
_DIGEST_BYTES = 32
MAX_BYTES = SERVER_FRAME + 64 * 1024


class _OtherRelease(WireError):
    """The file is valid, as far as can be seen, but of another release of this program."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The content of a file. opening: the run's own configuration, while the state still has that of its first epoch."""

    update: StateUpdate
    opening: CoordinatorConfig | None


def state_file(folder: Path, run_id: str) -> Path:
    """Return the path of a run's state file."""
    digest = hashlib.sha256(run_id.encode()).hexdigest()[:8]
    return folder / f"{quote(run_id, safe='')}-{digest}.state"


class StateStore:
    """One run's file. Blocking: use it in a worker thread, one call at a time."""

    def __init__(self, folder: Path, run_id: str) -> None:
        """Raises UserError when the folder cannot be made."""
        self.path: Path = state_file(folder, run_id)
        self._previous = self.path.with_name(self.path.name + ".previous")
        self.loaded: Path | None = None
        """File of the state that `load` returned."""

        self.later_path: Path = self.path.with_name(self.path.name + ".later")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"cannot keep the run's state in {folder}: {error.strerror}; choose another --save-state-dir"
            raise UserError(message) from error

    def load(self) -> Saved | None:
        """Return the state to resume, None at a first start. Raises UserError for a file that cannot be used."""
        # between the two renames of `save` only the previous file exists; nobody has been told of the newer one
        missing = not self.path.exists() and self._previous.exists()
        path = self._previous if missing else self.path
        try:
            with open(path, "rb", opener=regular) as file:
                content = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            message = f"cannot read the saved state {path}: {error.strerror}"
            raise UserError(message) from error

        try:
            saved = _read(content)
        except _OtherRelease as error:
            message = f"the saved state {path} cannot be used: {error}. {self._other_release(path)}"
            raise UserError(message) from error
        except WireError as error:
            message = f"the saved state {path} cannot be used: {error}. {self._advice(path)}"
            raise UserError(message) from error

        self.loaded = path
        if missing:
            logger.warning(
                "the saved state %s is missing, so the one before it is used: %s, at step %d; if you have a newer copy, stop "
                "the server and put that in its place",
                self.path,
                self._previous.name,
                saved.update.state.progress.step,
            )
        return saved

    def keep_later(self, state: CoordinatorState) -> CoordinatorState | None:
        """Return the latest state in this folder if it is later than `state`, with which we begin; else None.

        This happens if the owner put an older file in place. The later file is kept in `later_path`, where no save replaces it.
        Raises UserError if the folder cannot be written.
        """
        found = {path: _state_in(path) for path in (self._previous, self.later_path)}
        later = {
            path: other
            for path, other in found.items()
            if other is not None and other.instance == state.instance and LaterState.of(other) > LaterState.of(state)
        }
        if not later:
            return None

        path = max(later, key=lambda path: LaterState.of(later[path]))
        try:
            path.replace(self.later_path)
        except OSError as error:
            message = f"the later state {path} cannot be kept as {self.later_path}: {error.strerror}"
            raise UserError(message) from error

        return later[path]

    def save(self, pending_save: PendingSave) -> None:
        """Write a change durably. Raises UserError (disk full, no rights); then nobody may be informed of the change."""
        assert pending_save.draft is not None, "changes that cancelled out are on disk already"
        opening = to_plain(pending_save.opening) if pending_save.opening is not None else None
        body = encode([pending_save.draft.encoded, opening])
        temporary = self.path.with_name(self.path.name + ".new")
        try:
            with open(temporary, "wb", opener=regular_private) as file:
                file.write(_MAGIC + hashlib.sha256(body).digest() + body)
                file.flush()
                os.fsync(file.fileno())
            if self.path.exists():
                self.path.replace(self._previous)
            temporary.replace(self.path)
            self._sync_folder()
        except OSError as error:
            message = f"the run's state cannot be saved to {self.path}: {error.strerror}"
            raise UserError(message) from error

    def _sync_folder(self) -> None:
        """Make the renames durable; Windows has no such call and does not need it."""
        if os.name == "nt":
            return

        handle = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def _other_release(self, path: Path) -> str:
        """Return what to do about a file of another release: only that release continues the run."""
        aside = " and ".join(each.name for each in (path, self._previous, self.later_path) if each == path or each.exists())
        return (
            "To continue the run, start that release again, with the same folder. This release can only begin a new run, at step "
            f"1: move {aside} away. The model need not be lost: members keep their checkpoints of the old run under other names; "
            "upload the newest one and name it as checkpoint in the run's file, and the new run begins with it"
        )

    def _advice(self, path: Path) -> str:
        """Return what to do about a file that cannot be used: another usable file, a backup, or a new run and what it means."""
        others = [other for other in (self._previous, self.later_path) if other not in (path, self.path) and other.exists()]
        sound = [(other, state) for other in others if (state := _state_in(other)) is not None]
        if sound:
            found = ", or ".join(f"{other} of step {state.progress.step}" for other, state in sound)
            return (
                f"An older or later state that can be used: {found}. Move {path.name} away and rename that file to "
                f"{self.path.name} to go on from there; members then begin anew from their checkpoints and journals"
            )

        unusable = "".join(f"{other.name} cannot be used either. " for other in others)
        aside = " and ".join(each.name for each in (path, *others))
        return (
            f"{unusable}Look for a backup of this folder first: put its copy in place, and the run goes on from there. "
            f"Without one only a new run is possible: move {aside} away, and the server begins at step 1 with the model that the "
            "run's file names. Its members then set aside their checkpoints of this run; to train on from what they hold, upload "
            "the newest one and name it as checkpoint in the run's file"
        )


def _state_in(path: Path) -> CoordinatorState | None:
    """Return the state in a file; None if there is no file or it cannot be used."""
    try:
        with open(path, "rb", opener=regular) as file:
            return _read(file.read(MAX_BYTES + 1)).update.state
    except (OSError, WireError):
        return None


def _read(content: bytes) -> Saved:
    if len(content) > MAX_BYTES:
        message = f"it is over {MAX_BYTES} bytes"
        raise WireError(message)

    if not content.startswith(_MAGIC):
        if _OTHER_FORMAT.match(content):
            message = "another release of this program wrote it, in another format of file"
            raise _OtherRelease(message)
        message = "it is not a saved state"
        raise WireError(message)

    digest, body = content[len(_MAGIC) :][:_DIGEST_BYTES], content[len(_MAGIC) + _DIGEST_BYTES :]
    if hashlib.sha256(body).digest() != digest:
        message = "it is damaged"
        raise WireError(message)

    match decode(body, max_bytes=MAX_BYTES, max_depth=MAX_PATCH_DEPTH):
        case [bytes() as document, opening]:
            tree = decode(document, max_bytes=SERVER_FRAME, max_depth=MAX_PATCH_DEPTH)
            _check_release(tree)
            return Saved(read_document(tree), _opening(opening))
        case _:
            message = "it is malformed"
            raise WireError(message)


def _check_release(tree: Any) -> None:
    """Raise _OtherRelease for a document whose state is of another version of the format."""
    match tree:
        case {"state": {"version": int() as version}} if version != VERSION:
            which = "an older" if version < VERSION else "a newer"
            message = f"{which} release of this program wrote it (its state has version {version}, this release reads {VERSION})"
            raise _OtherRelease(message)


def _opening(plain: Any) -> CoordinatorConfig | None:
    try:
        return None if plain is None else from_plain(CoordinatorConfig, plain)
    except ConfigError as error:
        message = f"its configuration is malformed: {error}"
        raise WireError(message) from error
