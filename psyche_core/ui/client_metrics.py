"""One client's part of the run's metrics: its reports, the step of its master weights, and the reports that are still expected.

It covers all processes of a client: figures are summed over them, and obligations end with each process. `run_metrics` compares
clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from psyche_core.telemetry import events

RATE_WINDOW = 20
"""Number of newest steps over which tokens per second are computed."""

_NOTHING = events.NetworkTotals(0, 0, 0)


@dataclass(slots=True)
class ClientMetrics:
    """The reports of one client.

    losses: (step, nats per token). trained: epoch by step. digests: hex by epoch. disturbed: it was disturbed, or it came
    late. leaving: it was asked to leave. told_leaving: it said that a signal asked it to leave. killed: its process was
    killed and has not started again. whole: it takes part; False from a kill until it trains again or closes an epoch.
    masters: the possible steps of its master weights, None if unknown. There are several after a step without accepted
    results: either the step counts, or the epoch was cut short and the step is trained again. network: totals over all its
    processes. paths, over_others: how it reaches the others, newest report, see `telemetry.PeerPaths`. trained, applied: by
    its newest process.
    """

    name: str
    id: str = ""
    parameters: int = 0
    losses: list[tuple[int, float]] = field(default_factory=list)
    payload_bytes: list[int] = field(default_factory=list)
    trained: dict[int, int] = field(default_factory=dict)
    applied: set[int] = field(default_factory=set)
    digests: dict[int, str] = field(default_factory=dict)
    network: events.NetworkTotals = field(default_factory=lambda: _NOTHING)
    paths: tuple[events.PathOfPeer, ...] = ()
    over_others: int = 0
    ended: events.Ended | None = None
    disturbed: bool = False
    leaving: bool = False
    told_leaving: bool = False
    killed: bool = False
    whole: bool = True
    kills: int = 0
    resyncs: int = 0
    masters: set[int] | None = None
    _late: bool = False
    _open_epochs: set[int] = field(default_factory=set)
    _network_before: events.NetworkTotals = field(default_factory=lambda: _NOTHING)
    _recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RATE_WINDOW + 1))

    @property
    def tokens_per_second(self) -> float:
        """Tokens of our shares per second of wall time, over the newest steps; 0 before the second step."""
        if len(self._recent) < 2:
            return 0.0

        elapsed = self._recent[-1][0] - self._recent[0][0]
        return sum(tokens for _, tokens in list(self._recent)[1:]) / elapsed if elapsed > 0 else 0.0

    @property
    def relayed(self) -> int:
        """Number of members that it reaches through a relay only."""
        return sum(each.path == "relayed" for each in self.paths)

    @property
    def masters_text(self) -> str:
        """The step of its master weights, in words."""
        return "unknown" if self.masters is None else "those after step " + " or ".join(map(str, sorted(self.masters)))

    def start(self, event: events.Started, *, late: bool) -> None:
        """Note that one of its processes has started. late: whether the run has already trained."""
        self.id = event.id
        self.disturbed = self.disturbed or late
        self._late = late
        self.killed = self.leaving = self.told_leaving = False
        self._network_before = self.network
        self.ended = None

    def mark_killed(self) -> None:
        """Note that its process was killed: the process's state is lost, and its obligations end."""
        self.kills += 1
        self.killed = True
        self.whole = False
        self.masters = None
        for known in (self.trained, self.applied, self._open_epochs, self._recent):
            known.clear()

    def note_loaded(self, event: events.ModelLoaded) -> None:
        """Note a model that was built, and its step if known, from the client's own checkpoint or a stored one."""
        self.parameters = event.parameters
        if event.step is not None:
            self.masters = {event.step}

    def note_trained(self, time: float, event: events.StepTrained) -> None:
        """Add a trained step."""
        self.whole = True
        self.losses.append((event.step, event.loss))
        self.payload_bytes.append(event.payload_bytes)
        self.trained[event.step] = event.epoch
        self._open_epochs.add(event.epoch)
        self._recent.append((time, event.tokens))

    def note_network(self, event: events.NetworkTotals) -> None:
        """Add the newest totals of its process."""
        before = self._network_before
        sent, received = before.bytes_sent + event.bytes_sent, before.bytes_received + event.bytes_received
        self.network = events.NetworkTotals(sent, received, event.peers)

    def apply(self, event: events.StepApplied, *, first_step: int) -> str | None:
        """Add an applied step. first_step: the run's first. Return a sentence if it does not follow the steps before it."""
        step, complaint = event.step, None
        if step in self.applied:
            complaint = f"{self.name} applied step {step} twice"
        elif self.masters is None and self._late and step > first_step:
            complaint = f"{self.name} came late and applied step {step} without the others' masters"
        elif self.masters is not None and step - 1 not in self.masters:
            complaint = f"{self.name} applied step {step}, but its masters were {self.masters_text}"
        self._open_epochs.add(event.epoch)
        if event.accepted:
            self.masters = {step}
            self.applied.add(step)
        else:
            self.masters = {step} | (self.masters or {step - 1})
            self.trained.pop(step, None)
        return complaint

    def pass_over(self, step: int) -> None:
        """Note that a step in which nobody trained was applied: it does not change the master weights."""
        if self.masters is not None and step - 1 in self.masters:
            self.masters = {step} | self.masters

    def note_resynced(self, event: events.Resynced, *, excused: bool) -> None:
        """Note that it took over the others' master weights after a step.

        They include its trained steps up to that one; later applied steps are undone.

        excused: whether the run was disturbed, so that the client may have missed the end of an epoch.
        """
        self.resyncs += 1
        self.disturbed = self.disturbed or excused
        self.masters = {event.step}
        self.applied = {step for step in self.applied if step <= event.step}
        self.applied |= {step for step in self.trained if step <= event.step}
        self._open_epochs = {epoch for epoch in self._open_epochs if epoch >= event.epoch}

    def close(self, event: events.EpochDigest) -> list[int]:
        """Note an epoch's end. Return the steps that it trained in that epoch and never applied, ascending."""
        self.whole = True
        self.digests[event.epoch] = event.sha256
        self._open_epochs.discard(event.epoch)
        return self.unapplied(event.epoch)

    def holds(self, step: int) -> bool:
        """Return whether its master weights may be those after a step."""
        return self.masters is None or step in self.masters

    def unapplied(self, epoch: int | None = None) -> list[int]:
        """Return steps trained (in that epoch) and not applied, ascending; none once it was asked to leave."""
        if self.leaving:
            return []

        return sorted(step for step, of in self.trained.items() if step not in self.applied and epoch in (None, of))

    def missing(self, epochs: Iterable[int]) -> list[int]:
        """Return the epochs that it should have closed but did not.

        It should close all of the run's epochs, or only those it took part in if it was disturbed.
        """
        if not self.disturbed:
            return [epoch for epoch in epochs if epoch not in self.digests]

        return [] if self.leaving else sorted(self._open_epochs)
