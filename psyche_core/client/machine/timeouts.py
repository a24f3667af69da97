"""How long a client waits for others before it does something else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds. payload: for a consensus payload before we resync (F11); peers: for all members to connect in warmup.

    offers: for more members to offer their model; answer: before we join or come back once more; evidence: before we repeat a
    proof that was not answered, short because it is heard until the epoch ends only; leaving: serving our last results after we
    withdrew. absence: no more than this passes between two events: who was suspended for longer was not waiting.
    """

    payload: float = 60.0
    peers: float = 10.0
    offers: float = 10.0
    answer: float = 10.0
    evidence: float = 1.5
    absence: float = 5.0
    leaving: float = 5.0
