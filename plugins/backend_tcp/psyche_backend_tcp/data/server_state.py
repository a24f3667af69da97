"""The server's state of one data connection: waiting requests, the request being read, and answers to be sent. Pure.

Requests are read in the order they came, and only while the answers in memory are below a limit. Answers that are ready are
sent in turns, one chunk each, so that a small one need not wait for a large one. A cancelled request is dropped at once, at any
stage. Request numbers must increase.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from psyche_backend_tcp.data import protocol
from psyche_core.errors import WireError


@dataclass(slots=True)
class _Outgoing:
    head: protocol.SamplesHead
    body: memoryview
    sent: int = 0


class DataServerState:
    """Requests of one peer and their answers.

    requests: most in flight. buffer: bytes of answers in memory at which reading pauses. chunk: bytes of a frame of samples.
    write: bytes of frames to send at once.
    """

    def __init__(self, *, requests: int, buffer: int, chunk: int, write: int) -> None:
        self._requests = requests
        self._buffer = buffer
        self._chunk = chunk
        self._write = write
        self._last = -1
        self._waiting: dict[int, protocol.SamplesRequest] = {}
        self._reading: int | None = None
        self._outgoing: deque[_Outgoing] = deque()
        self._short: deque[bytes] = deque()
        self._bye: bytes | None = None
        self.held: int = 0
        self.parted: bool = False

    @property
    def under_way(self) -> int:
        """Number of requests not yet answered completely."""
        return len(self._waiting) + (self._reading is not None) + len(self._outgoing) + len(self._short)

    @property
    def full(self) -> bool:
        """Whether the peer has so many requests that nothing should be received from it now."""
        return self.under_way >= self._requests

    def ask(self, request: protocol.SamplesRequest) -> None:
        """Add a request. Raises WireError when its number does not increase."""
        if request.number <= self._last:
            message = f"request {request.number} came after request {self._last}; numbers grow"
            raise WireError(message)

        self._last = request.number
        self._waiting[request.number] = request

    def cancel(self, number: int) -> bool:
        """Drop a request. Return True when it is being read: stop that read and then call `give_up`."""
        self._waiting.pop(number, None)
        for one in self._outgoing:
            if one.head.number == number:
                self._outgoing.remove(one)
                self.held -= len(one.body)
                break
        return self._reading == number

    def next_to_read(self) -> protocol.SamplesRequest | None:
        """Return the request to read now, or None. Call `answer`, `refuse` or `give_up` afterwards."""
        if not self._waiting or self._reading is not None or self.held >= self._buffer:
            return None

        request = self._waiting.pop(next(iter(self._waiting)))
        self._reading = request.number
        return request

    def answer(self, head: protocol.SamplesHead, body: bytes) -> None:
        """Queue the answer of the request that was read."""
        self._reading = None
        self._outgoing.append(_Outgoing(head, memoryview(body)))
        self.held += len(body)

    def refuse(self, number: int, code: str, sentence: str) -> None:
        """Queue a refusal of a request that cannot be read or is not allowed."""
        self._reading = None
        self._short.append(protocol.encode_data(protocol.SamplesRefusal(number, code, sentence)))

    def give_up(self) -> None:
        """Note that the request being read was cancelled."""
        self._reading = None

    def part(self, code: str, sentence: str) -> None:
        """Send a bye before everything else, and then nothing more."""
        self._bye = protocol.encode_data(protocol.DataBye(code, sentence))

    def outgoing(self) -> list[bytes]:
        """Return the next frames to send, as one write; empty when there is nothing now, or when `parted`."""
        if self._bye is not None:
            frames = [] if self.parted else [self._bye]
            self.parted = True
            return frames

        frames = list(self._short)
        self._short.clear()
        left = self._write
        while self._outgoing and left > 0:
            one = self._outgoing.popleft()
            if not one.sent:
                frames.append(protocol.encode_data(one.head))
            frames.append(
                protocol.encode_data(protocol.SamplesChunk(one.head.number, one.body[one.sent : one.sent + self._chunk]))
            )
            left -= self._chunk
            one.sent += self._chunk
            if one.sent < len(one.body):
                self._outgoing.append(one)
            else:
                self.held -= len(one.body)

        return frames

    def sign_of_life(self) -> list[bytes]:
        """Return the keepalive to send after a while without frames; empty if the peer does not wait for us."""
        return [protocol.encode_data(protocol.AtWork())] if self.under_way else []
