"""The hub's data about one connection: what was received on it, and the frames to send.

Pure. States are not queued: `next_frames` computes the changes when they can be sent. An answer is held back until the change
that it reports is on disk.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field

from psyche_backend_tcp.limits import SERVER_FRAME
from psyche_backend_tcp.protocol import Bye, Heartbeat, encode_server
from psyche_backend_tcp.server.documents import Document, Documents
from psyche_core.rate_limit import TokenBucket
from psyche_core.types import NodeIdentity

logger: logging.Logger = logging.getLogger("psyche.backend.tcp")


@dataclass(slots=True)
class OpenConnection:
    """A logged-in connection.

    Attributes:
        sizes: limits the bytes that it may send us.
        received_at, pinged_at: monotonic seconds of the last frame, and of our last ping.
        given_up: it did not answer a ping; the next login of its key takes its place, unless something comes from it.
        known: the document that the client has.
        closing: a bye was queued, and nothing is sent after it.
    """

    identity: NodeIdentity
    sizes: TokenBucket
    received_at: float
    pinged_at: float
    pings: int = 0
    pongs: int = 0
    given_up: bool = False
    known: Document | None = None
    closing: bool = False
    _outbox: list[bytes] = field(default_factory=list)
    _held: deque[tuple[int, bytes]] = field(default_factory=deque)

    @property
    def queued(self) -> int:
        """Number of frames that wait to be sent, apart from states."""
        return len(self._outbox) + len(self._held)

    @property
    def holds_answers(self) -> bool:
        """Whether answers wait for a change to be saved."""
        return bool(self._held)

    def ping(self, now: float) -> None:
        """Queue a ping. now: monotonic seconds."""
        self.pinged_at = now
        self.pings += 1
        if not self.closing:
            self._outbox.append(encode_server(Heartbeat()))

    def hold(self, version: int, payload: bytes) -> None:
        """Queue an answer, to be sent once this version is saved."""
        self._held.append((version, payload))

    def say_bye(self, bye: Bye) -> None:
        """Queue a bye, and close afterwards."""
        if not self.closing:
            self._outbox.append(encode_server(bye))
        self.closing = True

    def forget_queued(self) -> None:
        """Drop all frames that wait to be sent."""
        self._outbox.clear()
        self._held.clear()

    def next_frames(self, documents: Documents, *, saved: int) -> list[bytes]:
        """Remove and return the frames to send now, in order. saved: newest version on disk."""
        frames, self._outbox = self._outbox, []
        if self.closing:
            return frames

        while self._held and self._held[0][0] <= saved:
            frames.append(self._held.popleft()[1])
        newest = documents.newest
        if not self.has(newest):
            frame = documents.frame(self.known)
            self.known = newest
            if len(frame) > SERVER_FRAME:
                logger.error("the state encodes to %d bytes, over the limit of %d", len(frame), SERVER_FRAME)
                self.say_bye(Bye("StateTooLarge", f"the run's state is over {SERVER_FRAME} bytes"))
                frames, self._outbox = self._outbox, []
                return frames

            frames.append(frame)
        return frames

    def has(self, document: Document) -> bool:
        """Whether the client has this document."""
        return self.known is not None and self.known.digest == document.digest
