"""Reports what happens on our side of the transport: totals, paths to members and problems. Measures transfer rates.

The caller passes the time and decides when to call; `tick` has no other effects than events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import anyio

from psyche_core.client.runtime.reports.path_reporter import PathReporter
from psyche_core.interfaces import Transport
from psyche_core.telemetry.events import Event, Mended, NetworkTotals, Problem
from psyche_core.types import NodeIdentity

TOTALS_SECONDS = 1.0
SERVING_SECONDS = 2.0
SERVING_BYTES = 64 * 1024
"""A client that sends its peers at least this many bytes in SERVING_SECONDS is probably sending its model to a member."""


class NetworkReporter:
    """Counts since the start. own: our identity; its paths are not reported. now, in all methods: seconds of a steady clock."""

    def __init__(self, transport: Transport, report: Callable[[Event], None], *, own: NodeIdentity) -> None:
        self._transport = transport
        self._report = report
        self._own = own
        self._counts = NetworkTotals(0, 0, 0)
        self._paths = PathReporter()
        self._problems: tuple[str, ...] = ()
        self._reported_at = self._measured_at = 0.0
        self._received = self._sent = 0
        self._idle = anyio.Event()  # set while little is sent to peers
        self._idle.set()

    def start(self, now: float) -> None:
        """Begin to measure."""
        self._reported_at = self._measured_at = now

    def count(self, **more: int) -> None:
        """Add to the counts with these names of NetworkTotals."""
        self._counts = replace(self._counts, **{name: getattr(self._counts, name) + number for name, number in more.items()})

    @property
    def totals(self) -> NetworkTotals:
        """All counts, including the transport's own."""
        stats = self._transport.stats
        return replace(self._counts, bytes_sent=stats.bytes_sent, bytes_received=stats.bytes_received, peers=len(stats.peers))

    def tick(self, now: float, members: Sequence[NodeIdentity]) -> float | None:
        """Report what is due. Return the bytes received per second when they were measured; None between measurements.

        members: of the epoch.
        """
        stats = self._transport.stats
        if now - self._measured_at >= SERVING_SECONDS:
            self._note_serving(stats.bytes_sent - self._sent >= SERVING_BYTES)
            self._measured_at, self._sent = now, stats.bytes_sent
        if now - self._reported_at < TOTALS_SECONDS:
            return None

        rate = (stats.bytes_received - self._received) / (now - self._reported_at)
        self._reported_at, self._received = now, stats.bytes_received
        self._report(self.totals)
        self._report_problems()
        others = [member.p2p for member in members if member.p2p != self._own.p2p]
        for event in self._paths.due(self._transport.paths, others, now, neighbours=stats.neighbours):
            self._report(event)
        return rate

    async def wait_until_idle(self) -> None:
        """Wait while peers fetch much from us."""
        await self._idle.wait()

    def end_wait(self) -> None:
        """End `wait_until_idle` at once."""
        self._idle.set()

    def _note_serving(self, serving: bool) -> None:
        if not serving:
            self._idle.set()
        elif self._idle.is_set():
            self._idle = anyio.Event()

    def _report_problems(self) -> None:
        """Report each problem of the transport once, and report when all are over."""
        problems = self._transport.problems
        for sentence in problems:
            if sentence not in self._problems:
                self._report(Problem("warning", sentence))
        if self._problems and not problems:
            self._report(Mended("the relay lets this client in"))
        self._problems = problems
