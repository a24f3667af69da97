"""Limits of what one client, one address and all clients together may use of a relay. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from psyche_core.rate_limit import TokenBucket
from psyche_p2p_quic.relay.protocol.frames import MAX_FRAME_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayLimits:
    """Times are seconds, sizes bytes, rates bytes per second; a rate of None means no limit.

    handshake_seconds: from the connection to a proven id, TLS and HTTP included. admission_seconds: how long a proven id that is
    not admitted may wait until it is, for instance until the run lists the new member. ping_seconds, ping_jitter_seconds: a
    silent client is pinged after the first and a random part of the second. pong_seconds: for its answer. write_seconds: for a
    client that reads nothing of what is written to it. linger_seconds: for the end of a connection that we close.

    clients: proven connections. connections: open ones in any state; what `clients` leaves of them is for connections that are
    not proven yet. connections_per_address: of one IPv4 address or IPv6 /56, see `admission`. connection_rate_per_address: new
    ones a second. connections_per_id: of one id; a further one closes the oldest.

    queue_packets, queue_bytes: waiting for one client; further packets to it are dropped. total_queue_bytes: waiting for all.
    send_buffer_bytes: in the kernel for one client, which takes twice as much memory. Most systems allow no more than 208 KiB.
    message_bytes: of one frame. client_rate, total_rate: of what clients send. burst_seconds: what a client may send at once
    after a pause, as seconds of its rate. remembered_peers: of one client, to inform them when it leaves.
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
    send_buffer_bytes: int = 192 * 1024
    message_bytes: int = MAX_FRAME_BYTES
    client_rate: float | None = None
    total_rate: float | None = None
    burst_seconds: float = 0.5
    remembered_peers: int = 1024

    @property
    def unproven(self) -> int:
        """Most connections that have not proved an id or are not admitted."""
        return max(1, self.connections - self.clients)

    def rate_of(self, rate: float | None) -> TokenBucket:
        """Return a bucket for one of the rates, with this burst."""
        return TokenBucket(rate, burst=(rate or 0.0) * self.burst_seconds)
