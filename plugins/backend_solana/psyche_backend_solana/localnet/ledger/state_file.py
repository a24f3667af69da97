"""The chain's state on disk: a line `psyche localnet 1`, the SHA-256 of the rest, and the rest, canonical CBOR.

The file is written beside the old one, synced and renamed, so that a process killed at any moment leaves one complete state.
Changes since the last save are lost if the process is killed; a chain for development need not save every transaction. A damaged
file raises an error and is never changed.
"""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from typing import Any

from psyche_core.errors import UserError, WireError
from psyche_core.regular_files import regular, regular_private
from psyche_core.wire.codec import decode, encode

_MAGIC = b"psyche localnet 1\n"
_VERSIONS = b"psyche localnet "
_DIGEST_BYTES = 32
_MAX_ITEMS = 10_000_000


class StateFile:
    """One chain's file. Blocking: use it in a worker thread.

    max_bytes: maximum size of the file, checked before anything is decoded.
    """

    def __init__(self, path: Path, *, max_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._lock = threading.Lock()

    def load(self) -> Any:
        """The saved plain values; None if there are none. Raises UserError for a file that cannot be used."""
        try:
            with open(self.path, "rb", opener=regular) as file:
                content = file.read(self._max_bytes + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            message = f"cannot read the chain's state {self.path}: {error.strerror}"
            raise UserError(message) from error

        try:
            return self._read(content)
        except WireError as error:
            raise self.unusable(error) from error

    def unusable(self, error: WireError) -> UserError:
        """The error for a file that cannot be used."""
        return UserError(f"the chain's state {self.path} cannot be used: {error}. Move it away, or start anew with --reset")

    def save(self, plain: dict[str, Any]) -> None:
        """Write the file durably. Raises UserError (disk full, no permission, too large)."""
        with self._lock:
            body = encode(plain)
            if len(body) > self._max_bytes - 100:
                message = f"the chain's state has {len(body)} bytes, over the limit of {self._max_bytes}; it is not saved"
                raise UserError(message)

            try:
                self._write(_MAGIC + hashlib.sha256(body).digest() + body)
            except OSError as error:
                message = f"the chain's state cannot be saved to {self.path}: {error.strerror}"
                raise UserError(message) from error

    def _read(self, content: bytes) -> Any:
        if len(content) > self._max_bytes:
            message = f"it is over {self._max_bytes} bytes"
            raise WireError(message)

        if not content.startswith(_MAGIC):
            message = "another release wrote it" if content.startswith(_VERSIONS) else "it is not a saved chain"
            raise WireError(message)

        digest, body = content[len(_MAGIC) :][:_DIGEST_BYTES], content[len(_MAGIC) + _DIGEST_BYTES :]
        if hashlib.sha256(body).digest() != digest:
            message = "it is damaged"
            raise WireError(message)

        return decode(body, max_bytes=self._max_bytes, max_items=_MAX_ITEMS)

    def _write(self, content: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(self.path.name + ".new")
        with open(temporary, "wb", opener=regular_private) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        if os.name != "nt":  # makes the rename durable; Windows has no such call and needs none
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
