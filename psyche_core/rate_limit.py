"""What a stranger may use of a service: a rate with a burst, and what counts as one address. Pure; the caller passes the time.

Which limits there are, and what happens beyond them, belongs to each service: TCP server, web page, relay, QUIC connections.
"""

from __future__ import annotations

import ipaddress


class TokenBucket:
    """`burst` tokens at once, and `rate` more each second. Full when it is first used.

    rate: None for no limit; then nobody ever waits. Times are seconds of one clock that does not go back.
    """

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, rate: float | None, *, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._at: float | None = None

    def take(self, now: float, count: float = 1.0) -> float:
        """Take tokens in any case, also those that are yet to come. Returns the seconds until they have come."""
        if self._rate is None:
            return 0.0

        self._fill(now, self._rate)
        self._left -= count
        return max(0.0, -self._left / self._rate)

    def try_take(self, now: float) -> float:
        """Take one token if there is one and return 0.0; else take none and return the seconds until there is one."""
        seconds = self.wait(now)
        if seconds == 0.0:
            self._left -= 1.0
        return seconds

    def wait(self, now: float) -> float:
        """Return the seconds until there is a token. Takes none."""
        if self._rate is None:
            return 0.0

        self._fill(now, self._rate)
        return max(0.0, (1.0 - self._left) / self._rate)

    def give_back(self, count: float) -> None:
        """Return tokens that were not used."""
        self._left += count

    def _fill(self, now: float, rate: float) -> None:
        since = 0.0 if self._at is None else max(0.0, now - self._at)
        self._left = min(self._burst, self._left + since * rate)
        self._at = now


def address_block(host: str, *, ipv6_bits: int = 64) -> str:
    """Return what counts as one address: an IPv4 address, or the IPv6 network of so many bits, which one household may have.

    An IPv4 address inside IPv6 is that address. A host that is no address counts as itself.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host

    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.ip_network((address, ipv6_bits), strict=False))
        address = address.ipv4_mapped
    return str(address)
