"""What every place that files come from is to the provider: it knows its files, and brings bytes of them.

Decided: a file is known by its size and by what its server says of its content (a version, an ETag, a date), and is refused when
any of these changes while it is in use. Reading goes on from the last byte received, whatever ended the attempt before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from hashlib import sha256

from psyche_core.errors import DataError
from psyche_data_http.addresses import shown
from psyche_data_http.retries import Backoff, PassingError, Trouble


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file as it was found.

    url: where, with secrets if it has any. size in bytes. etag and modified: as the server said them, None where it did not.
    version: of one whose address names it, so that other content has another address.
    """

    url: str
    size: int
    etag: str | None = None
    modified: str | None = None
    version: str | None = None

    @property
    def name(self) -> str:
        """The address as messages may show it."""
        return shown(self.url)

    @property
    def condition(self) -> str | None:
        """What `If-Range` may hold: a strong ETag, else the date (RFC 9110, section 13.1.5)."""
        return self.etag if self.etag is not None and not self.etag.startswith("W/") else self.modified

    @property
    def identity(self) -> str | None:
        """A digest equal for equal content only; None where the server says too little to tell."""
        known = (self.etag, self.modified, self.version)
        if known == (None, None, None):
            return None

        return sha256(repr((self.url, self.size, *known)).encode()).hexdigest()[:32]


class AccessRefused(DataError):
    """Whoever we are to the server, it does not let us read."""


class Store(ABC):
    """A place that files come from. Messages of its errors hold no secrets."""

    @abstractmethod
    async def files(self, trouble: Trouble) -> list[RemoteFile]:
        """The files as they are now, in the order they count. Tries again what may pass. Raises DataError."""

    @abstractmethod
    async def receive(self, file: RemoteFile, start: int, wanted: int, received: bytearray) -> None:
        """Append up to `wanted` bytes from `start` to `received`, in one attempt; what was appended stays valid if this fails.

        Raises PassingError for what may pass, DataError for the rest, also when the file is no longer the one found.
        """

    def serves_ranges(self, file: RemoteFile) -> bool:  # noqa: ARG002  # a place that knows better asks by file
        """False for a file whose server sends all of it whatever is asked for."""
        return True


async def read_range(store: Store, file: RemoteFile, start: int, length: int, trouble: Trouble) -> bytearray:
    """Bytes start .. start + length - 1 of a file. Raises DataError; endless without a deadline around it."""
    received = bytearray()
    pauses = Backoff(trouble)
    while len(received) < length:
        before = len(received)
        try:
            await store.receive(file, start + before, length - before, received)
        except PassingError as error:
            if len(received) > before:
                pauses.begin_again()
            await pauses.after(error)

    return received


def changed(file: RemoteFile, how: str) -> DataError:
    """The error for a file that is not what it was when it was found."""
    return DataError(
        f"{file.name} changed while it was in use ({how}); restore it or start again, so that everybody reads the same tokens"
    )
