"""Limits connections that have not proved a key, by address. They have their own places. Pure.

When all these places are taken, the oldest connection from the network with the most of them is closed. So an attacker can fill
these places, but cannot keep out a client that proves its key.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from psyche_core.rate_limit import address_block

_HOUSEHOLD_BITS = 56
"""Prefix length of the IPv6 network that a provider gives to one household."""

_Connection = TypeVar("_Connection", bound=Hashable)


class Admission(Generic[_Connection]):
    """Counts connections. most, most_per_address, rate: see `AddressCounter`. most_waiting: of those that have proved nothing.

    excuses: whether a connection that has proved its key no longer counts for its address, because its owner is known.
    """

    def __init__(self, *, most: int, most_waiting: int, most_per_address: int, rate: float = 10.0, excuses: bool = False) -> None:
        self._addresses = AddressCounter(most=most, most_per_address=most_per_address, rate=rate)
        self._most = most
        self._most_waiting = most_waiting
        self._excuses = excuses
        self._waiting: Waiting[_Connection] = Waiting()
        self._places: dict[_Connection, str] = {}
        self._excused: set[_Connection] = set()

    @property
    def total(self) -> int:
        """Number of counted connections, in any state."""
        return self._addresses.total

    @property
    def waiting(self) -> int:
        """Number of connections that have proved nothing yet."""
        return len(self._waiting)

    def enter(self, connection: _Connection, host: str, now: float) -> tuple[bool, _Connection | None]:
        """Count a new connection. Return whether it may stay, and an older one to close for it, which no longer counts."""
        if self._addresses.is_too_fast(host, now):
            return False, None

        place = address_block(host, ipv6_bits=_HOUSEHOLD_BITS)
        crowded = self._waiting.oldest(place) if self._addresses.is_full(host) else None
        if len(self._waiting) >= self._most_waiting or self._addresses.total >= self._most:
            crowded = crowded or self._waiting.oldest_of_most()
        if crowded is not None:
            self.leave(crowded)
        if self._addresses.enter(host, now) is None:
            return False, crowded

        self._waiting.add(connection, place)
        self._places[connection] = place
        return True, crowded

    def proved(self, connection: _Connection) -> None:
        """Note that a connection has proved its key and is admitted. Ignores a connection that is not counted."""
        place = self._places.get(connection)
        if place is None:
            return

        self._waiting.remove(connection, place)
        if self._excuses and connection not in self._excused:
            self._excused.add(connection)
            self._addresses.excuse(place)

    def leave(self, connection: _Connection) -> None:
        """Free a connection's place. Idempotent."""
        place = self._places.pop(connection, None)
        if place is None:
            return

        self._waiting.remove(connection, place)
        if connection in self._excused:
            self._excused.remove(connection)
            self._addresses.leave_excused(place)
        else:
            self._addresses.leave(place)


class AddressCounter:
    """Counts the connections of each address: how many at once, and how many a second.

    An IPv6 network of 56 bits counts as one address, because one household may have it. most: of all. rate: new connections a
    second of one address, after twice `most_per_address` and 16 at once. Memory is limited by `most`: an address without
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
        """Count a connection; return its key for `leave`, or None if it is one too many."""
        key = address_block(host, ipv6_bits=_HOUSEHOLD_BITS)
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
        """Return whether that address may make no new connection now, however many it has."""
        place = self._places.get(address_block(host, ipv6_bits=_HOUSEHOLD_BITS))
        return place is not None and place.allowed + (now - place.at) * self._rate < 1

    def is_full(self, host: str) -> bool:
        """Return whether that address has its maximum number of connections."""
        place = self._places.get(address_block(host, ipv6_bits=_HOUSEHOLD_BITS))
        return place is not None and place.count >= self._most_per_address

    def excuse(self, key: str) -> None:
        """Count a connection only in the total, not for its address, because its owner is known. End it with `leave_excused`."""
        self._places[key].count -= 1
        self._places[key].excused += 1

    def leave(self, key: str) -> None:
        """Note that a counted connection has ended."""
        self.total -= 1
        self._places[key].count -= 1

    def leave_excused(self, key: str) -> None:
        """Note that an excused connection has ended."""
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
    """The connections of one address. count: open ones. allowed: new ones it may make, as of `at`.

    excused: open, not in `count`.
    """

    count: int
    allowed: float
    at: float
    excused: int = 0


class Waiting(Generic[_Connection]):
    """Connections that have proved nothing, in the order in which they came. To make room, the largest group loses its oldest."""

    def __init__(self) -> None:
        self._places: dict[str, dict[_Connection, None]] = {}
        self._sizes: dict[int, dict[str, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, connection: _Connection, place: str) -> None:
        """Add a connection of that place, see `place_of`."""
        there = self._places.setdefault(place, {})
        there[connection] = None
        self._count += 1
        self._resize(place, len(there) - 1, len(there))

    def remove(self, connection: _Connection, place: str) -> bool:
        """Remove a connection that waits no longer; return whether it was waiting."""
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
        """Return the oldest connection of a place."""
        return next(iter(self._places.get(place, {})), None)

    def oldest_of_most(self) -> _Connection | None:
        """Return the oldest connection of the place with the most connections."""
        return None if not self._sizes else self.oldest(next(iter(self._sizes[max(self._sizes)])))

    def _resize(self, place: str, before: int, now: int) -> None:
        """Keep places sorted by size, so that finding the largest does not become slower in a flood."""
        if before:
            del self._sizes[before][place]
            if not self._sizes[before]:
                del self._sizes[before]
        if now:
            self._sizes.setdefault(now, {})[place] = None
