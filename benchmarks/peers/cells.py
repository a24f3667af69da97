"""One cell of the table: a system on lines of one speed, started, watched, perhaps disturbed, and stopped."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.peers import measures
from benchmarks.peers.lines import Lines, kill_all
from benchmarks.peers.ours_run import OursRun
from benchmarks.peers.progress import Step, Weights
from benchmarks.peers.systems import BASE, PERIODS, SYSTEMS, System
from benchmarks.peers.task import Task
from benchmarks.peers.watching import Watch
from benchmarks.peers.workers_run import WorkersRun
from tests.nat.lab import Host

POLL_SECONDS = 0.2
AFTER_FAULT_STEPS = 5
"""Steps of all others after which a run is said to work after a member was killed."""

SLOWEST_STEPS = 6
"""Steps that even the slowest system is given time for, so that it has a median."""

START_SECONDS = 600.0
"""Time for the first step: programs are loaded, and the first weights are sent, over slow lines and on busy machines."""

FAULTS = ("kill", "join")


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured at once. megabits: of each line, None: no limit. factor: of the system's rate. fault: of FAULTS, or ""."""

    system: str
    megabits: float | None
    fault: str = ""
    factor: float = 1.0

    @property
    def key(self) -> str:
        """Its name, for resumption."""
        speed = "unshaped" if self.megabits is None else f"{self.megabits:g}"
        return "/".join((self.system, speed, self.fault or "train", f"{self.factor:g}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is the same for all cells.

    task_folder: with model and tokens. steps: of a run, which ends before if `seconds` have passed since its members were
    started. patience: seconds without a step after which a system stalls. fault_step: step after which a fault happens. epoch:
    steps of our epochs. period: steps between synchronisations of DiLoCo and LocalSGD.
    """

    task_folder: Path
    work: Path
    members: int
    sequences: int
    sequence_length: int
    steps: int
    seconds: float
    patience: float
    warmup: int
    every: int
    fault_step: int
    epoch: int
    period: int
    pythons: Mapping[str, Path] = field(default_factory=dict)


class Run(Protocol):
    """The run of a system: WorkersRun or OursRun."""

    processes: dict[int, Any]

    def start_meeting(self) -> None: ...
    def start_member(self, rank: int, host: Host) -> None: ...
    def steps(self, rank: int) -> list[Step]: ...
    def leave(self) -> None: ...
    def losses(self) -> list[tuple[Weights, float]]: ...
    def why(self, rank: int) -> str: ...


def measure(cell: Cell, setup: Setup, *, say: Callable[[str], None]) -> dict[str, Any]:
    """Run a cell and return its figures. What does not run is said in `failed`."""
    system = SYSTEMS[cell.system]
    folder = setup.work / cell.key.replace("/", "-")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    task = Task(
        folder=str(setup.task_folder),
        members=setup.members,
        sequences=setup.sequences,
        sequence_length=setup.sequence_length,
        steps=setup.steps if not cell.fault else 100_000,
        rate=system.rate * cell.factor,
        warmup=setup.warmup,
        every=setup.every if not cell.fault else 100_000,
        settings={**system.settings, "epoch": setup.epoch, "every": setup.period},
    )
    with Lines(cell.megabits) as lines, Watch() as watch:
        run: Run = (
            WorkersRun(system, task, folder=folder, lines=lines, python=setup.pythons[system.environment])
            if system.environment
            else OursRun(task, folder=folder, lines=lines)
        )
        trial = _Trial(cell, setup, system, run=run, lines=lines, watch=watch, say=say)
        found = trial.play()
        if not cell.fault:
            watch.look()
            run.leave()
    if not cell.fault:
        curve = measures.validation_curve(
            run.losses(), trial.told(), trial.samples(), began=trial.began, sequence_length=setup.sequence_length
        )
        found |= {"validation": curve, "validation_loss": curve[-1][-1] if curve else None}
    shutil.rmtree(folder, ignore_errors=True) if "failed" not in found else None
    about = {"system": cell.system, "megabits": cell.megabits, "fault": cell.fault, "factor": cell.factor, "rate": task.rate}
    return {"key": cell.key, **about, **found}


class _Trial:
    """A cell that runs. began: unix seconds, when members were started."""

    def __init__(
        self, cell: Cell, setup: Setup, system: System, *, run: Run, lines: Lines, watch: Watch, say: Callable[[str], None]
    ) -> None:
        self._cell, self._setup, self._system = cell, setup, system
        self._run, self._lines, self._watch, self._say = run, lines, watch, say
        self._hosts: list[Host] = []
        self._dead: dict[int, float] = {}
        self._started: set[int] = set()
        self.began = 0.0

    def told(self) -> dict[int, list[Step]]:
        """Steps of all members, by rank."""
        return {rank: self._run.steps(rank) for rank in range(len(self._hosts)) if rank in self._started}

    def samples(self) -> dict[int, Any]:
        """What was seen of all members' hosts, by rank."""
        return {rank: self._watch.samples[host.name] for rank, host in enumerate(self._hosts)}

    def play(self) -> dict[str, Any]:
        """Start all and watch it to its end."""
        self._watch.add(self._lines.service)
        try:
            self._run.start_meeting()
        except RuntimeError as error:
            return {"failed": str(error)}
        for rank in range(self._setup.members):
            self._add(rank)
        self.began = time.time()
        for rank, host in enumerate(self._hosts):
            self._start(rank, host)
        return self._disturbed() if self._cell.fault else self._trained()

    def _add(self, rank: int) -> Host:
        host = self._lines.member(f"member-{rank}")
        self._hosts.append(host)
        self._watch.add(host)
        return host

    def _start(self, rank: int, host: Host) -> None:
        self._run.start_member(rank, host)
        self._started.add(rank)

    def _look(self) -> None:
        """Note who has ended with an error."""
        for rank, process in self._run.processes.items():
            if process.poll() not in (None, 0) and rank not in self._dead:
                self._dead[rank] = time.time()

    def _newest(self) -> float:
        """When somebody's weights changed last; at the start, when one is due at the latest, less our patience."""
        trained = [times[-1] for times in map(measures.changes, self.told().values()) if times]
        return max(trained) if trained else self.began + max(0.0, START_SECONDS - self._setup.patience)

    def _trained(self) -> dict[str, Any]:
        failed = ""
        while not failed:
            self._look()
            now = time.time()
            time_is_up = now - self.began > self._setup.seconds and len(self._run.steps(0)) >= SLOWEST_STEPS
            if self._dead:
                rank = min(self._dead)
                failed = f"member {rank} ended: {self._run.why(rank)}"
            elif time_is_up or all(process.poll() == 0 for process in self._run.processes.values()):
                break
            elif now - self._newest() > self._setup.patience:
                failed = self._silence()
            time.sleep(POLL_SECONDS)
        self._watch.look()
        told, samples = self.told(), self.samples()
        together = [0] if self._system.name == BASE else list(told)  # nobody waits for anybody there
        found = measures.figures(
            {rank: told[rank] for rank in together},
            {rank: samples[rank] for rank in together},
            began=self.began,
            service=self._watch.samples[self._lines.service.name],
            batch=len(together) * self._setup.sequences,
        )
        found["training"] = measures.training_curve(told, began=self.began, sequence_length=self._setup.sequence_length)
        return {**found, "failed": failed} if failed else found

    def _silence(self) -> str:
        seconds = (
            self._setup.patience if any(map(measures.changes, self.told().values())) else max(START_SECONDS, self._setup.patience)
        )
        return f"no step in {seconds:g} s"

    def _wait_for(self, step: int) -> str:
        """Wait until the first member has trained a step; returns why it did not."""
        while len(self._run.steps(0)) < step:
            self._look()
            if self._dead:
                rank = min(self._dead)
                return f"member {rank} ended before the fault: {self._run.why(rank)}"
            if time.time() - self._newest() > self._setup.patience:
                return f"{self._silence()} before the fault"
            time.sleep(POLL_SECONDS)
        return ""

    def _disturbed(self) -> dict[str, Any]:
        failed = self._wait_for(self._setup.fault_step)
        if failed:
            return {"failed": failed}
        moment, last = time.time(), self._setup.members - 1
        if self._cell.fault == "kill":
            self._run.processes.pop(last)
            kill_all(self._hosts[last])
        else:
            last += 1
            self._start(last, self._add(last))
        self._say(f"{self._cell.key}: {'one killed' if self._cell.fault == 'kill' else 'one more started'}, watching the others")
        found = None
        while found is None:
            self._look()
            found = self._after_kill(moment, last) if self._cell.fault == "kill" else self._after_join(moment, last)
            time.sleep(POLL_SECONDS)
        return found

    def _after_kill(self, moment: float, rank: int) -> dict[str, Any] | None:
        """What the others did after the member of that rank was killed; None while that is open."""
        found = measures.after_kill(
            self.told(),
            moment=moment,
            killed=rank,
            dead=self._dead,
            needed=max(AFTER_FAULT_STEPS, PERIODS * self._period()),
            given_up=self._given_up(),
        )
        if found is not None and self._dead:
            found["why"] = self._run.why(min(self._dead))
        return found

    def _after_join(self, moment: float, rank: int) -> dict[str, Any] | None:
        """What became of the late member and of the others; None while that is open."""
        now, told = time.time(), self.told()
        others_died = [each for each in self._dead if each != rank]
        if others_died:
            first = min(others_died)
            return {"verdict": "others die", "seconds": round(self._dead[first] - moment, 1), "why": self._run.why(first)}
        if rank in self._dead:
            others = measures.after_kill(
                told, moment=self._dead[rank], killed=rank, dead={}, needed=AFTER_FAULT_STEPS, given_up=self._given_up()
            )
            seconds = round(self._dead[rank] - moment, 1)
            return others and {"verdict": "dies", "seconds": seconds, "others": others["verdict"], "why": self._run.why(rank)}
        joined = measures.after_join(told, moment=moment, joiner=rank, own_steps=self._period() - 1)
        if joined is not None:
            return {**joined, "others": "works"}
        startup = told[0][0].time - self.began
        if now - moment > self._setup.patience + 2 * startup + 2 * self._setup.epoch * self._pace(told, moment):
            least = min(sum(step.time > moment for step in steps) for member, steps in told.items() if member != rank)
            return {"verdict": "stalls", "seconds": round(now - moment, 1), "others": "works" if least else "stalls"}
        return None

    def _period(self) -> int:
        return self._setup.period if self._system.periodic else 1

    def _given_up(self) -> float | None:
        """Now, if nobody has trained a step for longer than we wait; None otherwise."""
        now = time.time()
        return now if now - self._newest() > self._setup.patience else None

    def _pace(self, told: Mapping[int, list[Step]], moment: float) -> float:
        """Mean seconds between the first member's steps before the fault."""
        times = [step.time for step in told[0] if step.time <= moment]
        return (times[-1] - times[0]) / max(1, len(times) - 1)
