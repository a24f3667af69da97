"""Hedged requests: decides from their progress which sources of one blob are asked at the same time. Pure; the caller passes
times.

When a source sends almost nothing, or would need long for the rest at its rate, another source is asked too. So a source that
sends just enough to count as progress cannot delay a fetch. If our own connection is the bottleneck, a second source does not
help: therefore a source that is added while another one sends is on trial. If both together are not faster after a short time,
the slower of the two is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

GAIN = 1.25
"""One more source must make all sources together faster by this factor; also how much faster one source must be than another."""

LOOKS_OF_A_TRIAL = 2
"""Number of measurements of a new source before it is judged."""

ALMOST = 0.9
"""Fraction of the time between two measurements that must have passed: a timer may end slightly early."""


@dataclass(slots=True, eq=False)
class HedgedRequest:
    """A request to one source. began, looked_at: times. received: body bytes so far.

    size: of the body in bytes, None before its head came. rate: bytes a second between the last two measurements. slow: whether
    another source should be asked. before: rate of all other sources when this one was added; None when it is not on trial.
    """

    peer: bytes
    began: float
    looked_at: float
    received: int = 0
    size: int | None = None
    rate: float = 0.0
    slow: bool = False
    before: float | None = None
    looks: int = 0
    _seen: int = 0

    def look(self, now: float, *, least: int, longest: float) -> None:
        """Measure progress since the last call. least: bytes that count as progress. longest: seconds that the rest may take."""
        fresh = self.received - self._seen
        self.rate = fresh / max(now - self.looked_at, 1e-3)
        self._seen, self.looked_at = self.received, now
        self.looks += 1
        left = 0 if self.size is None else self.size - self.received
        self.slow = fresh < least or left > self.rate * longest


@dataclass(slots=True)
class Hedging:
    """The requests of one fetch.

    hedge_seconds: time between two measurements. least: bytes that count as progress in that time. longest: seconds that a source
    may need for the rest before another is asked too. pause: seconds until the next trial, or until members that did not have the
    blob are asked again; it doubles each time. A source that is the only one asked and sends is never dropped.
    """

    hedge_seconds: float
    least: int
    longest: float
    pause: float
    _held_until: float = 0.0
    _place_at: float = 0.0
    _again_at: float | None = None
    _again_pause: float | None = None

    def look(self, requests: Iterable[HedgedRequest], now: float) -> HedgedRequest | None:
        """Measure each source that has been asked for long enough; return one that should be dropped, usually None."""
        requests = tuple(requests)
        for request in requests:
            if now - request.looked_at >= ALMOST * self.hedge_seconds:
                request.look(now, least=self.least, longest=self.longest)
        for newest in requests:
            if newest.before is not None and newest.looks >= LOOKS_OF_A_TRIAL:
                return self._judge(newest, [request for request in requests if request is not newest], now)

        return None

    def wants_another(self, requests: Iterable[HedgedRequest], now: float) -> bool:
        """Return whether one more source should be asked now."""
        requests = tuple(requests)
        if not all(request.slow for request in requests) or any(request.before is not None for request in requests):
            return False

        return now >= self._held_until or not any(self._sends(request) for request in requests)

    def entered(self, request: HedgedRequest, others: Iterable[HedgedRequest]) -> None:
        """Note that a source is asked now. others: those already asked; if one of them sends, the new one is on trial."""
        others = tuple(others)
        if any(self._sends(other) for other in others):
            request.before = sum(other.rate for other in others)

    def makes_place(self, requests: Iterable[HedgedRequest], now: float) -> HedgedRequest | None:
        """Return the source to drop for another one when the limit is reached; None to keep all for now.

        Sources that send nothing are dropped first, the longest asked first, so that each one gets its time. Otherwise, from time
        to time, it is the source whose rest would take longest.
        """
        requests = tuple(requests)
        idle = [request for request in requests if not self._sends(request)]
        if idle:
            return min(idle, key=lambda request: request.began)
        if now < self._place_at:
            return None

        self._place_at = now + 2 * self.longest
        return max(requests, key=lambda request: ((request.size or 0) - request.received) / request.rate)

    def again_due(self, now: float) -> bool:
        """Return whether to ask again members that did not have the blob, because sources were slow or none was left."""
        if self._again_at is None or self._again_pause is None:
            self._again_pause = self.pause
            self._again_at = now + self.pause
        if now < self._again_at:
            return False

        self._again_pause *= 2
        self._again_at = now + self._again_pause
        return True

    def _sends(self, request: HedgedRequest) -> bool:
        return request.rate * self.hedge_seconds >= self.least

    def _judge(self, newest: HedgedRequest, others: list[HedgedRequest], now: float) -> HedgedRequest | None:
        before, newest.before = newest.before, None
        together = newest.rate + sum(other.rate for other in others)
        if before is None or not others or together >= GAIN * before:
            return None

        self._held_until = now + self.pause
        self.pause *= 2
        slowest = min(others, key=lambda request: request.rate)
        return slowest if newest.rate > GAIN * slowest.rate else newest
