"""One connection to the data server, shared by all reads of a provider.

Decided: nobody is employed to listen. Whoever waits for samples takes a turn at hearing one frame, for whomever it is; so a
connection needs no task of its own, and one that nobody waits on is simply not read. Each read asks for its next pieces before
the first has come, as far as the window allows, which reads share. A read that ends early cancels what it asked for.
Refuses to go on after anything is amiss: `lost` says what it was, and every read on the connection hears of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

import anyio

from psyche_backend_tcp.data_client_state import Arrival, DataClientState
from psyche_backend_tcp.data_protocol import RequestRefused
from psyche_backend_tcp.listener import CONNECTION_LOST
from psyche_core.errors import WireError
from psyche_core.types import BatchId
from psyche_core.wire.frames import FramedStream

SILENCE_SECONDS = 10.0
"""A server that owes us samples gives a sign of life every few seconds; one silent for so long is gone."""

SEND_SECONDS = 5.0
"""Most time for a request to leave; a cancelled read waits for it, since half a request would cost the connection."""

_SECOND_LOOK_SECONDS = 0.5  # when we were kept from listening ourselves, what came meanwhile lies ready


class Errand:
    """What one read wants, in pieces, and what has arrived of it, by the places of the pieces."""

    def __init__(self, pieces: Iterable[tuple[BatchId, ...]]) -> None:
        self._fresh = enumerate(pieces)
        self._again: list[tuple[int, tuple[BatchId, ...]]] = []
        self.arrived: dict[int, Arrival] = {}

    def next(self) -> tuple[int, tuple[BatchId, ...]] | None:
        """Place and batches of a piece to ask for; None when all have been given out."""
        return self._again.pop() if self._again else next(self._fresh, None)

    def put_back(self, place: int, piece: tuple[BatchId, ...]) -> None:
        """The piece did not come."""
        self._again.append((place, piece))


class SharedLink:
    """A logged-in connection. window: most requests under way, of all reads together."""

    def __init__(self, frames: FramedStream, *, sequence_length: int, window: int) -> None:
        self._frames = frames
        self._dialogue = DataClientState(sequence_length=sequence_length)
        self._window = window
        self._reads = 0
        self._sending = anyio.Lock(fast_acquire=True)
        self._turn = anyio.Lock(fast_acquire=True)
        self._bytes_heard = frames.bytes_received
        self._heard_at = 0.0
        self.lost: Exception | None = None

    async def fetch(self, errand: Errand) -> None:
        """Run an errand to its end. When it fails, what has arrived stays, and the rest may be fetched on another connection.

        Raises RequestRefused when the server refuses a piece or says bye, WireError and what a lost connection raises.
        """
        asked: dict[int, Arrival] = {}
        self._reads += 1
        try:
            while True:
                await self._ask(errand, asked)
                if not asked:
                    return

                async with self._turn:
                    if not any(arrival.over for arrival in asked.values()):
                        await self._hear()

                for place in [place for place, arrival in asked.items() if arrival.over]:
                    if (refusal := asked[place].refusal) is not None:
                        raise refusal
                    errand.arrived[place] = asked.pop(place)
        finally:
            self._reads -= 1
            for place, arrival in asked.items():
                errand.put_back(place, arrival.request.batches)
            await self._give_up(asked.values())

    async def aclose(self) -> None:
        """Close the connection; idempotent."""
        self.lost = self.lost or anyio.ClosedResourceError()
        with anyio.CancelScope(shield=True):
            await self._frames.aclose()

    async def _ask(self, errand: Errand, asked: dict[int, Arrival]) -> None:
        """Ask for as many pieces as the window lets us; at least one is always under way while there are any."""
        if len(asked) >= self._own_window:
            return

        async with self._sending:
            if not self._dialogue.outstanding:
                self._heard_at = anyio.current_time()
            frames = []
            while len(asked) < self._own_window and (piece := errand.next()) is not None:
                asked[piece[0]], frame = self._dialogue.ask(piece[1])
                frames.append(frame)
            if frames:
                await self._send(frames)

    @property
    def _own_window(self) -> int:
        return max(1, self._window // self._reads)

    async def _give_up(self, arrivals: Iterable[Arrival]) -> None:
        """Have the server forget what is not wanted any more."""
        frames = [frame for arrival in arrivals for frame in self._dialogue.give_up(arrival)]
        if not frames or self.lost is not None:
            return

        if not self._any_news() and anyio.current_time() - self._heard_at > SILENCE_SECONDS / 2:
            self.lost = ConnectionError("the data server said nothing")  # or impatient readers would never find out
            return

        with anyio.CancelScope(shield=True), contextlib.suppress(*CONNECTION_LOST):
            async with self._sending:
                await self._send(frames)

    async def _send(self, frames: Sequence[bytes]) -> None:
        """Send whole frames, also when our caller is cancelled meanwhile. Raises what a lost connection raises."""
        self._check()
        with anyio.move_on_after(SEND_SECONDS, shield=True):
            try:
                await self._frames.send(*frames)
            except CONNECTION_LOST as error:
                self.lost = error
                raise
            return

        self.lost = ConnectionError(f"the data server took in no request for {SEND_SECONDS:g} s")
        raise self.lost

    async def _hear(self) -> None:
        self._check()
        try:
            self._dialogue.hear(await self._receive())
        except (*CONNECTION_LOST, WireError, RequestRefused) as error:
            self.lost = error
            raise

    async def _receive(self) -> bytes:
        """The next frame. A link that was cut for a while may stay half open: silence is a lost connection, not patience."""
        again = False
        while True:
            left = self._heard_at + SILENCE_SECONDS - anyio.current_time()
            with anyio.move_on_after(_SECOND_LOOK_SECONDS if again else max(left, _SECOND_LOOK_SECONDS)):
                payload = await self._frames.receive()
                self._any_news()
                return payload

            news = self._any_news()
            if again and not news:
                message = f"the data server said nothing for {SILENCE_SECONDS:g} s"
                raise ConnectionError(message)
            again = not news

    def _any_news(self) -> bool:
        """Whether bytes came since the last look: on a slow line a frame may take longer than any silence."""
        if self._frames.bytes_received == self._bytes_heard:
            return False

        self._bytes_heard = self._frames.bytes_received
        self._heard_at = anyio.current_time()
        return True

    def _check(self) -> None:
        if self.lost is not None:
            raise self.lost
