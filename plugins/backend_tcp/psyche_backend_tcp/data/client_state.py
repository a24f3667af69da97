"""The client's state of one data connection: open requests, and how much of each answer has arrived. Pure.

Answers are matched to requests by number, in whatever order their chunks come; what still arrives for a cancelled request is
skipped. An answer that nobody requested, or samples of another count or size than requested, raise WireError: nothing on the
connection can be trusted after that.
"""

from __future__ import annotations

from psyche_backend_tcp.data import protocol
from psyche_backend_tcp.data.body import body_bytes
from psyche_core.errors import WireError
from psyche_core.text_safety import printable
from psyche_core.types import BatchId, total_samples


class Arrival:
    """The answer to one request, as far as it has arrived. refusal: why it never will. head, chunks: valid once `complete`."""

    def __init__(self, request: protocol.SamplesRequest) -> None:
        self.request = request
        self.count: int = total_samples(request.batches)
        self.refusal: protocol.RequestRefused | None = None
        self.chunks: list[bytes | memoryview] = []
        self._head: protocol.SamplesHead | None = None
        self._missing = 0

    @property
    def complete(self) -> bool:
        """Whether all bytes have arrived."""
        return self._head is not None and not self._missing

    @property
    def over(self) -> bool:
        """Whether nothing more will arrive."""
        return self.complete or self.refusal is not None

    @property
    def head(self) -> protocol.SamplesHead:
        """The head of the answer. Only once `complete`."""
        assert self._head is not None
        return self._head

    def begin(self, head: protocol.SamplesHead, sequence_length: int) -> None:
        """Take the head. Raises WireError for a second head, or one of other samples than requested."""
        if self._head is not None:
            message = f"the answer to request {head.number} began twice"
            raise WireError(message)

        self._missing = body_bytes(head, sequence_length=sequence_length, count=self.count)
        self._head = head

    def add(self, chunk: bytes | memoryview) -> None:
        """Take a chunk. Raises WireError for more bytes than announced."""
        if len(chunk) > self._missing:
            message = f"{len(chunk)} bytes came for request {self.request.number}, expected at most {self._missing}"
            raise WireError(message)

        self.chunks.append(chunk)
        self._missing -= len(chunk)


class DataClientState:
    """Requests and answers. sequence_length: tokens per sample."""

    def __init__(self, *, sequence_length: int) -> None:
        self._sequence_length = sequence_length
        self._next = 0
        self._open: dict[int, Arrival] = {}

    @property
    def outstanding(self) -> int:
        """Number of answers still to come."""
        return len(self._open)

    def ask(self, batches: tuple[BatchId, ...]) -> tuple[Arrival, bytes]:
        """Make a request; return its answer, which fills up as frames arrive, and the frame to send."""
        request = protocol.SamplesRequest(self._next, batches)
        self._next += 1
        arrival = self._open[request.number] = Arrival(request)
        return arrival, protocol.encode_client(request)

    def give_up(self, arrival: Arrival) -> list[bytes]:
        """Cancel a request whose answer is no longer wanted; return the frames to send."""
        if self._open.pop(arrival.request.number, None) is None:
            return []

        return [protocol.encode_client(protocol.Cancel(arrival.request.number))]

    def receive(self, payload: bytes) -> None:
        """Handle a frame. Raises WireError (protocol broken) and RequestRefused (bye): the connection is then unusable."""
        message = protocol.decode_data(payload)
        if isinstance(message, protocol.AtWork):
            return

        if isinstance(message, protocol.DataBye):
            raise protocol.RequestRefused(printable(message.code), printable(message.sentence))

        arrival = self._open.get(message.number)
        if arrival is None:
            if message.number >= self._next:
                text = f"an answer came to request {message.number}, which was never sent"
                raise WireError(text)
            return  # a chunk for a cancelled request

        match message:
            case protocol.SamplesHead():
                arrival.begin(message, self._sequence_length)
            case protocol.SamplesChunk(_, chunk):
                arrival.add(chunk)
            case protocol.SamplesRefusal(_, code, sentence):
                arrival.refusal = protocol.RequestRefused(printable(code), printable(sentence))
        if arrival.over:
            del self._open[message.number]
