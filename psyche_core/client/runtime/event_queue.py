"""The queue of events for a client's machine.

It is bounded, and no important event is dropped. A state, a message, a peer change or the outcome of work waits for space; only
ticks and bandwidth figures are dropped. So a flood of messages slows itself down: unread messages wait in the transport, which
limits them per peer and disconnects a peer that exceeds its share.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

import anyio

from psyche_core.client.machine.events import Event, PeersSeen, TimePassed
from psyche_core.interfaces import Transport

QUEUE_LENGTH = 4096
TICK_SECONDS = 0.25


class EventQueue:
    """The queue. Enter it while the client takes part. Before and after that, and after `close`, it ignores new events."""

    def __init__(self) -> None:
        self._events, self._inbox = anyio.create_memory_object_stream[Event](QUEUE_LENGTH)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._events.close()
        self._inbox.close()

    async def events(self) -> AsyncIterator[Event]:
        """Events in order."""
        async for event in self._inbox:
            yield event

    def close(self) -> None:
        """Take no more events; tasks that wait for space continue."""
        self._inbox.close()

    async def put(self, event: Event) -> None:
        """Queue an event for the machine; waits for space."""
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the client has ended
            await self._events.send(event)

    def put_or_drop(self, event: Event) -> None:
        """Queue an event unless the queue is full. Only for events that are repeated soon."""
        with contextlib.suppress(anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._events.send_nowait(event)


async def ticks(queue: EventQueue, transport: Transport) -> AsyncIterator[float]:
    """Queue a tick at fixed intervals, and the connected peers when they change. Yield the event loop's time at each tick."""
    seen: tuple[tuple[bytes, ...], tuple[bytes, ...] | None] = ((), None)
    while True:
        await anyio.sleep(TICK_SECONDS)
        stats = transport.stats
        if (stats.peers, stats.neighbours) != seen:
            seen = stats.peers, stats.neighbours
            neighbours = None if stats.neighbours is None else frozenset(stats.neighbours)
            await queue.put(PeersSeen(frozenset(stats.peers), neighbours))
        yield anyio.current_time()
        queue.put_or_drop(TimePassed())
