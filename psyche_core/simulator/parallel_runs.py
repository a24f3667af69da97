"""Plays many runs in several processes: takes seeds, returns results in the order they finish.

Workers are spawned, never forked, so that they inherit no threads or locks of the caller; each takes a few seeds at a time. The
worker that finds a failure also shrinks it.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from psyche_core.simulator.compare import Comparison, compared, too_slow, without_faults
from psyche_core.simulator.generate import generate
from psyche_core.simulator.run_result import RunResult, SimFailure
from psyche_core.simulator.script import Script, Trainer
from psyche_core.simulator.shrink import ATTEMPTS, shrunk
from psyche_core.simulator.world import run_script

Done = tuple[RunResult, "FailureReport | None", "RunTimes | None"]
"""One run: its result, what broke, how long it took."""

CHUNK = 8
"""Seeds a worker takes at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What to run for each seed.

    kinds: faults that may happen; shrink: most runs to make a failure smaller, 0 for none; compare: whether each run is also
    played without liars and failures, to measure what the faults cost.
    """

    clients: int = 8
    rounds: int = 20
    kinds: tuple[str, ...] = ()
    trainer: Trainer = "hash"
    shrink: int = ATTEMPTS
    compare: bool = False

    def script(self, seed: int) -> Script:
        """The script of a seed."""
        return generate(seed, clients=self.clients, rounds=self.rounds, kinds=self.kinds, trainer=self.trainer)


@dataclass(frozen=True, slots=True)
class FailureReport:
    """A failure in a form that processes can exchange. script: as small as it could be made; original: as generated."""

    seed: int
    invariant: str
    time: float
    sentence: str
    script: Script
    original: Script


@dataclass(frozen=True, slots=True)
class RunTimes:
    """How long one run took, in virtual seconds. step_seconds: the median step after the first ten.

    compared: comparison with the honest run, None if that was not played.
    """

    seed: int
    seconds: float
    step_seconds: float
    compared: Comparison | None = None


@dataclass(slots=True)
class RunTotals:
    """Results so far. counts: how often each fault struck, summed over the runs; steps: trained in all runs.

    run_times: of the runs in which nothing broke; in the end ordered by seed. without_guarantee: seed, and why it ended early, of
    each run that came to a state for which the protocol promises nothing.
    """

    runs: int = 0
    steps: int = 0
    events: int = 0
    seconds: float = 0.0
    failures: list[FailureReport] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    run_times: list[RunTimes] = field(default_factory=list)
    without_guarantee: list[tuple[int, str]] = field(default_factory=list)

    @property
    def runs_per_minute(self) -> float:
        """In wall time so far."""
        return 60.0 * self.runs / self.seconds if self.seconds else 0.0


def one_run(options: RunOptions, seed: int) -> tuple[RunResult, FailureReport | None, RunTimes | None]:
    """Run a seed; shrink its failure."""
    script = options.script(seed)
    try:
        result = run_script(script)
    except Exception as error:  # a simulator bug with one seed must not end a test of thousands
        where = traceback.format_exc().strip().splitlines()[-3:]
        failure = SimFailure(invariant="simulator-raises", time=0.0, sentence=" / ".join(where), script=script)
        failure.__cause__ = error
        return RunResult(seed, None, 0.0, 0, 0, 0, 0), failure_report(failure, original=script), None

    try:
        slow = too_slow(script, result)
    except SimFailure as failure:  # of the same run with everybody honest
        return result, failure_report(failure, original=failure.script), None
    if slow is not None:
        return result, failure_report(slow, original=script), None
    if result.no_guarantee:
        return result, None, None
    if result.failure is None:
        return result, None, run_times(script, result, compare=options.compare)

    small = shrunk(result.failure, attempts=options.shrink) if options.shrink else result.failure
    return replace(result, failure=None), failure_report(small, original=script), None


def run_times(script: Script, result: RunResult, *, compare: bool) -> RunTimes:
    """How long a run took; compare: also play the same run without faults and compare."""
    beside = compared(result, run_script(without_faults(script))) if compare else None
    return RunTimes(script.seed, result.finished_at, result.step_seconds, beside)


def failure_report(failure: SimFailure, *, original: Script) -> FailureReport:
    """A failure in a form that processes can exchange."""
    return FailureReport(failure.seed, failure.invariant, failure.time, failure.sentence, failure.script, original)


def run_seeds(options: RunOptions, seeds: Sequence[int], *, jobs: int = 1) -> Iterator[RunTotals]:
    """Run all seeds; yields the growing tally after each chunk. Closing the iterator ends the workers."""
    tally = RunTotals()
    started = time.monotonic()
    for done in _chunks_done(options, seeds, jobs=jobs):
        for result, found, took in done:
            tally.runs += 1
            tally.steps += result.steps
            tally.events += result.events
            tally.counts.update(result.counts)
            if found is not None:
                tally.failures.append(found)
            if took is not None:
                tally.run_times.append(took)
            if result.no_guarantee:
                tally.without_guarantee.append((result.seed, result.no_guarantee))
        tally.seconds = time.monotonic() - started
        yield tally


def _chunks_done(options: RunOptions, seeds: Sequence[int], *, jobs: int) -> Iterator[list[Done]]:
    chunks = [(options, tuple(seeds[place : place + CHUNK])) for place in range(0, len(seeds), CHUNK)]
    if jobs <= 1 or len(chunks) <= 1:
        yield from map(_chunk, chunks)
        return

    context = multiprocessing.get_context("spawn")
    with context.Pool(min(jobs, len(chunks)), initializer=_prepare_worker) as pool:
        yield from pool.imap_unordered(_chunk, chunks)


def _chunk(task: tuple[RunOptions, Iterable[int]]) -> list[Done]:
    """Run a few seeds. Runs make much garbage but no leaks, so garbage is collected only between chunks."""
    options, seeds = task
    collecting = gc.isenabled()
    gc.disable()
    try:
        return [one_run(options, seed) for seed in seeds]
    finally:
        if collecting:
            gc.enable()
        gc.collect()


def _prepare_worker() -> None:
    """Set a worker process up. The caller handles Ctrl-C and then ends the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()  # modules stay: looking through them after each chunk takes a twentieth of the time
