"""Turns the transport's reports about its connections into events for people. Pure; the caller passes the time.

Paths are reported when one of them changes its kind, at most every few seconds, and otherwise at long intervals. If all reachable
members are reached only through a relay, one event says so and suggests what would help. Where the transport keeps connections
with some members only, its neighbours, the others are counted; one of them is named only while it is connected.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from psyche_core.interfaces import PeerPath
from psyche_core.telemetry.events import Event, Mended, PathOfPeer, PeerPaths, Problem

CHANGE_SECONDS = 2.0
REPORT_SECONDS = 30.0
ONLY_RELAYED_SECONDS = 30.0

ONLY_RELAYED = (
    "every member is reached through a relay only, which is slower: UDP is blocked, or a router changes ports, at this machine "
    "or at the others. `psyche doctor network` tells whether it is here; then it helps to forward a UDP port to this machine "
    "(--bind-p2p-port PORT --advertise-address ITS_PUBLIC_IP), or to have IPv6"
)
DIRECT_AGAIN = "members are reached directly"


class PathReporter:
    """Remembers what was reported."""

    def __init__(self) -> None:
        self._kinds: dict[bytes, str] = {}
        self._reported_at = -math.inf
        self._counters: dict[bytes, tuple[int, int]] = {}
        self._relayed_since: float | None = None
        self._warned = False

    def due(
        self, paths: Iterable[PeerPath], members: Sequence[bytes], now: float, *, neighbours: Collection[bytes] | None = None
    ) -> list[Event]:
        """The events that are due.

        paths: of connected peers. members: of the epoch, ours excluded. neighbours: those to which the transport keeps
        connections, None if to all.
        """
        known = {path.peer: path for path in paths}
        if not known and not self._kinds:
            return []

        near = frozenset(members if neighbours is None else neighbours)
        named = [peer for peer in members if peer in near or peer in known]
        events = self._about_relays({peer: _kind(known.get(peer)) for peer in named}, now)
        kinds = {peer: _kind(known.get(peer)) for peer in named if peer in near}  # others come and go with each transfer
        since = now - self._reported_at
        if since >= REPORT_SECONDS or (kinds != self._kinds and since >= CHANGE_SECONDS):
            seconds = since if math.isfinite(since) else math.inf
            lines = [replace(self._line(peer, known.get(peer), seconds), neighbour=peer in near) for peer in named]
            events.append(PeerPaths(tuple(lines), over_others=len(members) - len(named)))
            self._kinds, self._reported_at = kinds, now
            self._counters = {peer: (path.bytes_sent, path.bytes_received) for peer, path in known.items()}
        return events

    def _line(self, peer: bytes, path: PeerPath | None, seconds: float) -> PathOfPeer:
        if path is None:
            return PathOfPeer(peer[:4].hex(), "none")

        sent, received = self._counters.get(peer, (0, 0))
        if path.bytes_sent < sent or path.bytes_received < received:  # a new connection, whose counters began at zero
            sent, received = 0, 0
        return PathOfPeer(
            peer[:4].hex(),
            _kind(path),
            round(1000 * path.rtt, 1),
            round((path.bytes_sent - sent) / seconds),
            round((path.bytes_received - received) / seconds),
        )

    def _about_relays(self, kinds: dict[bytes, str], now: float) -> list[Event]:
        only_relayed = "relayed" in kinds.values() and "direct" not in kinds.values()
        if not only_relayed:
            self._relayed_since = None
            if self._warned and "direct" in kinds.values():
                self._warned = False
                return [Mended(DIRECT_AGAIN)]
            return []

        self._relayed_since = now if self._relayed_since is None else self._relayed_since
        if self._warned or now - self._relayed_since < ONLY_RELAYED_SECONDS:
            return []

        self._warned = True
        return [Problem("warning", ONLY_RELAYED)]


def _kind(path: PeerPath | None) -> str:
    if path is None:
        return "none"

    return "relayed" if path.relayed else "direct"
