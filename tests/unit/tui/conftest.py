"""What a screen is shown in tests: a run of three members, told by events and states."""

from __future__ import annotations

import math
import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from psyche_core.telemetry import events as telemetry
from psyche_core.tui.app import RunScreen
from psyche_core.tui.lines import EventLine, FeedLine, OutputLine, Request

BEGAN = 1_790_000_000.0
IDS = ("aa" * 32, "bb" * 32, "cc" * 32)


@dataclass
class Shown:
    """A screen, what it is fed, and what it asks."""

    kind: str
    asked: list[Request] = field(default_factory=list)
    now: float = BEGAN + 130

    def __post_init__(self) -> None:
        self.feed: queue.Queue[FeedLine] = queue.Queue()
        self.app = RunScreen(self.kind, title="first-light", feed=self.feed, ask=self.asked.append, clock=lambda: self.now)

    def tell(self, source: str, *events: telemetry.Event, at: float = 0.0) -> None:
        for event in events:
            self.feed.put(EventLine(source, BEGAN + at, event))

    def train(self, *, steps: int = 40, ids: Sequence[str] = IDS) -> None:
        self.tell("server", telemetry.Started("server", "ff" * 32, "first-light", "127.0.0.1:1", 100))
        for number, signer in enumerate(ids, 1):
            self.tell(f"client-{number}", telemetry.Started("client", signer, "first-light", "127.0.0.1:1"))
        for step in range(1, steps + 1):
            self.tell("server", telemetry.PhaseChanged("RoundTrain", 0, step, len(ids), step), at=3 * step)
            for number in range(1, len(ids) + 1):
                loss = 3 + 6 * math.exp(-step / 12)
                self.tell(f"client-{number}", telemetry.StepTrained(0, step, loss, 4096, 2.0, 812_000), at=3 * step + 2)
                self.tell(f"client-{number}", telemetry.StepApplied(0, step, 3, 3, 0.1), at=3 * step + 2.5)
                self.tell(f"client-{number}", telemetry.NetworkTotals(step * 800_000, step * 1_600_000, 2), at=3 * step + 2.6)
        peers = (
            telemetry.PathOfPeer("bbbbbbbb", "direct", 12.0, 1000, 2000),
            telemetry.PathOfPeer("cccccccc", "relayed", 80.0, 3, 4),
        )
        self.tell(
            "client-1", telemetry.PeerPaths(peers), telemetry.Problem("warning", "the disk is nearly full"), at=3 * steps + 3
        )
        self.feed.put(OutputLine(BEGAN, "a library says \x1b[31mred\x1b[0m"))

    @property
    def text(self) -> str:
        """What is seen, as lines of characters."""
        rows = [
            "".join(segment.text for segment in strip).rstrip()
            for strip in self.app.screen._compositor.render_strips()  # textual has no public way to the characters
        ]
        return "\n".join(rows)


@pytest.fixture
def shown() -> Callable[[str], Shown]:
    return Shown
