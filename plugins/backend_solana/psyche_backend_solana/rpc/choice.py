"""Chooses the endpoint, and the wait before the next attempt. No I/O: the caller passes time and random numbers.

The first endpoint is preferred. After FAILURES failures in a row the next one is used, and the failed one is only probed from
then on. It is preferred again after PROBES good answers in a row over STEADY_SECONDS, so that an unstable endpoint is not used
again and again. The last remaining endpoint is always used.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FAILURES = 2
PROBES = 3
PROBE_SECONDS = 5.0
STEADY_SECONDS = 10.0
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0


def pause(attempt: int, chance: float) -> float:
    """Seconds to wait before the next round of attempts. attempt: from 0. chance: random, uniform in [0, 1)."""
    longest: float = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(attempt, 16))
    return longest * (0.5 + 0.5 * chance)


@dataclass(slots=True)
class _Health:
    failures: int = 0
    good_probes: int = 0
    good_since: float = 0.0
    probed: float = field(default=float("-inf"))


class EndpointChoice:
    """Decides among `count` endpoints, numbered in order of preference."""

    def __init__(self, count: int) -> None:
        self._health = [_Health() for _ in range(count)]
        self._current = 0

    @property
    def current(self) -> int:
        """The endpoint in use."""
        return self._current

    def order(self) -> tuple[int, ...]:
        """Return all endpoints in the order in which to try them: the current one, then the others, least failures first."""
        others = sorted(
            (number for number in range(len(self._health)) if number != self._current),
            key=lambda number: (self._health[number].failures >= FAILURES, number),
        )
        return (self._current, *others)

    def succeeded(self, number: int) -> None:
        """Record that an endpoint answered an ordinary call."""
        if number == self._current:
            self._health[number].failures = 0

    def failed(self, number: int, *, for_good: bool = False) -> bool:
        """Record that an endpoint failed. Returns whether another one is current now.

        for_good: the endpoint reported that it cannot serve the call.
        """
        health = self._health[number]
        health.failures = max(health.failures + 1, FAILURES if for_good else 0)
        health.good_probes = 0
        if number != self._current or health.failures < FAILURES:
            return False

        fit = [at for at, other in enumerate(self._health) if other.failures < FAILURES]
        if not fit:  # none works: use them in turn
            fit = [(number + 1) % len(self._health)]
        changed = fit[0] != self._current
        self._current = fit[0]
        return changed

    def to_probe(self, now: float) -> int | None:
        """An endpoint preferred to the current one that should be probed now; None if there is none."""
        for number in range(self._current):
            if now - self._health[number].probed >= PROBE_SECONDS:
                self._health[number].probed = now
                return number

        return None

    def probed(self, number: int, now: float, *, well: bool) -> bool:
        """Record the result of a probe. Returns whether the endpoint is in use again."""
        health = self._health[number]
        if not well:
            health.good_probes = 0
            return False

        if health.good_probes == 0:
            health.good_since = now
        health.good_probes += 1
        if health.good_probes < PROBES or now - health.good_since < STEADY_SECONDS:
            return False

        health.failures = 0
        changed = number < self._current
        self._current = min(number, self._current)
        return changed
