"""One readable log line per event, for terminals that scroll, files and service managers. The sentences are in `event_text`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from psyche_core.telemetry import events
from psyche_core.telemetry.sinks import Sink
from psyche_core.text_safety import printable
from psyche_core.ui.event_text import describe, suspicious_overlaps
from psyche_core.ui.formatting import bytes_text
from psyche_core.ui.lost_shares import LostShares

TOTALS_SECONDS = 60.0
"""Seconds between two lines about the network's totals."""


FETCH_SECONDS = 5.0
"""Seconds between two lines about a model download; the last piece is always reported."""


def console_lines(stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> Sink:
    """Return a sink that writes `HH:MM:SS sentence` per event and flushes it.

    Network totals are written once per minute, with rates; paths to members when their kinds change; similar results when they
    are another member's than before; how many rounds lost shares at the first, and whenever their number has doubled. clock:
    seconds, for tests.
    """
    meter = _Meter(clock)
    lost = LostShares()
    fetched_at = -FETCH_SECONDS
    kinds: dict[str, str] = {}
    alike: frozenset[str] = frozenset()

    def write(event: events.Event) -> None:
        nonlocal fetched_at, kinds, alike
        sentence: str | None
        if isinstance(event, events.NetworkTotals):
            sentence = meter.read(event)
        elif isinstance(event, events.WitnessReported | events.StepFigures | events.OptimizerStatistics | events.ResultsFetched):
            sentence = None  # these come in each round and are only for curves
        elif isinstance(event, events.ResultOverlaps):
            now = frozenset(each.member for each in suspicious_overlaps(event))
            alike, sentence = now, None if now <= alike else describe(event)  # otherwise it would be written at each step
        elif isinstance(event, events.ShareChecked) and event.outcome == "passed":
            sentence = None  # it comes in most rounds
        elif (
            isinstance(event, events.ModelSync)
            and event.pieces_done < event.pieces_total
            and clock() < fetched_at + FETCH_SECONDS
        ):
            sentence = None
        elif isinstance(event, events.PeerPaths):
            before, kinds = kinds, {each.peer: each.path for each in event.peers if each.neighbour}
            sentence = None if kinds == before else describe(event)
        elif isinstance(event, events.Ended) and (last := meter.last()) is not None:
            sentence = f"{last}\n{stamp()} {describe(event)}"
        else:
            sentence = describe(event)
        if isinstance(event, events.ModelSync) and sentence is not None:
            fetched_at = clock()
        if isinstance(event, events.StepApplied):
            lost.note(event)
            if lost.is_due():
                sentence = f"{sentence}\n{stamp()} warning: {printable(lost.sentence() or '')}"
        if sentence is not None:
            stream.write(f"{stamp()} {sentence}\n")
            stream.flush()

    def stamp() -> str:
        return time.strftime("%H:%M:%S")

    return write


class _Meter:
    """Reduces network totals to one line per minute. They arrive every second, for the panel."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reported_at = clock()
        self._reported = self._newest = events.NetworkTotals(0, 0, 0)

    def read(self, totals: events.NetworkTotals) -> str | None:
        """Return a sentence if one is due, else None."""
        if totals.bytes_sent < self._reported.bytes_sent or totals.bytes_received < self._reported.bytes_received:
            self._reported, self._reported_at = (
                events.NetworkTotals(0, 0, 0),
                self._clock(),
            )  # the client restarted, and counts from zero
        self._newest = totals
        return self._sentence() if self._clock() - self._reported_at >= TOTALS_SECONDS else None

    def last(self) -> str | None:
        """Return a sentence about the totals that were not reported yet, if any."""
        return self._sentence() if self._newest != self._reported else None

    def _sentence(self) -> str:
        now, before, newest = self._clock(), self._reported, self._newest
        seconds = max(now - self._reported_at, 1e-9)
        sent, received = newest.bytes_sent - before.bytes_sent, newest.bytes_received - before.bytes_received
        self._reported_at, self._reported = now, newest
        rates = f"{bytes_text(sent / seconds)}/s out and {bytes_text(received / seconds)}/s in"
        return f"{describe(newest)}; {rates} for {seconds:.0f} s"
