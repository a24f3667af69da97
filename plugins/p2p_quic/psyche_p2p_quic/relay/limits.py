"""What one client, one address and all together may use of a relay: the limits, and the counters that hold them. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from psyche_p2p_quic.relay.frames import MAX_FRAME_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayLimits:
    """Times are seconds, sizes bytes, rates bytes per second; a rate of None means no limit.

    handshake_seconds: from the connection to a proven id, TLS and HTTP included. admission_seconds: how long a proven id that is
    not admitted may wait until it is, for instance until the run knows the new member. ping_seconds, ping_jitter_seconds: a
    silent client is asked after the first and a random part of the second. pong_seconds: for its answer. write_seconds: for a
    client that takes nothing of what is written to it. linger_seconds: for the end of a connection that we close.

    clients: proven connections. connections: open ones of any state. connections_per_address: of one IPv4 address or IPv6 /64.
    connection_rate_per_address: new ones a second. connections_per_id: of one id; a further one closes the oldest.

    queue_packets, queue_bytes: waiting for one client, beyond which packets to it are dropped. total_queue_bytes: waiting for
    all. message_bytes: of one frame. client_rate, total_rate: of what clients send. burst_seconds: what a client may send at once
    after a pause, as seconds of its rate. remembered_peers: of one client, to tell them when it leaves.
    """

    handshake_seconds: float = 10.0
    admission_seconds: float = 5.0
    ping_seconds: float = 15.0
    ping_jitter_seconds: float = 5.0
    pong_seconds: float = 5.0
    write_seconds: float = 2.0
    linger_seconds: float = 1.0

    clients: int = 4096
    connections: int = 8192
    connections_per_address: int = 64
    connection_rate_per_address: float = 10.0
    connections_per_id: int = 2

    queue_packets: int = 512
    queue_bytes: int = 4 * 2**20
    total_queue_bytes: int = 256 * 2**20
    message_bytes: int = MAX_FRAME_BYTES
    client_rate: float | None = None
    total_rate: float | None = None
    burst_seconds: float = 0.5
    remembered_peers: int = 1024


class TokenBucket:
    """A rate with a burst. rate: units per second, None for no limit."""

    __slots__ = ("_at", "_burst", "_level", "_rate")

    def __init__(self, rate: float | None, *, burst_seconds: float, now: float) -> None:
        self._rate = rate
        self._burst = self._level = (rate or 0.0) * burst_seconds
        self._at = now

    def take(self, count: int, now: float) -> float:
        """Use `count` units that have come already; for how many seconds no more may come."""
        if self._rate is None:
            return 0.0

        self._level = min(self._burst, self._level + (now - self._at) * self._rate) - count
        self._at = now
        return max(0.0, -self._level / self._rate)


class AddressCounter:
    """Connections of each address: how many at once, and how many a second.

    An IPv6 network of 64 bits counts as one address, because one household or server has it. most: of all. rate: new connections
    a second of one address, after twice `most_per_address` and 16 at once. Memory is bounded by `most`: an address without
    connections is forgotten as soon as it may make all of them at once again, or when others need its place.
    """

    def __init__(self, *, most: int, most_per_address: int, rate: float = 10.0) -> None:
        self._most = most
        self._most_per_address = most_per_address
        self._rate = rate
        self._burst = 2 * most_per_address + 16
        self._places: dict[str, _Place] = {}
        self.total: int = 0

    def enter(self, host: str, now: float) -> str | None:
        """Count a connection; its key for `leave`, or None if it is one too many."""
        key = _place(host)
        place = self._places.get(key)
        if place is None:
            self._make_room(now)
            place = self._places[key] = _Place(0, float(self._burst), now)
        place.allowed = min(self._burst, place.allowed + (now - place.at) * self._rate)
        place.at = now
        if self.total >= self._most or place.count >= self._most_per_address or place.allowed < 1:
            return None

        place.allowed -= 1
        place.count += 1
        self.total += 1
        return key

    def leave(self, key: str) -> None:
        """A counted connection has ended."""
        self.total -= 1
        self._places[key].count -= 1

    def _make_room(self, now: float) -> None:
        if len(self._places) < 2 * self._most + 1024:
            return

        full = {
            key: place
            for key, place in self._places.items()
            if place.count or place.allowed + (now - place.at) * self._rate < self._burst
        }
        self._places = full if len(full) < self._most + 1024 else {key: place for key, place in full.items() if place.count}


@dataclass(slots=True)
class _Place:
    """count: open connections. allowed: new ones it may make, as of `at`."""

    count: int
    allowed: float
    at: float


def _place(host: str) -> str:
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is None:
            return str(ipaddress.ip_network((ip, 64), strict=False))
        ip = ip.ipv4_mapped
    return str(ip)
