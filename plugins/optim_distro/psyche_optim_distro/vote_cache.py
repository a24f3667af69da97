"""Votes of payloads that were checked and may soon be applied, so that they are decoded once and while something else trains.

Decided here: a bounded number of bytes, the oldest go first; what was thrown away is decoded again. Refuses to be an answer:
whether a payload is valid is found out each time it is asked.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol


class Votes(Protocol):
    """The votes of a payload, as the mover reads them."""

    @property
    def nbytes(self) -> int:
        """Bytes they take."""


class VoteCache:
    """limit: bytes of votes and of the payloads they came from. Any thread."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._votes: dict[bytes, Any] = {}  # in order of arrival
        self._turn = threading.Lock()

    def put(self, payload: bytes, votes: Votes) -> None:
        """Keep the votes of a payload until they are taken or newer ones need the room."""
        with self._turn:
            if payload in self._votes:
                return

            self._votes[payload] = votes
            self._held += _size(payload, votes)
            while self._held > self._limit:
                oldest = next(iter(self._votes))
                self._held -= _size(oldest, self._votes.pop(oldest))

    def pop(self, payload: bytes) -> Any | None:
        """The votes of a payload, which are kept no longer; None when they are not here."""
        with self._turn:
            votes = self._votes.pop(payload, None)
            if votes is not None:
                self._held -= _size(payload, votes)
            return votes


def _size(payload: bytes, votes: Votes) -> int:
    return len(payload) + votes.nbytes
