"""What a broken invariant looks like."""

from __future__ import annotations

from psyche_core.simulator.script import Script


class SimFailure(Exception):
    """An invariant broke. invariant: its name; time: virtual seconds; sentence: what was seen; script: the whole run.

    A program's defect in what is simulated, or in the simulator itself.
    """

    def __init__(self, *, invariant: str, time: float, sentence: str, script: Script) -> None:
        super().__init__(f"seed {script.seed}, {invariant} at {time:.2f} s: {sentence}")
        self.invariant = invariant
        self.time = time
        self.sentence = sentence
        self.script = script

    def __reduce__(self) -> tuple[object, ...]:
        """For the way between processes: an exception that cannot be read there would end the pool that carries it."""
        return _failure, (self.invariant, self.time, self.sentence, self.script)

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.script.seed


def _failure(invariant: str, time: float, sentence: str, script: Script) -> SimFailure:
    return SimFailure(invariant=invariant, time=time, sentence=sentence, script=script)


class Broken(Exception):
    """Raised where an invariant is checked, without knowing which run it is: `World.run` makes a SimFailure of it."""

    def __init__(self, invariant: str, sentence: str) -> None:
        super().__init__(f"{invariant}: {sentence}")
        self.invariant = invariant
        self.sentence = sentence
