"""Interface of a source of remote files, which lists its files and reads bytes of them.

A file is identified by its size and its validators (a version, an ETag, a date). Reading fails if any of these changes while
the file is in use. After a failed attempt, reading continues from the last byte received.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from hashlib import sha256

from psyche_core.errors import DataError
from psyche_data_http.addresses import shown
from psyche_data_http.retries import Backoff, LastFailure, TransientError


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file as it was when it was found.

    url: its address, with secrets if it has any. size: in bytes. etag and modified: as the server sent them, None if it did not.
    version: set if the address names a version, so that other content has another address.
    """

    url: str
    size: int
    etag: str | None = None
    modified: str | None = None
    version: str | None = None

    @property
    def name(self) -> str:
        """The address without secrets, for messages."""
        return shown(self.url)

    @property
    def condition(self) -> str | None:
        """The value for `If-Range`: a strong ETag, else the date (RFC 9110, section 13.1.5)."""
        return self.etag if self.etag is not None and not self.etag.startswith("W/") else self.modified

    @property
    def identity(self) -> str | None:
        """A digest that is equal only for equal content; None if the server gives no validator."""
        known = (self.etag, self.modified, self.version)
        if known == (None, None, None):
            return None

        return sha256(repr((self.url, self.size, *known)).encode()).hexdigest()[:32]


class AccessRefused(DataError):
    """The server refuses us access, with or without credentials."""


class FileSource(ABC):
    """A source of files. Its error messages contain no secrets."""

    @abstractmethod
    async def files(self, last_failure: LastFailure) -> list[RemoteFile]:
        """Return the files as they are now, in their order. Retries temporary failures. Raises DataError."""

    @abstractmethod
    async def receive(self, file: RemoteFile, start: int, wanted: int, received: bytearray) -> None:
        """Append up to `wanted` bytes from `start` to `received`, in one attempt; bytes appended before a failure are valid.

        Raises TransientError for temporary failures, else DataError, also when the file is no longer the one that was found.
        """

    def serves_ranges(self, file: RemoteFile) -> bool:  # noqa: ARG002  # subclasses may decide for each file
        """Return False for a file whose server ignores ranges and sends the whole file."""
        return True


async def read_range(source: FileSource, file: RemoteFile, start: int, length: int, last_failure: LastFailure) -> bytearray:
    """Return bytes start .. start + length - 1 of a file. Raises DataError; may retry forever: call it with a deadline."""
    received = bytearray()
    pauses = Backoff(last_failure)
    while len(received) < length:
        before = len(received)
        try:
            await source.receive(file, start + before, length - before, received)
        except TransientError as error:
            if len(received) > before:
                pauses.begin_again()
            await pauses.after(error)

    return received


def changed(file: RemoteFile, how: str) -> DataError:
    """Return the error for a file that has changed since it was found."""
    return DataError(
        f"{file.name} changed while it was in use ({how}); restore it or start again, so that everybody reads the same tokens"
    )
