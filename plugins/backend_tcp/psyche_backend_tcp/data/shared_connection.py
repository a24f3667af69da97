"""One connection to the data server, shared by all reads of a provider.

There is no reader task: any read that waits for samples receives the next frame, for whichever read that frame is. So a
connection on which no read waits is not read. Each read requests its next pieces before the first has arrived, within a window
that all reads share. A read that ends early cancels its requests. After any error the connection is not used again: `lost` holds
the error, and every read on the connection raises it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

import anyio

from psyche_backend_tcp.connections.listener import CONNECTION_LOST
from psyche_backend_tcp.data.client_state import Arrival, DataClientState
from psyche_backend_tcp.data.protocol import RequestRefused
from psyche_core.errors import WireError
from psyche_core.types import BatchId
from psyche_core.wire.frames import FramedStream

SILENCE_SECONDS = 10.0
"""A server that still has samples to send sends something every few seconds; after this long without data it counts as lost."""

SEND_SECONDS = 5.0
"""Timeout for sending a request; a cancelled read waits for it, because half a request would make the connection unusable."""

_SECOND_LOOK_SECONDS = 0.5  # if this process itself was blocked, data has already arrived


class ReadRequest:
    """The pieces that one read wants, and those that have arrived, by their index."""

    def __init__(self, pieces: Iterable[tuple[BatchId, ...]]) -> None:
        self._fresh = enumerate(pieces)
        self._again: list[tuple[int, tuple[BatchId, ...]]] = []
        self.arrived: dict[int, Arrival] = {}

    def next(self) -> tuple[int, tuple[BatchId, ...]] | None:
        """Return index and batches of a piece to request; None when all have been requested."""
        return self._again.pop() if self._again else next(self._fresh, None)

    def put_back(self, place: int, piece: tuple[BatchId, ...]) -> None:
        """Return a piece that did not arrive, so that it is requested again."""
        self._again.append((place, piece))


class SharedConnection:
    """A logged-in connection. window: most requests in flight, of all reads together."""

    def __init__(self, frames: FramedStream, *, sequence_length: int, window: int) -> None:
        self._frames = frames
        self._dialogue = DataClientState(sequence_length=sequence_length)
        self._window = window
        self._reads = 0
        self._sending = anyio.Lock(fast_acquire=True)
        self._turn = anyio.Lock(fast_acquire=True)
        self._bytes_seen = frames.bytes_received
        self._received_at = 0.0
        self.lost: Exception | None = None

    async def fetch(self, request: ReadRequest) -> None:
        """Fetch all pieces of a request. If it fails, arrived pieces stay, and the rest may be fetched on another connection.

        Raises RequestRefused when the server refuses a piece or says bye, WireError, and the errors of a lost connection.
        """
        asked: dict[int, Arrival] = {}
        self._reads += 1
        try:
            while True:
                await self._ask(request, asked)
                if not asked:
                    return

                async with self._turn:
                    if not any(arrival.over for arrival in asked.values()):
                        await self._read_answers()

                for place in [place for place, arrival in asked.items() if arrival.over]:
                    if (refusal := asked[place].refusal) is not None:
                        raise refusal
                    request.arrived[place] = asked.pop(place)
        finally:
            self._reads -= 1
            for place, arrival in asked.items():
                request.put_back(place, arrival.request.batches)
            await self._give_up(asked.values())

    async def aclose(self) -> None:
        """Close the connection; idempotent."""
        self.lost = self.lost or anyio.ClosedResourceError()
        with anyio.CancelScope(shield=True):
            await self._frames.aclose()

    async def _ask(self, request: ReadRequest, asked: dict[int, Arrival]) -> None:
        """Request as many pieces as the window allows; at least one is always in flight while any are left."""
        if len(asked) >= self._own_window:
            return

        async with self._sending:
            if not self._dialogue.outstanding:
                self._received_at = anyio.current_time()
            frames = []
            while len(asked) < self._own_window and (piece := request.next()) is not None:
                asked[piece[0]], frame = self._dialogue.ask(piece[1])
                frames.append(frame)
            if frames:
                await self._send(frames)

    @property
    def _own_window(self) -> int:
        return max(1, self._window // self._reads)

    async def _give_up(self, arrivals: Iterable[Arrival]) -> None:
        """Tell the server to cancel requests that are no longer wanted."""
        frames = [frame for arrival in arrivals for frame in self._dialogue.give_up(arrival)]
        if not frames or self.lost is not None:
            return

        if not self._any_news() and anyio.current_time() - self._received_at > SILENCE_SECONDS / 2:
            self.lost = ConnectionError("the data server sent nothing")  # otherwise reads with short timeouts would never notice
            return

        with anyio.CancelScope(shield=True), contextlib.suppress(*CONNECTION_LOST):
            async with self._sending:
                await self._send(frames)

    async def _send(self, frames: Sequence[bytes]) -> None:
        """Send whole frames, even if our caller is cancelled meanwhile. Raises the errors of a lost connection."""
        self._check()
        with anyio.move_on_after(SEND_SECONDS, shield=True):
            try:
                await self._frames.send(*frames)
            except CONNECTION_LOST as error:
                self.lost = error
                raise
            return

        self.lost = ConnectionError(f"the data server read no request for {SEND_SECONDS:g} s")
        raise self.lost

    async def _read_answers(self) -> None:
        self._check()
        try:
            self._dialogue.receive(await self._receive())
        except (*CONNECTION_LOST, WireError, RequestRefused) as error:
            self.lost = error
            raise

    async def _receive(self) -> bytes:
        """Return the next frame. A connection that was cut may stay half open, so long silence counts as a lost connection."""
        again = False
        while True:
            left = self._received_at + SILENCE_SECONDS - anyio.current_time()
            with anyio.move_on_after(_SECOND_LOOK_SECONDS if again else max(left, _SECOND_LOOK_SECONDS)):
                payload = await self._frames.receive()
                self._any_news()
                return payload

            news = self._any_news()
            if again and not news:
                message = f"the data server sent nothing for {SILENCE_SECONDS:g} s"
                raise ConnectionError(message)
            again = not news

    def _any_news(self) -> bool:
        """Return whether bytes came since the last call: on a slow connection one frame may take longer than SILENCE_SECONDS."""
        if self._frames.bytes_received == self._bytes_seen:
            return False

        self._bytes_seen = self._frames.bytes_received
        self._received_at = anyio.current_time()
        return True

    def _check(self) -> None:
        if self.lost is not None:
            raise self.lost
