"""Timeouts: how long a client waits for others before it does something else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds. payload: for an accepted payload before we resync (F11); peers: for all members to connect in warmup.

    offers: for more members to offer their model; answer: before we join or come back again; evidence: before we repeat an
    unanswered proof, short because it is accepted only until the epoch ends; leaving: serving our last results after we
    withdrew. absence: longest time between two events that counts; the rest of a longer suspension does not count as waiting.
    """

    payload: float = 60.0
    peers: float = 10.0
    offers: float = 10.0
    answer: float = 10.0
    evidence: float = 1.5
    absence: float = 5.0
    leaving: float = 5.0
