"""Exceptions for a broken invariant."""

from __future__ import annotations

from psyche_core.simulator.script import Script


class SimFailure(Exception):
    """An invariant broke. invariant: its name; time: virtual seconds; sentence: what was observed; script: the whole run.

    It means a bug in the simulated code or in the simulator.
    """

    def __init__(self, *, invariant: str, time: float, sentence: str, script: Script) -> None:
        super().__init__(f"seed {script.seed}, {invariant} at {time:.2f} s: {sentence}")
        self.invariant = invariant
        self.time = time
        self.sentence = sentence
        self.script = script

    def __reduce__(self) -> tuple[object, ...]:
        """For pickling: an exception that cannot be unpickled would end the process pool that transfers it."""
        return _failure, (self.invariant, self.time, self.sentence, self.script)

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.script.seed


def _failure(invariant: str, time: float, sentence: str, script: Script) -> SimFailure:
    return SimFailure(invariant=invariant, time=time, sentence=sentence, script=script)


class InvariantViolation(Exception):
    """Raised by a check that does not know the run; `World.run` turns it into a SimFailure."""

    def __init__(self, invariant: str, sentence: str) -> None:
        super().__init__(f"{invariant}: {sentence}")
        self.invariant = invariant
        self.sentence = sentence
