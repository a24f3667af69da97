"""One connection, from its first byte to its last: HTTP request, challenge, admission, frames, end. No I/O.

The server passes bytes in and takes bytes out; a `Client` never calls the server. Frames for others go to the router. States:

    REQUEST -> CHALLENGED -> WAITING -> CONNECTED -> CLOSING
       |           |___________|___________|            ^
       |________________________________________________|

A client that the policy admits passes WAITING at once.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Protocol

from psyche_core.errors import WireError
from psyche_core.rate_limit import TokenBucket
from psyche_p2p_quic.relay.access import Access, Verdict
from psyche_p2p_quic.relay.limits import RelayLimits
from psyche_p2p_quic.relay.metrics import Counters
from psyche_p2p_quic.relay.protocol import frames
from psyche_p2p_quic.relay.protocol.handshake import WELCOME, Challenge, denial
from psyche_p2p_quic.relay.protocol.http import Answered, Pages, RequestReader
from psyche_p2p_quic.relay.protocol.websocket import (
    CloseCode,
    Closed,
    FrameReader,
    WebSocketError,
    binary_header,
    close_answer,
    close_frame,
)


class Relay(Protocol):
    """The relay's interface for a connection; implemented by `router.Router`."""

    access: Access
    limits: RelayLimits
    pages: Pages
    counters: Counters
    total_bucket: TokenBucket
    queued_bytes: int

    def nonce(self) -> bytes:
        """Return 16 random bytes."""

    def jitter(self) -> float:
        """Return seconds to add to the time between pings."""

    def has_room(self) -> bool:
        """Return whether another client may begin its handshake."""

    def connect(self, client: Client, now: float) -> None:
        """Note that a client was admitted."""

    def disconnect(self, client: Client) -> None:
        """Note that a client's connection ends. Idempotent."""

    def receive(self, client: Client, frame: bytes) -> None:
        """Handle a frame from a connected client. Raises WireError."""

    def mark(self, client: Client) -> None:
        """Note that something was queued for the client."""


class Phase(enum.Enum):
    """The state of a connection."""

    REQUEST = "request"
    CHALLENGED = "challenged"
    WAITING = "waiting"
    CONNECTED = "connected"
    CLOSING = "closing"


_CONTROL_FRAMES = 64
"""How many more of our own frames may wait than forwarded ones."""

_MOST_EARLY_BYTES = 4096
"""Most bytes from a client that is not admitted; it has one frame of 98 bytes to send."""

_BEFORE_CONNECTED = frozenset({Phase.REQUEST, Phase.CHALLENGED, Phase.WAITING})


class Client:
    """One connection and what waits to be sent to it.

    host: its IP address. key: its id once proved. token: the one that it sent. out_bytes: bytes that wait for `take`.
    paused_until: nothing may be read from it before this time. blocked_since: since when the socket accepts no bytes, None while
    it does; set by the server. ending: why it is closed, "" while it is not.
    """

    __slots__ = (
        "_bucket",
        "_challenge",
        "_deadline",
        "_early_bytes",
        "_limited",
        "_limits",
        "_out",
        "_pinged_at",
        "_reader",
        "_relay",
        "blocked_since",
        "dirty",
        "ending",
        "heard_at",
        "host",
        "key",
        "out_bytes",
        "paused_until",
        "phase",
        "sent_to",
        "shell",
        "token",
        "version",
    )

    def __init__(self, relay: Relay, host: str, now: float) -> None:
        self._relay = relay
        self._limits = relay.limits
        self._reader: RequestReader | FrameReader = RequestReader(relay.pages, host)
        self._challenge: Challenge | None = None
        self._out: deque[tuple[bytes, bytes | memoryview]] = deque()
        self._deadline = now + self._limits.handshake_seconds
        self._early_bytes = 0
        self._pinged_at: float | None = None
        self._bucket: TokenBucket | None = None
        self._limited = False
        self.host: str = host
        self.key: bytes = b""
        self.version: str = frames.V1
        self.token: str | None = None
        self.phase: Phase = Phase.REQUEST
        self.heard_at: float = now
        self.out_bytes: int = 0
        self.paused_until: float = 0.0
        self.blocked_since: float | None = None
        self.dirty: bool = False
        self.ending: str = ""
        self.sent_to: set[bytes] = set()
        self.shell: object = None

    # ------------------------------------------------------------------------------------------------------- what arrives

    def receive(self, data: memoryview, now: float) -> None:
        """Take in bytes from the socket."""
        if self.phase is Phase.CLOSING:
            return

        try:
            if isinstance(self._reader, RequestReader):
                self._receive_request(bytes(data), now)
            else:
                self._receive_frames(self._reader, data, now)
        except Closed as closed:
            self._end("it closed the connection", close_answer(closed.payload), now)
        except WebSocketError as error:
            self._fail(error, error.code, now)
        except WireError as error:
            self._fail(error, CloseCode.PROTOCOL_ERROR, now)

    def _receive_request(self, data: bytes, now: float) -> None:
        assert isinstance(self._reader, RequestReader)
        answer = self._reader.feed(data)
        if answer is None:
            return

        if isinstance(answer, Answered):
            if answer.problem:
                self._relay.counters.requests_refused += 1
            self._end(answer.problem or "answered", answer.data, now)
            return

        if not self._relay.has_room():
            self._relay.counters.connections_refused += 1
            self._end("too many clients", answer.data + close_frame(CloseCode.POLICY, "too many clients"), now)
            return

        self.version, self.token = answer.version, answer.token
        self._reader = FrameReader(max_message=self._limits.message_bytes)
        self._challenge = Challenge(self._relay.nonce())
        self.phase = Phase.CHALLENGED
        self._put(answer.data)
        self.queue_control(self._challenge.encode())
        if answer.rest:
            self._receive_frames(self._reader, memoryview(answer.rest), now)

    def _receive_frames(self, reader: FrameReader, data: memoryview, now: float) -> None:
        messages = reader.feed(data)
        for pong in reader.pongs:
            if self._has_control_room():
                self._put(pong)
        reader.pongs.clear()
        if self.phase is not Phase.CONNECTED:
            self._early_bytes += len(data)
            messages = self._receive_answer(messages, now)

        relay = self._relay
        if self.phase is Phase.CONNECTED:
            self.heard_at, self._pinged_at = now, None
            for frame in messages:
                relay.receive(self, frame)
            self._heed_rates(len(data), now)
        elif self._early_bytes > _MOST_EARLY_BYTES:
            message = f"got {self._early_bytes} bytes before the client was admitted"
            raise WireError(message)

    def _receive_answer(self, messages: list[bytes], now: float) -> list[bytes]:
        """Check the answer to the challenge; return the frames that came after it."""
        if not messages or self.phase is Phase.CLOSING:
            return []

        if self._challenge is None:
            message = "got a frame before the client was admitted"
            raise WireError(message)

        try:
            self.key = self._challenge.proven_id(messages[0])
        except WireError as error:
            self._relay.counters.logins_failed += 1
            self.queue_control(denial(str(error)))
            self._end(str(error), close_frame(CloseCode.POLICY), now)
            return []

        self._challenge = None
        self.phase = Phase.WAITING
        self._deadline = now + self._limits.admission_seconds
        self.ask_admission(now)
        if len(messages) > 1 and self.phase is Phase.WAITING:
            message = "got a frame before the client was admitted"
            raise WireError(message)
        return messages[1:]

    def ask_admission(self, now: float) -> None:
        """Ask the policy about a client that has proved its id. Called again when the policy has changed."""
        match self._relay.access.judge(self.key, self.token):
            case Verdict.ALLOW if self.phase is Phase.WAITING and not self._relay.has_room():
                self._deny("too many clients", now)
            case Verdict.ALLOW if self.phase is Phase.WAITING:
                self.phase = Phase.CONNECTED
                self.heard_at = now
                self._bucket = self._limits.rate_of(self._limits.client_rate)
                self.queue_control(WELCOME)
                self._relay.connect(self, now)
            case Verdict.DENY if self.phase is Phase.WAITING:
                self._deny(self._relay.access.refusal, now)
            case Verdict.DENY | Verdict.WAIT if self.phase is Phase.CONNECTED:
                self._relay.counters.revoked += 1
                self.close(CloseCode.POLICY, self._relay.access.refusal, now)

    def _deny(self, reason: str, now: float) -> None:
        self._relay.counters.logins_denied += 1
        self.queue_control(denial(reason))
        self._end(reason, close_frame(CloseCode.POLICY), now)

    def _heed_rates(self, count: int, now: float) -> None:
        """Set how long nothing more may be read."""
        assert self._bucket is not None
        pause = max(self._bucket.take(now, count), self._relay.total_bucket.take(now, count))
        if pause <= 0:
            return

        self._relay.counters.rate_limited += 1
        self.paused_until = now + pause
        if not self._limited:
            self._limited = True  # only once, because otherwise the client would get the message again and again
            self.queue_control(frames.health(frames.Health.RATE_LIMITED, self.version))

    # ------------------------------------------------------------------------------------------------------- what is sent

    def queue_control(self, frame: bytes) -> None:
        """Queue one of our own frames. It is dropped only if the client reads nothing and causes more and more of them."""
        if self._has_control_room():
            self._put(binary_header(len(frame)) + frame)

    def _has_control_room(self) -> bool:
        return len(self._out) < self._limits.queue_packets + _CONTROL_FRAMES

    def queue_packet(self, head: bytes, body: memoryview) -> bool:
        """Queue a forwarded frame, in two parts; return False if there is no room."""
        size = len(head) + len(body)
        if len(self._out) >= self._limits.queue_packets or self.out_bytes + size > self._limits.queue_bytes:
            return False

        header = binary_header(size)
        self._out.append((header + head, body))
        self.out_bytes += len(header) + size
        self._relay.queued_bytes += len(header) + size
        return True

    def _put(self, data: bytes) -> None:
        self._out.append((data, b""))
        self.out_bytes += len(data)
        self._relay.queued_bytes += len(data)
        self._relay.mark(self)

    def take(self, most: int) -> bytes:
        """Return bytes for the socket: whole frames, at least one, together at most `most` unless one frame is longer."""
        parts: list[bytes | memoryview] = []
        size = 0
        out = self._out
        while out:
            head, body = out[0]
            length = len(head) + len(body)
            if size and size + length > most:
                break
            out.popleft()
            parts.append(head)
            parts.append(body)
            size += length
        self.out_bytes -= size
        self._relay.queued_bytes -= size
        return b"".join(parts)

    # ---------------------------------------------------------------------------------------------------------- its end

    def close(self, code: CloseCode, reason: str, now: float) -> None:
        """Close the connection for a reason that is sent to the client. What is queued for it is dropped."""
        if self.phase is not Phase.CLOSING:
            self._drop_queue()
            self._end(reason, close_frame(code, reason), now)

    def finish(self, code: CloseCode, reason: str, now: float) -> None:
        """Close the connection after what is queued was sent."""
        if self.phase is not Phase.CLOSING:
            self._end(reason, close_frame(code, reason), now)

    def _fail(self, error: WireError, code: CloseCode, now: float) -> None:
        self._relay.counters.protocol_errors += 1
        self._end(str(error), close_frame(code, str(error)), now)

    def _end(self, why: str, last_bytes: bytes, now: float) -> None:
        self._relay.disconnect(self)
        self.phase = Phase.CLOSING
        self.ending = why
        self._deadline = now + self._limits.linger_seconds
        self._put(last_bytes)

    def _drop_queue(self) -> None:
        self._relay.queued_bytes -= self.out_bytes
        self._out.clear()
        self.out_bytes = 0

    def lost(self) -> None:
        """Note that the socket was closed."""
        self._relay.disconnect(self)
        self.phase = Phase.CLOSING
        self.ending = self.ending or "the connection was lost"
        self._drop_queue()

    # ------------------------------------------------------------------------------------------------------------- time

    def tick(self, now: float) -> bool:
        """Do what is due; return True if the socket must be closed now, whatever is still queued."""
        if self.phase is Phase.CLOSING:
            return now >= self._deadline

        if self.phase in _BEFORE_CONNECTED:
            if now >= self._deadline:
                if self.phase is Phase.WAITING:
                    self._deny(self._relay.access.refusal, now)
                else:
                    self._relay.counters.handshake_timeouts += 1
                    self._end("its handshake took too long", b"", now)
            return False

        limits = self._limits
        if self.blocked_since is not None and now - self.blocked_since >= limits.write_seconds:
            self._relay.counters.write_timeouts += 1
            self.ending = "it takes nothing of what is sent to it"
            return True

        if now < self.paused_until:
            self.heard_at = now  # what it sends is not being read
        elif self._pinged_at is not None:
            if now - self._pinged_at >= limits.pong_seconds:
                self._relay.counters.ping_timeouts += 1
                self.close(CloseCode.GOING_AWAY, "no answer to a ping", now)
        elif now - self.heard_at >= limits.ping_seconds + self._relay.jitter():
            self._pinged_at = now
            self.queue_control(frames.ping(self._relay.nonce()[: frames.PING_BYTES]))
        return False
