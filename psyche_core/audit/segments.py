"""A journal as an audit knows it: which rounds it has, and with which masters it begins. Its payloads stay on the disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from psyche_core.training.checkpoints.journal_records import AppliedRound, Header


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A journal in a file: the rounds after one step, without a gap.

    rounds: of steps header.base_step + 1, header.base_step + 2, … size: of the file in bytes. damage: why what comes after the
    last of these rounds cannot be read; empty if nothing is damaged. counted: how many of the rounds are of the run's history;
    None for all.
    """

    path: Path
    header: Header
    rounds: tuple[AppliedRound, ...]
    size: int
    damage: str = ""
    counted: int | None = None

    @property
    def base_step(self) -> int:
        """The step whose masters it begins with."""
        return self.header.base_step

    @property
    def last_step(self) -> int:
        """The step of its last round that counts; base_step if it has none."""
        return self.header.base_step + (len(self.rounds) if self.counted is None else self.counted)

    def history_after(self, step: int) -> bytes:
        """Digest of the run's decisions up to a step (32 bytes) of its base or its rounds; NO_DIGEST if unknown."""
        return self.header.base_history if step == self.base_step else self.round_of(step).history

    def covers(self, step: int) -> bool:
        """Whether the round of a step is in it."""
        return self.base_step < step <= self.last_step

    def round_of(self, step: int) -> AppliedRound:
        """The round of a step that it covers."""
        return self.rounds[step - self.base_step - 1]
