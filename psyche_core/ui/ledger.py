"""What is known of a run from the events of its members, and which promises were broken.

Pure: events in, figures out; no processes, files or clock, so that the display, the report and the checks all read the same book.
A broken promise (replicas that differ, a trained round lost) is noted the moment its event arrives and never forgotten.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from psyche_core.client.report import (
    CheckpointSaved,
    Ended,
    EpochDigest,
    Event,
    ModelLoaded,
    NetworkTotals,
    PhaseChanged,
    Problem,
    ReplicasDiffer,
    Started,
    StepApplied,
    StepTrained,
    Validated,
)

RATE_WINDOW = 20
"""Newest steps over which tokens per second are taken."""


@dataclass(slots=True)
class ClientPage:
    """What one client told. losses: (step, nats per token); trained: step -> epoch; digests: epoch -> hex."""

    name: str
    id: str = ""
    parameters: int = 0
    losses: list[tuple[int, float]] = field(default_factory=list)
    payload_bytes: list[int] = field(default_factory=list)
    trained: dict[int, int] = field(default_factory=dict)
    applied: set[int] = field(default_factory=set)
    digests: dict[int, str] = field(default_factory=dict)
    network: NetworkTotals = field(default_factory=lambda: NetworkTotals(0, 0, 0))
    ended: Ended | None = None
    _recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RATE_WINDOW + 1))

    @property
    def tokens_per_second(self) -> float:
        """Tokens of our shares per second of wall time, over the newest steps; 0 before the second step."""
        if len(self._recent) < 2:
            return 0.0

        elapsed = self._recent[-1][0] - self._recent[0][0]
        return sum(tokens for _, tokens in list(self._recent)[1:]) / elapsed if elapsed > 0 else 0.0

    def note_trained(self, time: float, event: StepTrained) -> None:
        """Enter a trained step."""
        self.losses.append((event.step, event.loss))
        self.payload_bytes.append(event.payload_bytes)
        self.trained[event.step] = event.epoch
        self._recent.append((time, event.tokens))

    def unapplied(self, epoch: int | None = None) -> list[int]:
        """Steps trained (in that epoch) and not applied, ascending."""
        return sorted(step for step, of in self.trained.items() if step not in self.applied and epoch in (None, of))


class RunLedger:
    """All members' pages, and the run's.

    violations: sentences about broken promises, in the order they were seen. problems: what members complained about.
    """

    def __init__(self, *, run_id: str, total_steps: int | None = None) -> None:
        self.run_id = run_id
        self.total_steps = total_steps
        self.clients: dict[str, ClientPage] = {}
        self.phase: PhaseChanged | None = None
        self.validation: list[tuple[int, float]] = []
        self.epoch_ends: dict[int, int] = {}
        self.checkpoints: list[CheckpointSaved] = []
        self.problems: list[tuple[str, Problem]] = []
        self.violations: list[str] = []
        self.server_ended: Ended | None = None
        self.train_started: float | None = None
        self.train_ended: float | None = None
        self._server: str | None = None

    def expect(self, source: str) -> None:
        """Count on a client from the beginning, so that one that stays silent is missed and rows keep their order."""
        self._page(source)

    def handle(self, source: str, time: float, event: Event) -> None:
        """Enter an event. source: name of the member's process; time: unix seconds, as its process saw it."""
        match event:
            case Started(role="server"):
                self._server = source
            case Started():
                self._page(source).id = event.id
            case PhaseChanged():
                if self._server is None or source == self._server:
                    self.phase = event
            case ModelLoaded():
                self._page(source).parameters = event.parameters
            case StepTrained():
                self._page(source).note_trained(time, event)
                started = time - event.seconds
                self.train_started = started if self.train_started is None else min(started, self.train_started)
            case StepApplied():
                self._note_applied(self._page(source), time, event)
            case NetworkTotals():
                self._page(source).network = event
            case EpochDigest():
                self._note_digest(self._page(source), event)
            case ReplicasDiffer():
                self.violations.append(
                    f"replicas differ at the end of epoch {event.epoch}: {source} has {event.ours[:16]}…, "
                    f"{event.peer} told it {event.theirs[:16]}…"
                )
            case Validated():
                self.validation.append((event.step, event.loss))
            case CheckpointSaved():
                self.checkpoints.append(event)
            case Problem():
                self.problems.append((source, event))
            case Ended():
                self._note_ended(source, event)

    @property
    def steps(self) -> int:
        """Steps whose results were applied by anybody."""
        return len(set[int]().union(*(page.applied for page in self.clients.values())))

    @property
    def epochs(self) -> int:
        """Epochs whose end every client reached."""
        return sum(all(epoch in page.digests for page in self.clients.values()) for epoch in self.epoch_ends)

    @property
    def identical(self) -> bool:
        """Whether every client gave the same digest at every epoch's end, and at one at least."""
        pages = self.clients.values()
        return bool(self.epoch_ends) and all(
            len({page.digests.get(epoch) for page in pages}) == 1 and all(epoch in page.digests for page in pages)
            for epoch in self.epoch_ends
        )

    @property
    def train_seconds(self) -> float:
        """From the beginning of the first step trained to the last one applied, by anybody."""
        if self.train_started is None or self.train_ended is None:
            return 0.0

        return max(0.0, self.train_ended - self.train_started)

    @property
    def mean_losses(self) -> list[tuple[int, float]]:
        """(step, mean loss of the clients that trained it), by step."""
        by_step: dict[int, list[float]] = {}
        for page in self.clients.values():
            for step, loss in page.losses:
                by_step.setdefault(step, []).append(loss)
        return [(step, statistics.fmean(losses)) for step, losses in sorted(by_step.items())]

    def unfinished(self) -> list[str]:
        """Promises that can only be judged when everybody has ended: sentences, none when all were kept."""
        found = []
        if not self.clients:
            found.append("no client reported anything")
        if self._server is not None and self.server_ended is None:
            found.append("the server never said that the run finished")
        for page in self.clients.values():
            if page.ended is None:
                found.append(f"{page.name} never said that it ended")
            left = page.unapplied()
            if left:
                found.append(f"{page.name} trained {_steps(left)} that it never applied")
            missing = [epoch for epoch in self.epoch_ends if epoch not in page.digests]
            if missing:
                found.append(f"{page.name} gave no digest for epoch {', '.join(map(str, missing))}")
        return found

    def _page(self, source: str) -> ClientPage:
        return self.clients.setdefault(source, ClientPage(source))

    def _note_applied(self, page: ClientPage, time: float, event: StepApplied) -> None:
        if event.trained == 0:
            return  # a drain round has nothing to lose

        self.train_ended = time if self.train_ended is None else max(time, self.train_ended)
        if event.accepted < event.trained:
            self.violations.append(
                f"a trained round was lost: of step {event.step}, {page.name} applied {event.accepted} of {event.trained} shares"
            )
        if event.step in page.applied:
            self.violations.append(f"{page.name} applied step {event.step} twice")
        page.applied.add(event.step)

    def _note_digest(self, page: ClientPage, event: EpochDigest) -> None:
        page.digests[event.epoch] = event.sha256
        self.epoch_ends.setdefault(event.epoch, event.step)
        left = page.unapplied(event.epoch)
        if left:
            self.violations.append(f"{page.name} ended epoch {event.epoch} without applying {_steps(left)}, which it trained")
        for other in self.clients.values():
            theirs = other.digests.get(event.epoch, event.sha256)
            if theirs != event.sha256:
                self.violations.append(
                    f"replicas differ at the end of epoch {event.epoch}: {page.name} has {event.sha256[:16]}…, "
                    f"{other.name} has {theirs[:16]}…"
                )

    def _note_ended(self, source: str, event: Ended) -> None:
        if source == self._server:
            self.server_ended = event
        else:
            self._page(source).ended = event
        if not event.success:
            self.violations.append(f"{source} ended without success: {event.reason}")


def _steps(steps: list[int]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps ({steps[0]} … {steps[-1]})"
