"""Which sources of one blob are asked at the same time: pure decisions about their progress. Times are the caller's.

A source that sends next to nothing, or at whose pace the rest would take long, is raced by the next. A source that drips just
enough to count as progress cannot hold up a fetch that way. Where our own line is what is slow, a second source adds nothing:
each race begun beside one that sends is a trial, and ends after a moment with the better of the two if both together are no
faster.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

GAIN = 1.25
"""How many times as fast all sources together must be with one more, or one source against another."""

LOOKS_OF_A_TRIAL = 2
"""Looks at a new source before it is judged."""

ALMOST = 0.9
"""Of the time between two looks: a timer may end a moment early."""


@dataclass(slots=True, eq=False)
class Race:
    """One source being asked. began, looked_at: when. received: body bytes so far; size: of the body, None before its head came.

    rate: bytes a second between the last two looks. slow: whether another source should be asked. before: rate of all sources
    when this one was asked beside them, while it is on trial.
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
        """See what came since the last look. least: bytes that are progress. longest: seconds that the rest may take."""
        fresh = self.received - self._seen
        self.rate = fresh / max(now - self.looked_at, 1e-3)
        self._seen, self.looked_at = self.received, now
        self.looks += 1
        left = 0 if self.size is None else self.size - self.received
        self.slow = fresh < least or left > self.rate * longest


@dataclass(slots=True)
class Racing:
    """The sources of one fetch. hedge_seconds: from one look to the next. least: bytes that are progress in that time.

    longest: seconds that a source may need for the rest without being raced. pause: seconds until the next trial, or until
    members that had nothing are asked again, doubled each time. Guaranteed: a source that is asked alone and sends is never given
    up.
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
        """Judge the progress of each source that has been asked for long enough; one that is to be given up, None mostly."""
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
        """A source is asked. others: those that are asked already; it is on trial beside one that sends."""
        others = tuple(others)
        if any(self._sends(other) for other in others):
            race.before = sum(other.rate for other in others)

    def makes_place(self, races: Iterable[Race], now: float) -> Race | None:
        """Who is given up for another where no more may be asked; None: nobody now.

        First those that send nothing, longest asked first, so that each gets its time; else, now and then, the one whose rest
        would take longest.
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
        """Whether members that had nothing are asked again: all sources are slow, or none is left, for a while."""
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
