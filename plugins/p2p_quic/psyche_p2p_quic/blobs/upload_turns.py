"""Lets requests for results wait until it is their turn, where results reach members in several hops.

`psyche_core.p2p.uploads` says why few results are sent at once, and which is next. A turn ends when the result is sent, when the
request is withdrawn, or after some time: a peer that takes a result slowly keeps getting it, but holds up nobody else for longer.
The same peer may ask for the same again then; the end of the older answer does not end the turn of the newer one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager, suppress

import anyio

from psyche_core.errors import TransportError
from psyche_core.p2p.uploads import UploadQueue
from psyche_p2p_quic.endpoint.links import LinkLost, Stream


class UploadTurns:
    """The queue of one member. seconds: after which a turn ends for others."""

    def __init__(self, *, seconds: float) -> None:
        self._queue = UploadQueue()
        self._seconds = seconds
        self._begun: dict[tuple[bytes, bytes], anyio.Event] = {}

    @asynccontextmanager
    async def turn(self, name: bytes, peer: bytes, stream: Stream, *, size: int, beside: bool = False) -> AsyncIterator[bool]:
        """Wait for the turn of a request. False if the peer has too many requests here, or has asked for this already.

        name: hash of the result. stream: its answer. size: of the result, bytes. beside: whether the peer is no neighbour. All
        of the result is sent while this is entered, or an error is raised. Raises LinkLost if the peer withdraws the request.
        """
        if not self._queue.add(name, peer, size=size, beside=beside):
            yield False
            return

        begun = self._begun[name, peer] = anyio.Event()
        complete, timer, now = False, None, asyncio.get_running_loop().time
        try:
            self._begin()
            if not begun.is_set():
                await _event_or_end(begun, stream)
            timer = asyncio.get_running_loop().call_later(self._seconds, self._overdue, name, peer)
            yield True
            complete = True
        finally:
            if timer is not None:
                timer.cancel()
            if self._begun.get((name, peer)) is begun:  # else its turn is over, and that of another request is here
                del self._begun[name, peer]
                self._queue.end(name, peer, complete=complete, now=now())
            self._begin()

    def expire(self, kept: Container[bytes]) -> None:
        """Forget who got results that are not kept any more. kept: hashes."""
        self._queue.expire(kept)

    def _begin(self) -> None:
        while (request := self._queue.begin(asyncio.get_running_loop().time())) is not None:
            self._begun[request].set()

    def _overdue(self, name: bytes, peer: bytes) -> None:
        self._queue.overdue(name, peer, now=asyncio.get_running_loop().time())
        self._begin()


async def _event_or_end(event: anyio.Event, stream: Stream) -> None:
    """Wait for an event. Raises LinkLost if the peer stops reading the stream before."""

    async def watch() -> None:
        with suppress(TransportError):  # the connection has ended
            await stream.delivered()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await event.wait()
        tasks.cancel_scope.cancel()
    if not event.is_set():
        message = "the peer has withdrawn its request"
        raise LinkLost(message)
