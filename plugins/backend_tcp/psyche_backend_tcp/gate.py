"""Who may come in: decides about connections before and at their login, without sockets or clocks.

Decided here: connections that have not logged in are bounded twice, in all by ending the oldest (so that idle ones cannot keep
members out) and for each address by turning away the newest (so that one address can only be in its own way); an address is an
IPv4 address or an IPv6 /64. Logging in costs a key tokens that outlive the connection, so that coming again and again is no way
around the limits of one connection. What is remembered about keys is bounded: the longest unseen is forgotten.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Callable

from psyche_backend_tcp.limits import Limits, TokenBucket
from psyche_backend_tcp.login import LoginRefused

REMEMBERED_KEYS = 1024


def origin(host: str) -> str:
    """What counts as one address: the IPv4 address, or the /64 network of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host

    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))

    return str(address)


class Gate:
    """Counts connections of one service. allowed: whether a key may log in; None lets all in."""

    def __init__(self, limits: Limits, *, allowed: Callable[[bytes], bool] | None = None) -> None:
        self._limits = limits
        self._allowed = allowed
        self._waiting: OrderedDict[int, str] = OrderedDict()
        self._waiting_at: Counter[str] = Counter()
        self._inside: Counter[bytes] = Counter()
        self._logins: OrderedDict[bytes, TokenBucket] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Connections that have not logged in."""
        return len(self._waiting)

    def knock(self, number: int, host: str) -> int | None:
        """A connection arrived. Returns the number of the connection to end for it: itself, an older one, or none."""
        place = origin(host)
        if self._waiting_at[place] >= self._limits.max_unauthenticated_per_address:
            return number

        oldest = None
        if len(self._waiting) >= self._limits.max_unauthenticated:
            oldest = next(iter(self._waiting))
            self.done(oldest)
        self._waiting[number] = place
        self._waiting_at[place] += 1
        return oldest

    def done(self, number: int) -> None:
        """A connection is not waiting any more, whatever became of it; idempotent."""
        place = self._waiting.pop(number, None)
        if place is not None:
            self._waiting_at[place] -= 1
            self._waiting_at += Counter()  # forget addresses nobody waits from

    def enter(self, public: bytes, now: float) -> None:
        """Let in a key that has proved itself; `leave` follows. Raises LoginRefused (NotAllowed, RateLimited, Busy)."""
        if self._allowed is not None and not self._allowed(public):
            message = f"{public.hex()} is not on this server's list of keys that may take part; ask the run's owner to add it"
            raise LoginRefused("NotAllowed", message)

        pause = self._login_bucket(public, now).try_take(now)
        if pause > 0:
            raise LoginRefused("RateLimited", f"this key logs in too often; try again in {pause:.1f} s")

        if self._inside[public] >= self._limits.max_connections_per_key:
            message = f"this key already has {self._inside[public]} connections here; close one of them first"
            raise LoginRefused("RateLimited", message)

        if self._inside.total() >= self._limits.max_connections:
            raise LoginRefused("Busy", f"the server already has {self._inside.total()} connections; try again later")

        self._inside[public] += 1

    def leave(self, public: bytes) -> None:
        """A connection that had entered is closed."""
        self._inside[public] -= 1
        if not self._inside[public]:
            del self._inside[public]

    def _login_bucket(self, public: bytes, now: float) -> TokenBucket:
        bucket = self._logins.pop(public, None)
        if bucket is None:
            bucket = TokenBucket(rate=self._limits.logins_per_second, burst=self._limits.login_burst, now=now)
            if len(self._logins) >= REMEMBERED_KEYS:
                self._logins.popitem(last=False)
        self._logins[public] = bucket
        return bucket
