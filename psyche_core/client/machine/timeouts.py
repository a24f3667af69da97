"""Timeouts: how long a client waits for others before it does something else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Timeouts in seconds.

    Attributes:
        payload: how long we wait for an accepted payload before we resync (F11), and in a resync for an offer that helps.
        peers: how long we wait in warmup for members to connect.
        last_peers: the same once init_min_clients members are connected, ourselves included.
        offers: how long we wait for more members to offer their model. The report that nobody
            has it waits longer: `missing_model`.
        answer: how long we wait before we repeat an unanswered command to the coordinator (join, come back, report that we lack
            the model, report a stored model or leave storing to another member), or try again to fetch a model that could not
            be fetched.
        evidence: the same for a proof of equivocation; short, because it is accepted only until the epoch ends.
        absence: longest time between two events that counts as waiting. The rest of a longer suspension does not count.
        leaving: how long we serve our last results after we withdrew.
        leaving_checked: how long we show shares of ours that are being checked, after we withdrew. Who is gone before gets a
            strike, and with a strike who has left is not paid for the epoch.
    """

    payload: float = 60.0
    peers: float = 10.0
    last_peers: float = 3.0
    offers: float = 10.0
    answer: float = 10.0
    evidence: float = 1.5
    absence: float = 5.0
    leaving: float = 5.0
    leaving_checked: float = 120.0
