"""A run in which members come and go all the time: memory, open files, threads and stored bytes of who stays do not grow.

As many steps as six hours have with rounds of thirty seconds, in rounds as short as this machine plays them.
"""

from __future__ import annotations

import itertools
import random
import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from live_run import THREE, LiveRun, StartRun
from psyche_core.telemetry.events import Ended, StepTrained

pytestmark = [pytest.mark.soak, pytest.mark.e2e, pytest.mark.quic, pytest.mark.timeout(3600)]

STEPS = 720
STAYING = ("server", *THREE)
VISITORS = 2
STEPS_OF_A_VISIT = (3, 20)
MEGABYTE = 2**20
SEED = 23


@dataclass(frozen=True, slots=True)
class Used:
    """What a process has at one moment. memory: its own, without mapped files, bytes. stored: bytes of its files."""

    memory: int
    files: int
    threads: int
    stored: int


def used(run: LiveRun, name: str) -> Used:
    place = Path("/proc") / str(run.processes[name].pid)
    status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
    stored = sum(file.stat().st_size for file in (run.folder / f"{name}-checkpoints").rglob("*") if file.is_file())
    return Used(
        memory=int(status["RssAnon"].split()[0]) * 1024,
        files=len(list((place / "fd").iterdir())),
        threads=int(status["Threads"]),
        stored=stored,
    )


class Visitor:
    """A member that comes, trains for a while, leaves or is killed, and comes again."""

    def __init__(self, run: LiveRun, name: str, generator: random.Random) -> None:
        self._run = run
        self._name = name
        self._generator = generator
        self._since = time.time()
        self._wanted = generator.randint(*STEPS_OF_A_VISIT)
        self.visits = 1
        run.start_client(name)

    def look(self) -> None:
        """Go on: leave if the visit is over, come back if it has left."""
        run, process = self._run, self._run.processes[self._name]
        if process.poll() is not None:
            self._since, self._wanted = time.time(), self._generator.randint(*STEPS_OF_A_VISIT)
            self.visits += 1
            run.start_again(self._name)
        elif self._wanted and len(run.told(self._name, StepTrained, after=self._since)) >= self._wanted:
            self._wanted = 0
            if self._generator.random() < 0.5:
                run.kill(self._name)
            else:
                run.signal(self._name, signal.SIGINT)


def middle(samples: Sequence[Used], what: str) -> float:
    return float(statistics.median(getattr(sample, what) for sample in samples))


def test_who_stays_does_not_grow_while_others_come_and_go(live_run: StartRun) -> None:
    generator = random.Random(SEED)
    print("seed", SEED)
    run = live_run(total_steps=STEPS, rounds_per_epoch=12, max_round_train_time=20, round_witness_time=10)
    for name in THREE:
        run.start_client(name)
    visitors = [Visitor(run, f"visitor-{number}", generator) for number in range(VISITORS)]
    samples: dict[str, list[Used]] = {name: [] for name in STAYING}
    trained = itertools.count(20, 10)
    due = next(trained)
    while not run.told("server", Ended):
        steps = len(run.told(THREE[0], StepTrained))
        if steps >= due:
            due = next(trained)
            for name in STAYING:
                if run.processes[name].poll() is None:
                    samples[name].append(used(run, name))
        if steps < STEPS - 30:
            for visitor in visitors:
                visitor.look()
        for name in STAYING:
            assert run.processes[name].poll() in (None, 0), run.log(name)
        time.sleep(0.2)

    print("visits", [visitor.visits for visitor in visitors])
    assert sum(visitor.visits for visitor in visitors) >= 20
    for name in STAYING:
        taken = samples[name]
        quarter = len(taken) // 4
        assert quarter >= 8
        early, late = taken[quarter : 2 * quarter], taken[-quarter:]
        print(name, *(f"{what} {middle(early, what):.0f} {middle(late, what):.0f}" for what in Used.__slots__))
        assert middle(late, "memory") <= middle(early, "memory") + 10 * MEGABYTE
        assert middle(late, "files") <= middle(early, "files") + 4
        assert middle(late, "threads") <= middle(early, "threads") + 2
        assert middle(late, "stored") <= 1.2 * middle(early, "stored") + MEGABYTE
    assert run.metrics().identical
