"""Chooses which clients of a testnet are killed, and when: seeded, and never so many that the run could not continue.

This module only computes: the input is the time and the clients that take part, the output is the clients to kill. A kill waits
until enough clients take part again. Victims are drawn from a shuffled list of all clients that may be killed, so that the
choice hardly depends on the machine's speed.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from psyche_core.errors import UserError


class RandomKills:
    """A plan of kills. number: clients killed at a time. interval: seconds between kills. keep: clients that always stay.

    quorum: number of clients that stay if `number` allows it: with fewer witnesses no work is accepted, and every epoch is cut
    short. clients: all names, in order. allowed: numbers (from 1) of those that may be killed, None for all. seconds: time from
    the start of the clients until the kills end; None to continue to the end. Raises UserError if there are too few clients for
    that.
    """

    def __init__(
        self,
        clients: Sequence[str],
        *,
        number: int,
        interval: float,
        seed: int,
        keep: int,
        quorum: int = 0,
        seconds: float | None = None,
        allowed: Collection[int] | None = None,
    ) -> None:
        unknown = [given for given in sorted(allowed or ()) if not 1 <= given <= len(clients)]
        if unknown:
            message = f"--allowed-to-kill: there is no client {unknown[0]}; they are numbered from 1 to {len(clients)}"
            raise UserError(message)

        self._mortal = [name for place, name in enumerate(clients, start=1) if allowed is None or place in allowed]
        if number > len(self._mortal):
            message = f"--random-kill-num: got {number}, but only {len(self._mortal)} clients may be killed"
            raise UserError(message)
        if len(clients) - number < keep:
            message = (
                f"--random-kill-num: got {number}; the run needs {keep} of {len(clients)} clients to continue "
                f"(min_clients), so at most {max(0, len(clients) - keep)} can be killed at a time"
            )
            raise UserError(message)

        self._number = number
        self._interval = interval
        self._keep = max(keep, min(quorum, len(clients) - number))
        self._random = random.Random(seed)
        self._seconds = seconds
        self._began: float | None = None
        self._last = 0.0

    def victims(self, now: float, *, whole: Collection[str]) -> list[str]:
        """The clients to kill now; usually none. now: seconds of any clock. whole: names of the clients that take part."""
        able = len(whole) - self._number >= self._keep
        if self._began is None and able:
            self._began = self._last = now  # all have started: the first interval begins
        if self._began is None or not able or now - self._last < self._interval:
            return []
        if self._seconds is not None and now - self._began > self._seconds:
            return []

        chosen = [name for name in self._random.sample(self._mortal, len(self._mortal)) if name in whole][: self._number]
        if chosen:
            self._last = now
        return chosen
