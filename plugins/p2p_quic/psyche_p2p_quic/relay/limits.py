"""What one client, one address and all together may use of a relay: the limits, and the counters that hold them. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Generic, TypeVar

from psyche_p2p_quic.relay.protocol.frames import MAX_FRAME_BYTES

_Connection = TypeVar("_Connection")


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayLimits:
    """Times are seconds, sizes bytes, rates bytes per second; a rate of None means no limit.

    handshake_seconds: from the connection to a proven id, TLS and HTTP included. admission_seconds: how long a proven id that is
    not admitted may wait until it is, for instance until the run knows the new member. ping_seconds, ping_jitter_seconds: a
    silent client is asked after the first and a random part of the second. pong_seconds: for its answer. write_seconds: for a
    client that takes nothing of what is written to it. linger_seconds: for the end of a connection that we close.

    clients: proven connections. connections: open ones of any state; what `clients` leaves of them is for those that are not
    proven yet. connections_per_address: of one IPv4 address or IPv6 /56, see `AddressCounter`. connection_rate_per_address: new
    ones a second. connections_per_id: of one id; a further one closes the oldest.

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

    @property
    def unproven(self) -> int:
        """Most connections that have not proved an id, or are not admitted."""
        return max(1, self.connections - self.clients)


class TokenBucket:
    """A rate with a burst. rate: units per second, None for no limit."""

    __slots__ = ("_at", "_burst", "_level", "_rate")

    def __init__(self, rate: float | None, *, burst_seconds: float, now: float) -> None:
        self._rate = rate
        self._burst = self._level = (rate or 0.0) * burst_seconds
        self._at = now

    def ready(self, now: float) -> bool:
        """Whether another unit may come now."""
        return self._rate is None or min(self._burst, self._level + (now - self._at) * self._rate) >= 1

    def take(self, count: int, now: float) -> float:
        """Use `count` units that have come already; for how many seconds no more may come."""
        if self._rate is None:
            return 0.0

        self._level = min(self._burst, self._level + (now - self._at) * self._rate) - count
        self._at = now
        return max(0.0, -self._level / self._rate)


class AddressCounter:
    """Connections of each address: how many at once, and how many a second.

    An IPv6 network of 56 bits counts as one address, because one household may have it. most: of all. rate: new connections
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
        key = place_of(host)
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

    def is_too_fast(self, host: str, now: float) -> bool:
        """Whether that address may make no new connection now, however many it has."""
        place = self._places.get(place_of(host))
        return place is not None and place.allowed + (now - place.at) * self._rate < 1

    def is_full(self, host: str) -> bool:
        """Whether that address has as many connections as it may have."""
        place = self._places.get(place_of(host))
        return place is not None and place.count >= self._most_per_address

    def excuse(self, key: str) -> None:
        """A connection no longer counts for its address, only in the total: its owner is known. It ends by `leave_excused`."""
        self._places[key].count -= 1
        self._places[key].excused += 1

    def leave(self, key: str) -> None:
        """A counted connection has ended."""
        self.total -= 1
        self._places[key].count -= 1

    def leave_excused(self, key: str) -> None:
        """An excused connection has ended."""
        self.total -= 1
        self._places[key].excused -= 1

    def _make_room(self, now: float) -> None:
        if len(self._places) < 2 * self._most + 1024:
            return

        full = {
            key: place
            for key, place in self._places.items()
            if place.count or place.excused or place.allowed + (now - place.at) * self._rate < self._burst
        }
        self._places = (
            full if len(full) < self._most + 1024 else {key: place for key, place in full.items() if place.count or place.excused}
        )


@dataclass(slots=True)
class _Place:
    """count: open connections. allowed: new ones it may make, as of `at`. excused: open ones that are not in `count`."""

    count: int
    allowed: float
    at: float
    excused: int = 0


class Waiting(Generic[_Connection]):
    """Connections that have proved nothing, in the order in which they came. Where one must go, a crowd loses one of its own."""

    def __init__(self) -> None:
        self._places: dict[str, dict[_Connection, None]] = {}
        self._sizes: dict[int, dict[str, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, connection: _Connection, place: str) -> None:
        """One has come from that place, see `place_of`."""
        there = self._places.setdefault(place, {})
        there[connection] = None
        self._count += 1
        self._resize(place, len(there) - 1, len(there))

    def remove(self, connection: _Connection, place: str) -> bool:
        """It waits no longer; whether it did."""
        there = self._places.get(place, {})
        if connection not in there:
            return False

        del there[connection]
        self._count -= 1
        self._resize(place, len(there) + 1, len(there))
        if not there:
            del self._places[place]
        return True

    def oldest(self, place: str) -> _Connection | None:
        """The first one of a place."""
        return next(iter(self._places.get(place, {})), None)

    def oldest_of_most(self) -> _Connection | None:
        """The first one of the place that has the most."""
        return None if not self._sizes else self.oldest(next(iter(self._sizes[max(self._sizes)])))

    def _resize(self, place: str, before: int, now: int) -> None:
        """Keep places by size, so that finding the largest does not get slower in a flood."""
        if before:
            del self._sizes[before][place]
            if not self._sizes[before]:
                del self._sizes[before]
        if now:
            self._sizes.setdefault(now, {})[place] = None


def place_of(host: str) -> str:
    """What counts as one address: an IPv4 address, or the network of 56 bits of an IPv6 address."""
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is None:
            return str(ipaddress.ip_network((ip, 56), strict=False))
        ip = ip.ipv4_mapped
    return str(ip)
