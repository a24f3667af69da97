"""The lock that lets only one process use a run's journal in a folder of checkpoints, and the journal's paths.

The system releases the lock when its process ends. `journal` reads and writes the files.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from psyche_core.errors import ConfigError
from psyche_core.regular_files import NotRegular, expect_regular
from psyche_core.storage.checkpoint_names import name_of


def journal_path(folder: Path, run_id: str) -> Path:
    """Return the path of a run's journal in our folder of checkpoints."""
    return folder / f"{name_of(run_id)}-journal.bin"


def earlier_path(path: Path) -> Path:
    """Return the path of the journal before the one at `path`."""
    return path.with_name(f"{path.stem}-earlier{path.suffix}")


def replacement_path(path: Path) -> Path:
    """Return the path where the new file of a journal is written until it is complete."""
    return path.with_name(f".{path.name}.new")


def lock_journal(folder: Path, run_id: str) -> BaseFileLock:
    """Lock a run's journal for this process, until the lock is released. Creates the folder; does not read the journal.

    Raises ConfigError if another process has the lock, if the folder cannot be written, or if one of the journal's paths is not a
    regular file.
    """
    path = journal_path(folder, run_id)
    lock_path = path.with_name(f".{path.name}.lock")
    lock = FileLock(lock_path, thread_local=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        for each in (lock_path, path, earlier_path(path), replacement_path(path)):
            with contextlib.suppress(FileNotFoundError):
                expect_regular(each)
        lock.acquire(timeout=0)
        if not path.exists() and replacement_path(path).exists():
            os.replace(replacement_path(path), path)  # noqa: PTH105 - a process died between the two renames of `Journal.begin`
    except Timeout as error:
        message = f"another process uses the journal {path}; give each client its own folder of checkpoints"
        raise ConfigError(message) from error
    except NotRegular as error:
        message = f"the journal {path} cannot be used: {error.filename} is {error.kind}, expected a regular file; move it away"
        raise ConfigError(message) from error
    except OSError as error:
        lock.release()
        message = f"the journal {path} cannot be opened: {error.strerror or error}; give a folder that can be written"
        raise ConfigError(message) from error

    return lock
