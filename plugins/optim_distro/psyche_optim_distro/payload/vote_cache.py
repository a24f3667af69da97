"""Keeps the votes of checked payloads in the form that their backend adds up, so that `apply` need not decode them again.

Payloads are decoded when they are checked, which happens while the next step trains. The cache holds a bounded number of bytes
and drops its oldest entries first. A payload whose votes were dropped is decoded again. The cache does not decide whether a
payload is valid: every check decodes the payload again.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol


class Votes(Protocol):
    """The decoded votes of a payload, of any backend."""

    @property
    def nbytes(self) -> int:
        """Size in bytes, without the payload."""


class VoteCache:
    """Votes by payload. Safe for use from several threads.

    limit: largest total size in bytes of the votes and of their payloads.
    """

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._votes: dict[bytes, Any] = {}  # in order of arrival
        self._lock = threading.Lock()

    def put(self, payload: bytes, votes: Votes) -> None:
        """Add the votes of a payload, and drop the oldest entries if the limit requires it."""
        with self._lock:
            if payload in self._votes:
                return

            self._votes[payload] = votes
            self._size += _entry_size(payload, votes)
            while self._size > self._limit:
                oldest = next(iter(self._votes))
                self._size -= _entry_size(oldest, self._votes.pop(oldest))

    def pop(self, payload: bytes) -> Any | None:
        """Remove and return the votes of a payload; None if the cache does not hold them."""
        with self._lock:
            votes = self._votes.pop(payload, None)
            if votes is not None:
                self._size -= _entry_size(payload, votes)
            return votes


def _entry_size(payload: bytes, votes: Votes) -> int:
    return len(payload) + votes.nbytes
