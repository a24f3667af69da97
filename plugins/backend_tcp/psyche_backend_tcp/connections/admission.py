"""Decides which connections are admitted before and at their login, without sockets or clocks.

A connection that has not logged in is in one of three states:

    silent     it has sent nothing yet. It costs only a socket, so only the total is limited. One connection too many ends the
               oldest of the address with the most, so a flood from one address does not affect other addresses.
    waiting    it has begun TLS and holds a place until it has logged in. Places are limited in total and per address. While some
               are free, every connection gets one. After that it needs a solved puzzle (`puzzle`), and the weakest waiting
               connection is ended: first one without a proof, then one with fewer bits, then one whose address holds more places,
               then the oldest.
    reserved   it proved a member's key. There is one place for each member, in addition to all others; a newer connection with
               the same key ends the older one.

What an attacker can do. From one address, it cannot affect other addresses; newcomers behind the same address are still admitted,
because its silent connections end before theirs and a puzzle has priority over a connection without one. From many addresses,
sending nothing: it must open as many connections as fit between a client's TCP handshake and its first bytes, which follow at
once. Starting TLS and then sending nothing: it holds the places until somebody solves a puzzle. Solving puzzles too: puzzles get
harder the more places are held by solvers, and most bits win, so it displaces newcomers only with more computing power than all
of them. It does not affect members, whose places need no work. An attacker that is a member holds only its own place.

Each login takes a token of the key's bucket. The bucket outlives the connection, so reconnecting does not avoid the limits of one
connection. The number of logged-in keys that are not members is limited; members are admitted in addition. Only a limited number
of keys is remembered; the one unseen for longest is forgotten first. An address is an IPv4 address or an IPv6 /64.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from psyche_backend_tcp.connections.login import LoginRefused
from psyche_backend_tcp.limits import Limits
from psyche_core.rate_limit import TokenBucket, address_block

REMEMBERED_KEYS = 1024


@dataclass(frozen=True, slots=True)
class _Place:
    """A waiting connection. place: the address it comes from; bits: of the puzzle that it solved, 0 for none."""

    place: str
    bits: int = 0


class Admission:
    """Counts connections of one service.

    allowed: returns whether a key may log in; None allows all. members: returns the keys of members, who always get a place.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        allowed: Callable[[bytes], bool] | None = None,
        members: Callable[[], Collection[bytes]] = frozenset,
    ) -> None:
        self._limits = limits
        self._allowed = allowed
        self._members = members
        self._silent: OrderedDict[int, str] = OrderedDict()
        self._silent_at: Counter[str] = Counter()
        self._waiting: dict[int, _Place] = {}
        self._waiting_at: Counter[str] = Counter()
        self._reserved: dict[bytes, int] = {}
        self._inside: Counter[bytes] = Counter()
        self._logins: OrderedDict[bytes, TokenBucket] = OrderedDict()

    @property
    def silent(self) -> tuple[int, ...]:
        """Connections that have sent nothing, oldest first."""
        return tuple(self._silent)

    @property
    def waiting(self) -> int:
        """Connections that have not logged in."""
        return len(self._silent) + len(self._waiting) + len(self._reserved)

    @property
    def bits(self) -> int:
        """The current difficulty of a puzzle: it grows with the number of places held by solvers."""
        limits = self._limits
        solved = sum(place.bits > 0 for place in self._waiting.values())
        return limits.puzzle_bits + (limits.puzzle_most_bits - limits.puzzle_bits) * solved // limits.max_unauthenticated

    def knock(self, number: int, host: str) -> int | None:
        """Register a new connection; numbers increase. Return the number of the silent one to end, maybe itself, or None."""
        place = address_block(host)
        self._silent[number] = place
        self._silent_at[place] += 1
        if len(self._silent) <= self._limits.max_silent:
            return None

        most = max(self._silent_at.values())
        return next(other for other, home in self._silent.items() if self._silent_at[home] == most)

    def scarce(self, number: int) -> bool:
        """Return whether a silent connection without a proof would get no place."""
        place = self._silent[number]
        limits = self._limits
        full = len(self._waiting) >= limits.max_unauthenticated
        return full or self._waiting_at[place] >= limits.max_unauthenticated_per_address

    def grant(self, number: int, bits: int = 0) -> int | None:
        """Give a place to a silent connection that begins TLS. bits: of the puzzle that it solved.

        Return the number of the waiting connection to end for it, which may be itself, or None.
        """
        place = self._speaks(number)
        self._waiting[number] = _Place(place, bits)
        self._waiting_at[place] += 1
        if self._waiting_at[place] > self._limits.max_unauthenticated_per_address:
            return self._weakest([other for other, it in self._waiting.items() if it.place == place])

        return self._weakest(self._waiting) if len(self._waiting) > self._limits.max_unauthenticated else None

    def is_member(self, public: bytes) -> bool:
        """Return whether a place is reserved for the key."""
        return public in self._members()

    def reserve(self, number: int, public: bytes) -> int | None:
        """Give a silent connection that proved a member's key that member's place.

        Return the connection to end for it, or None.
        """
        self._speaks(number)
        older = self._reserved.get(public)
        self._reserved[public] = number
        return older

    def done(self, number: int) -> None:
        """Note that a connection is no longer waiting, for any reason; idempotent."""
        if number in self._silent:
            self._speaks(number)
        if number in self._waiting:
            place = self._waiting.pop(number).place
            self._waiting_at[place] -= 1
            if not self._waiting_at[place]:
                del self._waiting_at[place]
        for public, other in tuple(self._reserved.items()):
            if other == number:
                del self._reserved[public]

    def _speaks(self, number: int) -> str:
        place = self._silent.pop(number)
        self._silent_at[place] -= 1
        if not self._silent_at[place]:
            del self._silent_at[place]
        return place

    def _weakest(self, numbers: Collection[int]) -> int:
        def worth(number: int) -> tuple[int, int, int]:
            waiting = self._waiting[number]
            return waiting.bits, -self._waiting_at[waiting.place], number

        return min(numbers, key=worth)

    def enter(self, public: bytes, now: float) -> None:
        """Admit a key that was proved; `leave` must follow. Raises LoginRefused (NotAllowed, RateLimited, Busy)."""
        if self._allowed is not None and not self._allowed(public):
            message = f"{public.hex()} is not on this server's list of keys that may take part; ask the run's owner to add it"
            raise LoginRefused("NotAllowed", message)

        pause = self._login_bucket(public).try_take(now)
        if pause > 0:
            raise LoginRefused("RateLimited", f"this key logs in too often; try again in {pause:.1f} s")

        if self._inside[public] >= self._limits.max_connections_per_key:
            message = f"this key already has {self._inside[public]} connections here; close one of them first"
            raise LoginRefused("RateLimited", message)

        if self._inside.total() >= self._limits.max_connections and public not in (members := self._members()):
            strangers = sum(count for key, count in self._inside.items() if key not in members)
            if strangers >= self._limits.max_connections:
                raise LoginRefused("Busy", f"the server already has {strangers} connections besides its members; try again later")

        self._inside[public] += 1

    def leave(self, public: bytes) -> None:
        """Note that an admitted connection was closed."""
        self._inside[public] -= 1
        if not self._inside[public]:
            del self._inside[public]

    def _login_bucket(self, public: bytes) -> TokenBucket:
        bucket = self._logins.pop(public, None)
        if bucket is None:
            bucket = TokenBucket(self._limits.logins_per_second, burst=self._limits.login_burst)
            if len(self._logins) >= REMEMBERED_KEYS:
                self._logins.popitem(last=False)
        self._logins[public] = bucket
        return bucket
