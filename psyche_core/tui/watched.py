"""The data about a run that a screen shows: the same view as the web page, and data that only a screen shows. Pure, no clock."""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import dataclass, field

from psyche_core.coordinator.state import CoordinatorState
from psyche_core.observer.member_view import MemberView
from psyche_core.observer.run_view import RunView
from psyche_core.telemetry import events as telemetry
from psyche_core.text_safety import printable
from psyche_core.tui.lines import EventLine, FeedLine, OutputLine, StateLine
from psyche_core.ui.event_text import describe
from psyche_core.ui.told_checks import ToldChecks

MAX_LOG = 5000
"""Newest log lines that are kept."""

NAME_CHARACTERS = 64
EFFICIENCY_STEPS = 16
_NOT_LOGGED = (
    telemetry.NetworkTotals,
    telemetry.WitnessReported,
    telemetry.StepFigures,
    telemetry.OptimizerStatistics,
    telemetry.ResultsFetched,
    telemetry.ResultOverlaps,
)
_WARNINGS = (telemetry.WentBack, telemetry.ModelContested, telemetry.Dropped, telemetry.MemberExited, telemetry.StatementVoided)
_NUMBERS = re.compile(r"(\d{1,9})")
LEVELS = ("info", "warning", "error")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the log. number: of the line, ascending. level: one of LEVELS."""

    number: int
    time: float
    source: str
    level: str
    text: str


@dataclass(slots=True)
class TrainingTimes:
    """The training times of one member, from which its efficiency follows. steps: (end in unix seconds, seconds of training)."""

    steps: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=EFFICIENCY_STEPS + 1))

    @property
    def efficiency(self) -> float | None:
        """Fraction of the time of its newest steps in which it trained, at most 1; None before the second step."""
        if len(self.steps) < 2 or self.steps[-1][0] <= self.steps[0][0]:
            return None

        spent = sum(seconds for _, seconds in list(self.steps)[1:])
        return min(1.0, spent / (self.steps[-1][0] - self.steps[0][0]))


class Watched:
    """Everything that is shown of a run.

    view: the same as the web page's. state: the coordinator's newest, None if unknown. paths: for each member, how it reaches the
    others. of_member: whether this is the screen of one member, named by its own Started event. own: that member's id, empty
    until then. changed: number of changes.
    """

    def __init__(self, *, title: str = "", of_member: bool = False) -> None:
        self.title: str = printable(title, at_most=NAME_CHARACTERS)
        self.view: RunView = RunView()
        self.state: CoordinatorState | None = None
        self.paths: dict[str, tuple[float, telemetry.PeerPaths]] = {}
        self.training_times: dict[str, TrainingTimes] = {}
        self.log: deque[LogLine] = deque(maxlen=MAX_LOG)
        self.lines: int = 0
        self.own: str = ""
        self._of_member = of_member
        self.address: str = ""
        self.applied: telemetry.StepApplied | None = None
        self.figures: telemetry.StepFigures | None = None
        self.changed: int = 0
        self._checks = ToldChecks()

    def enter(self, line: FeedLine) -> None:
        """Add a line of the program."""
        self.changed += 1
        match line:
            case EventLine():
                self._enter_event(printable(line.source, at_most=NAME_CHARACTERS), line.time, line.event)
            case StateLine():
                self.state = line.state
                self.view.follow(line.time, line.state)
            case OutputLine():
                self._log(line.time, "", _level_of(line.text), line.text)

    @property
    def run_id(self) -> str:
        """The run's name, safe to show."""
        return printable(self.view.run_id, at_most=NAME_CHARACTERS) or self.title

    @property
    def members(self) -> list[MemberView]:
        """All members, by name, then by id."""
        return sorted(self.view.roster, key=lambda member: in_order(member.name or f"~{member.id}"))

    @property
    def me(self) -> MemberView | None:
        """The member whose screen this is; None if there is none, or it is not known yet."""
        return self.view.roster.of_id(self.own, version=self.view.version) if self.own else None

    @property
    def last_loss(self) -> float | None:
        """The newest loss: of this member, or the mean of all."""
        newest = self.curve[-1:] if self.curve else []
        return newest[0][1] if newest else None

    @property
    def curve(self) -> list[tuple[int, float]]:
        """(step, mean loss), by step."""
        series = self.view.loss if self.view.trained else self.view.reported
        return [(bucket.start, bucket.mean) for bucket in series.rows() if bucket.mean is not None]

    @property
    def validation(self) -> list[tuple[int, float]]:
        """(step, loss on held-out text), by step."""
        return [(bucket.start, bucket.mean) for bucket in self.view.validation.rows() if bucket.mean is not None]

    @property
    def efficiency(self) -> float | None:
        """Mean of the members' efficiencies; None while unknown."""
        known = [times.efficiency for times in self.training_times.values()]
        values = [value for value in known if value is not None]
        return sum(values) / len(values) if values else None

    @property
    def tokens_per_second(self) -> float:
        """Sum over all healthy members that are known here."""
        return sum(member.tokens_per_second for member in self.view.roster if member.state == "healthy")

    def _enter_event(self, source: str, time: float, event: telemetry.Event) -> None:
        self.view.handle(source, time, event)
        match event:
            case telemetry.Started():
                if event.role == "client" and self._of_member:
                    self.own = printable(event.id, at_most=NAME_CHARACTERS)
                self.address = printable(event.address, at_most=200)
                self.view.total_steps = event.total_steps or self.view.total_steps
                self.paths.pop(source, None)
                self.training_times.pop(source, None)
            case telemetry.PeerPaths():
                self.paths[source] = (time, event)
            case telemetry.StepApplied() if event.trained > 0:
                self.applied = event
            case telemetry.StepFigures():
                self.figures = event
            case telemetry.StepTrained() if math.isfinite(event.seconds):
                self.training_times.setdefault(source, TrainingTimes()).steps.append((time, max(0.0, event.seconds)))
        if self._checks.is_new(event) and not isinstance(event, _NOT_LOGGED):
            self._log(time, source, _level(event), describe(event))

    def _log(self, time: float, source: str, level: str, text: str) -> None:
        self.lines += 1
        self.log.append(LogLine(self.lines, time, source, level, printable(text)))


def in_order(name: str) -> list[tuple[int, str]]:
    """Return a key to sort names by, so that client-2 comes before client-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBERS.split(name)]


def _level(event: telemetry.Event) -> str:
    if isinstance(event, telemetry.Problem):
        return event.level if event.level in LEVELS else "warning"
    if isinstance(event, telemetry.ReplicasDiffer | telemetry.ModelLost | telemetry.StateIsOlder) or (
        isinstance(event, telemetry.Ended) and not event.success
    ):
        return "error"
    return "warning" if isinstance(event, _WARNINGS) else "info"


def _level_of(text: str) -> str:
    """Return the level of a line that the program wrote. Log lines begin with a time stamp, see `cli.program`."""
    start = text[:40].lower()
    if "error" in start or "critical" in start:
        return "error"
    return "warning" if "warning" in start else "info"
