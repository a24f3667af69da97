"""Knows the connected clients and forwards frames. No I/O: the server empties `dirty` after every call to a client or router."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable

from psyche_core.rate_limit import TokenBucket
from psyche_p2p_quic.relay.access import Access, Verdict
from psyche_p2p_quic.relay.connection import Client, Phase
from psyche_p2p_quic.relay.limits import RelayLimits
from psyche_p2p_quic.relay.metrics import Counters
from psyche_p2p_quic.relay.protocol import frames
from psyche_p2p_quic.relay.protocol.handshake import NONCE_BYTES
from psyche_p2p_quic.relay.protocol.http import Pages
from psyche_p2p_quic.relay.protocol.websocket import CloseCode


class Router:
    """All clients of a relay.

    access: the policy. pages: what HTTP requests can ask for. nonce: makes 16 random bytes. jitter: returns a random fraction of
    a second at every call. dirty: clients for which something was queued since the server last looked.
    """

    def __init__(
        self,
        access: Access,
        *,
        limits: RelayLimits,
        pages: Pages | None = None,
        nonce: Callable[[], bytes] = lambda: secrets.token_bytes(NONCE_BYTES),
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.access = access
        self.limits = limits
        self.pages: Pages = pages or {}
        self._nonce = nonce
        self._jitter = jitter
        self.counters: Counters = Counters()
        self.total_bucket: TokenBucket = limits.rate_of(limits.total_rate)
        self.queued_bytes = 0
        self.dirty: list[Client] = []
        self._clients: dict[bytes, list[Client]] = {}  # by id; the last connection of an id gets its traffic
        self._count = 0

    @property
    def client_count(self) -> int:
        """Number of connections that have proved their id and were admitted."""
        return self._count

    @property
    def id_count(self) -> int:
        """Number of different ids among them."""
        return len(self._clients)

    def is_connected(self, key: bytes) -> bool:
        """Return whether that id is connected."""
        return key in self._clients

    def has_room(self) -> bool:
        """Return whether another client may begin its handshake."""
        return self._count < self.limits.clients

    def nonce(self) -> bytes:
        """Return 16 random bytes."""
        return self._nonce()

    def jitter(self) -> float:
        """Return seconds to add to the time between pings, so that clients that came together are not pinged together."""
        return self._jitter() * self.limits.ping_jitter_seconds

    def mark(self, client: Client) -> None:
        """Note that something was queued for the client."""
        if not client.dirty:
            client.dirty = True
            self.dirty.append(client)

    # ------------------------------------------------------------------------------------------------ who is connected

    def connect(self, client: Client, now: float) -> None:
        """Note that a client was admitted.

        The newest connection of an id gets its traffic; the previous connection gets a message about this.
        """
        self.counters.logins += 1
        same = self._clients.setdefault(client.key, [])
        if same:
            same[-1].queue_control(frames.health(frames.Health.SAME_ID, same[-1].version))
        same.append(client)
        self._count += 1
        if len(same) > self.limits.connections_per_id:
            self.counters.replaced += 1
            same[0].close(CloseCode.POLICY, "the same id connected too often", now)

    def disconnect(self, client: Client) -> None:
        """Note that a client's connection ends; idempotent.

        An older connection of the id gets its traffic again. If there is none, its peers are informed.
        """
        if client.phase is not Phase.CONNECTED:
            return

        same = self._clients[client.key]
        was_newest = same[-1] is client
        same.remove(client)
        self._count -= 1
        if same:
            if was_newest:
                same[-1].queue_control(frames.health(frames.Health.OK, same[-1].version))
            return

        del self._clients[client.key]
        gone = frames.peer_gone(client.key)
        for peer in client.sent_to:
            there = self._clients.get(peer)
            if there is not None:
                there[-1].queue_packet(gone, memoryview(b""))
                self.mark(there[-1])

    def reconsider(self, clients: list[Client], now: float) -> None:
        """Ask the policy again about these clients, because it has changed."""
        for client in clients:
            if client.phase in {Phase.WAITING, Phase.CONNECTED}:
                client.ask_admission(now)

    def may_observe(self, key: bytes) -> bool:
        """Return whether that id may use the observer: it is connected, or the policy would admit it without a token."""
        return self.is_connected(key) or self.access.judge(key, None) is Verdict.ALLOW

    # ---------------------------------------------------------------------------------------------------- where frames go

    def receive(self, client: Client, frame: bytes) -> None:
        """Handle a frame from a connected client. Raises WireError."""
        kind = frames.check_client_frame(frame)
        counters = self.counters
        counters.frames_received += 1
        counters.bytes_received += len(frame)
        if kind == frames.PING:
            client.queue_control(frames.pong(frame))
            return
        if kind == frames.PONG:
            return

        to = frames.receiver(frame)
        there = self._clients.get(to)
        if there is None:
            counters.frames_without_receiver += 1
            return

        newest = there[-1]
        if self.queued_bytes + len(frame) > self.limits.total_queue_bytes or not newest.queue_packet(
            *frames.forwarded(frame, client.key)
        ):
            counters.frames_dropped += 1
            return

        counters.frames_forwarded += 1
        counters.bytes_forwarded += len(frame)
        if not newest.dirty:
            newest.dirty = True
            self.dirty.append(newest)
        if len(client.sent_to) < self.limits.remembered_peers:
            client.sent_to.add(to)
