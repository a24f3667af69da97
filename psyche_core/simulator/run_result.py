"""How a simulated run ends: its result, and the exceptions for a broken invariant and for a state that is not promised."""

from __future__ import annotations

from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run. failure: None when every invariant held. mark: a number that is equal for equal runs.

    seconds: virtual; step_seconds: virtual, median of a step after the first ten; finished_at: virtual seconds at which the
    coordinator's run ended, 0 if it did not; events: calls of machines; counts: of each fault that struck, each refusal, each
    repair. no_guarantee: why the run ended early though nothing broke, as `NoGuarantee` says it; empty if it did not.
    """

    seed: int
    failure: SimFailure | None
    seconds: float
    events: int
    steps: int
    epochs: int
    mark: int
    step_seconds: float = 0.0
    finished_at: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    end_reasons: tuple[str, ...] = ()
    no_guarantee: str = ""


class NoGuarantee(Exception):
    """Raised where a run comes to a state for which the protocol promises nothing. The run ends there; nothing is broken.

    The message is one sentence that says what was observed. Each such state is named in docs/explanation/protocol.md, "Not yet
    covered". Runs that end so are counted and shown, never dropped in silence.
    """


class InvariantViolation(Exception):
    """Raised by a check that does not know the run; `World.run` turns it into a SimFailure."""

    def __init__(self, invariant: str, sentence: str) -> None:
        super().__init__(f"{invariant}: {sentence}")
        self.invariant = invariant
        self.sentence = sentence
