"""All timeouts and limits of the server in one frozen value, with the reasons for the defaults."""

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
    """Limits of a server. Times in seconds.

    Before the login, see `admission`. silent_seconds: until a connection's first bytes, which a client sends at once; two
    seconds allow for a retransmission. max_silent: connections that have sent nothing; they are cheap, so many.
    handshake_seconds: for everything until the login is done. max_unauthenticated: connections in TLS or login without a
    member's proof; one more needs a solved puzzle. max_unauthenticated_per_address: the same for one address. puzzle_bits,
    puzzle_most_bits: difficulty when none of the places is held by a solver, and when all are; 2**bits hashes, some 50 ms and 1
    s of one core in Python.

    At the login. max_connections: logged-in ones besides the members'. max_connections_per_key: two, because a client may
    reconnect before we know that its old connection is dead. logins_per_second, login_burst: of one key.

    Members. reconnect_seconds: a lost member may return within this time before it is withdrawn; 0 withdraws at once.
    reopening_seconds: after a restart the coordinator's clock stands still until all members are back, at most this long.
    probe_seconds: a second login of a key waits this long for the first connection to answer a ping.

    Connections. ping_seconds: a connection silent for this long is pinged. silence_seconds: it is closed when no whole frame
    came for this long, even if single bytes did. send_seconds: timeout of one write. finish_seconds: time to disconnect after
    the run is finished. requests_per_second, burst: token bucket of each key; bytes_per_second, burst_bytes: of each
    connection; a client over these limits is read more slowly. max_outbox: answers not yet sent; a connection with more is
    closed.

    Data. data_requests: most requests of one data connection in flight. data_bytes: most bytes of one answer, unless one sample
    is larger; also of a connection's answers in memory before reading for it stops. data_chunk: bytes of a frame of samples;
    small chunks save memory and let other answers through. data_write: bytes of frames to send at once; large writes need fewer
    system calls. data_requests_per_second, data_burst: token bucket of each data connection; far more than for commands,
    because a member's own connection limits what it receives. data_alive_seconds: a client that waits for samples gets a
    keepalive at least this often. data_idle_seconds: an unused data connection is closed, so that dead ones do not hold a
    place; the client opens another when needed.
    """

    silent_seconds: float = 2.0
    max_silent: int = 512
    handshake_seconds: float = 10.0
    max_unauthenticated: int = 256
    max_unauthenticated_per_address: int = 64
    puzzle_bits: int = 16
    puzzle_most_bits: int = 20
    max_connections: int = 512
    max_connections_per_key: int = 2
    logins_per_second: float = 0.5
    login_burst: float = 20.0
    reconnect_seconds: float = 10.0
    reopening_seconds: float = 20.0
    probe_seconds: float = 3.0
    ping_seconds: float = 10.0
    silence_seconds: float = 30.0
    send_seconds: float = 30.0
    finish_seconds: float = 5.0
    requests_per_second: float = 50.0
    burst: float = 200.0
    bytes_per_second: float = 256.0 * 1024
    burst_bytes: float = 1024.0 * 1024
    max_outbox: int = 256
    data_requests: int = 16
    data_bytes: int = 16 * 1024 * 1024
    data_chunk: int = 112 * 1024
    data_write: int = 256 * 1024
    data_requests_per_second: float = 1000.0
    data_burst: float = 2000.0
    data_alive_seconds: float = 3.0
    data_idle_seconds: float = 60.0
