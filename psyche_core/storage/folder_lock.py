"""A folder to which only one program at a time may write its state.

The operating system holds the lock and releases it when the process ends, also after a crash. The lock file is empty and hidden,
and it is not removed: otherwise two programs could lock two files of the same name. Programs that only read need no lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from psyche_core.errors import ConfigError

LOCK_FILE = ".server.lock"
"""Name of the lock file in a server's folder. The file exists even when no program holds the lock."""


@contextmanager
def locked_folder(folder: Path, *, argument: str) -> Iterator[None]:
    """Lock a folder for the state of this server until the block ends. Creates the folder if necessary.

    argument: the option or argument that named the folder, for error messages. Raises ConfigError if another server has the lock,
    or if the folder cannot be written. Blocks for a short time; the block may end in another thread.
    """
    if folder.exists() and not folder.is_dir():
        message = f"{argument} {folder} is a file; give a folder (created if missing)"
        raise ConfigError(message)

    lock = FileLock(folder / LOCK_FILE, thread_local=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout as error:
        message = f"another server keeps its state in {folder}; stop that server, or use another {argument}"
        raise ConfigError(message) from error
    except OSError as error:
        message = f"cannot keep the run's state in {folder}: {error.strerror}; choose another {argument}"
        raise ConfigError(message) from error

    try:
        yield
    finally:
        lock.release()
