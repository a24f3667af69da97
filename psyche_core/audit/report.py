"""What an audit found, as sentences for people and as a document for programs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

UNCHECKED: Final = (
    "Not checked, since journals do not say it: which statements of witnesses accepted the results (only their digest is there), "
    "whether a member was given the share that it trained, and whether its result is honest work."
)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference that an audit found. After one of the computed weights, nothing was computed.

    step: at which it stands. what: a sentence without a full stop. source: the file that says otherwise.
    """

    step: int
    what: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The result of an audit.

    instance: of the run, 64 hex digits. start_step: of the model that it began with. last_step: the last one whose results were
    applied. digest: full digest of the masters then, 64 hex digits; empty after a difference. results: accepted results that were
    checked and applied. members: distinct signers of these. compared: number of digests and decisions of others that were
    compared. payload_bytes: of these results. file_bytes: size of the journals used. seconds: wall time of the replay. notes:
    sentences about files that were not used. out: folder of the model that was written, if any.
    """

    run_id: str
    instance: str
    start: str
    start_step: int
    last_step: int
    digest: str
    results: int
    members: int
    compared: int
    payload_bytes: int
    file_bytes: int
    seconds: float
    difference: Difference | None
    notes: Sequence[str] = ()
    out: str | None = None

    @property
    def verified(self) -> bool:
        """Whether no difference was found."""
        return self.difference is None

    def document(self) -> dict[str, Any]:
        """All of it, for programs."""
        difference = self.difference
        return {
            "verdict": "verified" if difference is None else "difference",
            "run_id": self.run_id,
            "instance": self.instance,
            "start": {"step": self.start_step, "model": self.start},
            "last_step": self.last_step,
            "digest": self.digest or None,
            "steps": self.last_step - self.start_step,
            "results": self.results,
            "members": self.members,
            "digests_compared": self.compared,
            "payload_bytes": self.payload_bytes,
            "file_bytes": self.file_bytes,
            "seconds": round(self.seconds, 3),
            "difference": None
            if difference is None
            else {"step": difference.step, "what": difference.what, "source": difference.source},
            "notes": list(self.notes),
            "out": self.out,
        }

    def lines(self, *, size: str, duration: str) -> list[str]:
        """The summary. size, duration: payload_bytes and seconds as text."""
        steps = self.last_step - self.start_step
        lines = [f"note: {note}" for note in self.notes]
        lines.append(
            f"audited {steps:,} {'step' if steps == 1 else 'steps'} of run {self.run_id} (instance {self.instance[:16]}…), "
            f"{self.start_step} to {self.last_step}, from {self.start}"
        )
        lines.append(
            f"{self.results:,} accepted results of {self.members} {'member' if self.members == 1 else 'members'}, {size} of "
            f"payloads, {duration}; {self.compared} {'digest' if self.compared == 1 else 'digests'} of others compared"
        )
        if self.difference is None:
            lines.append(f"VERIFIED: the model after step {self.last_step} is {self.digest}")
            if not self.compared:
                lines.append("No journal or checkpoint says what this model should be: compare the digest with others' yourself.")
        else:
            lines.append(f"DIFFERENCE at step {self.difference.step}: {self.difference.what} ({self.difference.source})")
        if self.out is not None:
            lines.append(f"the model after step {self.last_step} is in {self.out}")
        lines.append(UNCHECKED)
        return lines
