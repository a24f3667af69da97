"""One member's part of an observed run: its states and their times, losses, traffic and pay."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from psyche_core.observer.buckets import BucketSeries
from psyche_core.telemetry.events import NetworkTotals, StepTrained

LOSS_BUCKETS = 512
MAX_SPANS = 96
"""Most spans kept for a member. When there are more, the shortest of the older ones is merged into its neighbour."""

MAX_STRUCK_EPOCHS = 16
"""Number of newest epochs whose strikes of a member are kept separately."""

RATE_WINDOW = 20
"""Number of newest steps over which tokens per second are computed."""


@dataclass(slots=True)
class Span:
    """The member was in `state` from `since` (unix seconds) on. why: a word or sentence about it, may be empty."""

    since: float
    state: str
    why: str = ""


@dataclass(slots=True)
class MemberView:
    """The known facts about a member.

    key: what identifies it in this run: the name of its first event file, or its signer in hex if it has none. spans: its states,
    oldest first; the last one is the present state. earned, slashed: points that the coordinator counts; None if unknown. paid:
    smallest units of the token that it was paid. starts: number of its processes. out_epoch: epoch from which it was dropped or
    ejected. overlap: (step, score) of its newest result that was compared, see `telemetry.ResultOverlaps`; None if none was.
    checks: number of its shares that others recomputed and found trained. peers, over_others: members that are connected with
    it, and members with which it keeps no connection, see `telemetry.PeerPaths`. heard: unix seconds of the newest event about
    it. changed: version of the newest change.
    """

    key: str
    name: str = ""
    id: str = ""
    spans: list[Span] = field(default_factory=list)
    losses: BucketSeries = field(default_factory=lambda: BucketSeries(LOSS_BUCKETS))
    step: int | None = None
    loss: float | None = None
    tokens: int = 0
    payload_bytes: int | None = None
    parameters: int | None = None
    sent: int = 0
    received: int = 0
    peers: int = 0
    over_others: int = 0
    digest: tuple[int, str] | None = None
    earned: int | None = None
    slashed: int | None = None
    paid: int = 0
    starts: int = 0
    problems: int = 0
    overlap: tuple[int, float] | None = None
    checks: int = 0
    reported_rate: float | None = None
    heard: float = 0.0
    out_epoch: int | None = None
    changed: int = 0
    _struck: dict[int, tuple[int, int]] = field(default_factory=dict)
    _struck_before: int = 0
    _network: NetworkTotals = field(default_factory=lambda: NetworkTotals(0, 0, 0))
    _recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RATE_WINDOW + 1))

    @property
    def state(self) -> str:
        """The member's present state; empty if no event about the member has come."""
        return self.spans[-1].state if self.spans else ""

    @property
    def tokens_per_second(self) -> float:
        """Tokens of the member's shares per second of its newest steps; if unknown, the rate in its witness statements."""
        if len(self._recent) >= 2:
            elapsed = self._recent[-1][0] - self._recent[0][0]
            return sum(tokens for _, tokens in list(self._recent)[1:]) / elapsed if elapsed > 0 else 0.0

        return self.reported_rate or 0.0

    @property
    def strikes(self) -> int:
        """The member's strikes in checks of shares, over all epochs.

        For each epoch, the larger of the reported number and the number in the state.
        """
        return self._struck_before + sum(max(known) for known in self._struck.values())

    def note_strike(self, epoch: int) -> None:
        """Note that a check that ended in this epoch gave it a strike."""
        told, shown = self._struck.get(epoch, (0, 0))
        self._note_struck(epoch, told + 1, shown)

    def show_strikes(self, epoch: int, strikes: int) -> bool:
        """Note the number of strikes in a state of this epoch, which may be higher than the reported number.

        Return whether this changes anything.
        """
        told, shown = self._struck.get(epoch, (0, 0))
        if strikes > shown:
            self._note_struck(epoch, told, strikes)
        return strikes > max(told, shown)

    def _note_struck(self, epoch: int, told: int, shown: int) -> None:
        self._struck[epoch] = told, shown
        while len(self._struck) > MAX_STRUCK_EPOCHS:
            self._struck_before += max(self._struck.pop(min(self._struck)))

    def enter(self, state: str, time: float, why: str = "") -> None:
        """Note that it is in a state from now on. If it already is, that state goes on with its first reason."""
        if self.state == state:
            return

        if self.spans and time < self.spans[-1].since:
            time = self.spans[-1].since  # the clocks of two machines differ
        self.spans.append(Span(time, state, why))
        if len(self.spans) > MAX_SPANS:
            self._shorten()

    def start(self) -> None:
        """Note that one of its processes has started. Its totals start from zero."""
        self.starts += 1
        self.out_epoch = None
        self.over_others = 0
        self._network = NetworkTotals(0, 0, 0)
        self._recent.clear()

    def note_trained(self, time: float, event: StepTrained, *, version: int) -> None:
        """Add a trained step."""
        self.step, self.loss, self.payload_bytes = event.step, event.loss, event.payload_bytes
        self.tokens += event.tokens
        self.losses.add(event.step, event.loss, time=time, changed=version)
        self._recent.append((time, event.tokens))

    def note_network(self, event: NetworkTotals) -> None:
        """Add the newest totals of its process, which count from the start of the process."""
        before = self._network
        if event.bytes_sent < before.bytes_sent or event.bytes_received < before.bytes_received:
            before = NetworkTotals(0, 0, 0)  # a new process whose start we did not see
        self.sent += max(0, event.bytes_sent - before.bytes_sent)
        self.received += max(0, event.bytes_received - before.bytes_received)
        self.peers = event.peers
        self._network = event

    def note_overlap(self, step: int, score: float) -> bool:
        """Note how similar one of its results is to others, unless a later step's is known. Return whether it was noted."""
        if self.overlap is not None and step < self.overlap[0]:
            return False

        self.overlap = step, min(1.0, max(0.0, score))
        return True

    def absorb(self, other: MemberView) -> None:
        """Take over what another view knows, after both turned out to be the same member. Our own knowledge stays."""
        self.name = self.name or other.name
        self.spans = sorted([*other.spans, *self.spans], key=lambda span: span.since)
        self.paid += other.paid
        self.checks += other.checks
        self._struck_before += other._struck_before
        for epoch, (told, shown) in other._struck.items():
            ours = self._struck.get(epoch, (0, 0))
            self._note_struck(epoch, ours[0] + told, max(ours[1], shown))
        self.earned = other.earned if self.earned is None else self.earned
        self.slashed = other.slashed if self.slashed is None else self.slashed
        self.step = other.step if self.step is None else self.step
        self.loss = other.loss if self.loss is None else self.loss
        self.reported_rate = other.reported_rate
        self.overlap = other.overlap if self.overlap is None else self.overlap
        self.heard = max(self.heard, other.heard)
        while len(self.spans) > MAX_SPANS:
            self._shorten()

    def _shorten(self) -> None:
        """Merge the shortest of the older spans into the one before it."""
        older = range(1, len(self.spans) - 2)
        shortest = min(older, key=lambda index: self.spans[index + 1].since - self.spans[index].since)
        del self.spans[shortest]
        after, before = self.spans[shortest], self.spans[shortest - 1]
        if after.state == before.state:
            del self.spans[shortest]
