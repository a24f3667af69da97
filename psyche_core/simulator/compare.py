"""Measures how much time one liar costs the others: the same run with it and without it, in virtual time.

The run is long (`generate.lone_liar`), like real epochs: a liar costs time when an epoch first meets it, and that must be
little compared with the whole. All other members are honest, nothing fails, and members differ in speed at random.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

from psyche_core.simulator.generate import LONE_STEPS, lone_liar
from psyche_core.simulator.run_result import RunResult, SimFailure
from psyche_core.simulator.script import Script
from psyche_core.simulator.world import run_script

MAX_TIME_RATIO = 1.3
"""A run with one liar among eight members takes at most this many times as long as without it."""

MAX_STEP_RATIO = 1.2
"""The same limit for the median step with one liar among four, after the first ten steps."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Virtual seconds of a run and of the same run without faults. step: the median step after the first ten."""

    step: float
    honest_step: float
    time: float
    honest_time: float

    @property
    def step_ratio(self) -> float:
        """How many times as long a step takes as without faults."""
        return self.step / self.honest_step if self.honest_step else 1.0

    @property
    def time_ratio(self) -> float:
        """How many times as long the run takes as without faults."""
        return self.time / self.honest_time if self.honest_time else 1.0


def without_faults(script: Script) -> Script:
    """The same run where everybody is honest and nothing fails."""
    return replace(script, faults=(), sealed=False)


def compared(result: RunResult, honest: RunResult) -> Comparison:
    """Compare a run with the honest one."""
    return Comparison(result.step_seconds, honest.step_seconds, result.finished_at, honest.finished_at)


def cost_of(kind: str, *, members: int, seeds: range, steps: int = LONE_STEPS) -> Comparison:
    """The cost of one liar, as the median over some seeds. Raises SimFailure when a run breaks an invariant."""
    found = []
    for seed in seeds:
        script = lone_liar(kind, members=members, seed=seed, steps=steps)
        found.append(compared(_played(script), _played(without_faults(script))))
    return Comparison(
        median(one.step for one in found),
        median(one.honest_step for one in found),
        median(one.time for one in found),
        median(one.honest_time for one in found),
    )


def _played(script: Script) -> RunResult:
    result = run_script(script)
    if result.failure is not None:
        raise result.failure

    return result


def too_slow(script: Script, result: RunResult) -> SimFailure | None:
    """The failure of a run in which one liar among eight or more members costs too much time; None for all other runs."""
    alone = len(script.liars) == 1 and len(script.faults) == 1 and script.clients >= 8 and script.rounds >= LONE_STEPS
    if not alone or result.failure is not None or result.no_guarantee:
        return None

    cost = compared(result, _played(without_faults(script)))
    if cost.time_ratio <= MAX_TIME_RATIO:
        return None

    sentence = f"{script.faults[0].kind} made the run take {cost.time:.0f} s, {cost.time_ratio:.2f} times as long as without it"
    return SimFailure(invariant="a-liar-costs-little-time", time=result.finished_at, sentence=sentence, script=script)
