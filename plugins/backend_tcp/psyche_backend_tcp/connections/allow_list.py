"""The list of keys that may log in: a text file, read again whenever it changes.

One public key per line, 64 hex digits (`psyche client show-identity` prints a client's); empty lines and text after a `#` are
ignored. If the file becomes unreadable or malformed, the last valid list stays in use and an error is logged, so that a typing
mistake does not disconnect all clients. A server does not start with such a file.
"""

from __future__ import annotations

import logging
from pathlib import Path

from psyche_core.errors import UserError
from psyche_core.regular_files import read_entries

logger: logging.Logger = logging.getLogger("psyche.backend.tcp")


class AllowList:
    """The keys in a file. Blocking: construct and `refresh` it in a worker thread."""

    def __init__(self, path: Path) -> None:
        """Raises UserError when the file cannot be read or has a line that is no key."""
        self._path = path
        self._stamp = self._stamped()
        self._keys = self._read()

    def __contains__(self, public: bytes) -> bool:
        return public in self._keys

    def refresh(self) -> bool:
        """Read the file again if it has changed; return whether the keys changed."""
        try:
            stamp = self._stamped()
            if stamp == self._stamp:
                return False

            self._stamp = stamp
            keys = self._read()
        except UserError as error:
            logger.error("%s; the previous list stays in use", error)  # noqa: TRY400  # the message is enough
            return False

        changed, self._keys = keys != self._keys, keys
        if changed:
            logger.info("%s now allows %d keys", self._path, len(keys))
        return changed

    def _stamped(self) -> tuple[int, int, int]:
        try:
            status = self._path.stat()
        except OSError as error:
            message = f"cannot read the allow-list {self._path}: {error.strerror}"
            raise UserError(message) from error

        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> frozenset[bytes]:
        keys = set()
        for number, digits in read_entries(self._path, "the allow-list"):
            try:
                key = bytes.fromhex(digits)
            except ValueError:
                key = b""
            if len(key) != 32:
                message = f"{self._path}, line {number}: expected a public key of 64 hex digits, got {digits[:80]!r}"
                raise UserError(message)

            keys.add(key)
        return frozenset(keys)
