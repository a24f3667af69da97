"""The content of a journal, as its reader returns it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from psyche_core.errors import ModelError, WireError
from psyche_core.training.checkpoints.journal.file import JournalFile
from psyche_core.training.checkpoints.journal_records import AppliedRound, Header, StoredResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The content of a journal.

    rounds: of steps base_step + 1, base_step + 2, … without a gap. pending: results of later steps. payload: returns the payload
    with a SHA-256, or raises ModelError. It reads the journal's file, so it works only while the journal is open and before the
    next `begin`.
    """

    header: Header
    rounds: tuple[AppliedRound, ...]
    pending: tuple[StoredResult, ...]
    payload: Callable[[bytes], bytes]

    @property
    def last_step(self) -> int:
        """The last step that can be replayed, or the step of the base if there are no rounds."""
        return self.header.base_step + len(self.rounds)


class EarlierJournal:
    """The journal before the present one, open for reading only. Closes itself at the end of a `with` block."""

    def __init__(self, file: JournalFile) -> None:
        self._file = file
        self.damage: str = file.damage  # why the data after the rounds was not read; empty if there is none
        self.recovered: Recovered = Recovered(
            header=file.header, rounds=tuple(file.rounds), pending=tuple(file.pending), payload=self._payload
        )

    def __enter__(self) -> Self:
        """Return the journal itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._file.close()

    def _payload(self, payload_hash: bytes) -> bytes:
        try:
            return self._file.payload(payload_hash)
        except (KeyError, OSError, WireError) as error:
            message = f"the journal before the last checkpoint does not contain payload {payload_hash.hex()[:16]}…"
            raise ModelError(message) from error
