"""Ends a client whose plugin fails in several pieces of work in a row: it would fail again and never take part.

A single failure is an event that the client machine handles. Failures caused by other members or the network do not count. This
module also remembers the failures that other parts report to people.
"""

from __future__ import annotations

from psyche_core.client.machine import actions as act
from psyche_core.client.machine.events import Applied, ModelFetched, Trained, WorkDone
from psyche_core.errors import PluginFailed

MAX_FAILURES = 5
"""Failures in a row after which the client stops."""


class FailuresInARow:
    """Counts failures of one kind of work. what: names the work in the message, as in `4 shares`."""

    def __init__(self, what: str, *, limit: int = MAX_FAILURES) -> None:
        self._what = what
        self._limit = limit
        self._count = 0

    def succeeded(self) -> None:
        """Start to count from zero."""
        self._count = 0

    def failed(self, sentence: str, cause: Exception) -> None:
        """Count a failure. sentence: what failed, with the plugin's name. Raises PluginFailed at the last failure allowed."""
        self._count += 1
        if self._count >= self._limit:
            message = (
                f"{sentence}; {self._count} {self._what} in a row have failed, so this client stops: mend the plugin or its "
                "settings, then start the client again"
            )
            raise PluginFailed(message) from cause


class WorkFailures:
    """Failures of our own work.

    Attributes:
        training_fails: whether our last share was not trained because of something on this machine.
        apply_failure: why results could not be applied, if our masters are unusable since then; None otherwise.
    """

    def __init__(self) -> None:
        self.training_fails: bool = False
        self.apply_failure: str | None = None
        self._shares = FailuresInARow("shares")
        self._steps = FailuresInARow("steps")

    def note_success(self, done: WorkDone) -> None:
        """Restart the count of this kind of work. A model from other members is usable even if our apply had failed."""
        match done:
            case Trained():
                self._shares.succeeded()
                self.training_fails = False
            case Applied():
                self._steps.succeeded()
                self.apply_failure = None
            case ModelFetched():
                self.apply_failure = None

    def note_failure(self, work: act.Work, sentence: str, error: Exception) -> None:
        """Count a failure. Raises PluginFailed if work of this kind failed too often in a row."""
        if isinstance(work, act.Train):
            self.training_fails = True
            self._shares.failed(sentence, error)
        elif isinstance(work, act.Apply):
            self.apply_failure = sentence
            self._steps.failed(sentence, error)


def not_done(work: act.Work) -> str:
    """Return what was not done, as the beginning of a sentence."""
    match work:
        case act.Load():
            return "the model was not loaded"
        case act.Train():
            return f"step {work.step} was not trained"
        case act.Apply():
            return f"the results of step {work.step} were not applied"
        case act.Digest():
            return f"the digest of the model in round {work.height} was not taken"
        case act.CloseEpoch():
            return f"the end of epoch {work.epoch} was not worked off"
        case act.TakeSnapshot():
            return f"the model after step {work.step} cannot be offered to others"
        case act.FetchModel():
            return f"the model after step {work.step} could not be had from others"
        case act.Recompute():
            return f"another member's share of step {work.step} was not recomputed"
