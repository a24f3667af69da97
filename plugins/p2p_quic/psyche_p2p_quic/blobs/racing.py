"""Decides which sources of one blob are asked at the same time, from their progress. Pure; the caller passes the time.

When a source sends almost nothing, or would need long for the rest at its rate, another source is asked too. So a source that
sends just enough to count as progress cannot delay a fetch. If our own connection is the bottleneck, a second source does not
help: a source added beside one that sends is therefore on trial. If both together are not faster after a short time, the slower
of the two is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

GAIN = 1.25
"""By this factor all sources together must be faster with one more, or one source faster than another."""

LOOKS_OF_A_TRIAL = 2
"""Measurements of a new source before it is judged."""

ALMOST = 0.9
"""Fraction of the time between two measurements that must have passed: a timer may end slightly early."""


@dataclass(slots=True, eq=False)
class Race:
    """One source being asked. began, looked_at: times. received: body bytes so far; size: of the body, None before its head came.

    rate: bytes a second between the last two measurements. slow: whether another source should be asked. before: rate of all
    other sources when this one was added, while it is on trial.
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
class Racing:
    """The sources of one fetch. hedge_seconds: between two measurements. least: bytes that count as progress in that time.

    longest: seconds that a source may need for the rest before another is asked too. pause: seconds until the next trial, or
    until members that had nothing are asked again; it doubles each time. A source that is asked alone and sends is never
    dropped.
    """

    hedge_seconds: float
    least: int
    longest: float
    pause: float
    _held_until: float = 0.0
    _place_at: float = 0.0
    _again_at: float | None = None
    _again_pause: float | None = None

    def look(self, races: Iterable[Race], now: float) -> Race | None:
        """Measure each source that has been asked for long enough; returns one that should be dropped, mostly None."""
        races = tuple(races)
        for race in races:
            if now - race.looked_at >= ALMOST * self.hedge_seconds:
                race.look(now, least=self.least, longest=self.longest)
        for newest in races:
            if newest.before is not None and newest.looks >= LOOKS_OF_A_TRIAL:
                return self._judge(newest, [race for race in races if race is not newest], now)

        return None

    def wants_another(self, races: Iterable[Race], now: float) -> bool:
        """Whether one more source should be asked now."""
        races = tuple(races)
        if not all(race.slow for race in races) or any(race.before is not None for race in races):
            return False

        return now >= self._held_until or not any(self._sends(race) for race in races)

    def entered(self, race: Race, others: Iterable[Race]) -> None:
        """A source is asked now. others: those already asked; if one of them sends, the new one is on trial."""
        others = tuple(others)
        if any(self._sends(other) for other in others):
            race.before = sum(other.rate for other in others)

    def makes_place(self, races: Iterable[Race], now: float) -> Race | None:
        """The source to drop for another one when the limit is reached; None for now to keep all.

        First those that send nothing, the longest asked first, so that each gets its time; otherwise, from time to time, the
        one whose rest would take longest.
        """
        races = tuple(races)
        idle = [race for race in races if not self._sends(race)]
        if idle:
            return min(idle, key=lambda race: race.began)
        if now < self._place_at:
            return None

        self._place_at = now + 2 * self.longest
        return max(races, key=lambda race: ((race.size or 0) - race.received) / race.rate)

    def again_due(self, now: float) -> bool:
        """Whether members that had nothing are asked again, because all sources have been slow, or none was left, for a while."""
        if self._again_at is None or self._again_pause is None:
            self._again_pause = self.pause
            self._again_at = now + self.pause
        if now < self._again_at:
            return False

        self._again_pause *= 2
        self._again_at = now + self._again_pause
        return True

    def _sends(self, race: Race) -> bool:
        return race.rate * self.hedge_seconds >= self.least

    def _judge(self, newest: Race, others: list[Race], now: float) -> Race | None:
        before, newest.before = newest.before, None
        together = newest.rate + sum(other.rate for other in others)
        if before is None or not others or together >= GAIN * before:
            return None

        self._held_until = now + self.pause
        self.pause *= 2
        slowest = min(others, key=lambda race: race.rate)
        return slowest if newest.rate > GAIN * slowest.rate else newest
