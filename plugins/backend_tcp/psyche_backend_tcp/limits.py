"""Every time-out and limit of the server in one frozen value, with the reasons for the defaults."""

from __future__ import annotations

from dataclasses import dataclass

LOGIN_FRAME = 4 * 1024
"""Most bytes of a frame in either direction until the login is done."""

CLIENT_FRAME = 64 * 1024
"""Most bytes of a frame a client may send."""

SERVER_FRAME = 4 * 1024 * 1024
"""Most bytes of a frame a server may send."""

MAX_ADDRESS_BYTES = 1024
"""Longest transport address a member may publish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a server grants. Times in seconds.

    handshake_seconds: to log in after connecting. max_unauthenticated: connections not yet logged in; one more closes the oldest
    of them, so that idle connections cannot lock members out. max_connections: logged-in ones.
    reconnect_seconds: a lost member may come back within this time before it is withdrawn; 0 withdraws at once.
    ping_seconds: a connection silent for so long is pinged; silence_seconds: and closed when silent for so long.
    send_seconds: to take in one write. finish_seconds: after the run is finished, to leave.
    requests_per_second, burst: token bucket of each connection; who asks faster is read more slowly.
    max_outbox: answers not yet sent; who lets more pile up is closed. max_members: most members waiting for an epoch.
    data_requests: most requests of one data connection under way; data_bytes: most bytes of one answer, unless one sample is
    larger.
    """

    handshake_seconds: float = 10.0
    max_unauthenticated: int = 64
    max_connections: int = 512
    reconnect_seconds: float = 5.0
    ping_seconds: float = 10.0
    silence_seconds: float = 30.0
    send_seconds: float = 30.0
    finish_seconds: float = 5.0
    requests_per_second: float = 50.0
    burst: float = 200.0
    max_outbox: int = 256
    max_members: int = 4096
    data_requests: int = 4
    data_bytes: int = 16 * 1024 * 1024


class TokenBucket:
    """Lets `burst` requests through at once and `rate` per second in the long run."""

    def __init__(self, *, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._filled = now

    def take(self, now: float, cost: float = 1.0) -> float:
        """Take `cost` tokens; the seconds to wait before the next request is read, 0 while there are tokens left."""
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._filled) * self._rate) - cost
        self._filled = now
        return max(0.0, -self._tokens / self._rate)
