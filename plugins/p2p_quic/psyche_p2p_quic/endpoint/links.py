"""Connections and streams of iroh, with workarounds for problems of the library.

Errors become `LinkLost` with a message (`str(IrohError)` is empty). A stream that is given up is stopped and reset, because one
that is only dropped looks finished to the peer. A finished stream waits until the peer has received it.

Callers must know: cancelling a read loses data, so the stream is unusable after it. Every stream's content must contain its own
length and hash. `endpoint` makes connections; `connections` makes decisions about peers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import iroh
from iroh.iroh_ffi import InternalError

from psyche_core.errors import TransportError
from psyche_core.text_safety import printable
from psyche_p2p_quic.endpoint.ffi_copy import mend

_GIVE_UP_SECONDS = 1.0
_CONTROL_PRIORITY = 10
_PEER_CODE = re.compile(r"closed by peer: .*\(code (\d+)\)", re.DOTALL)
_SOURCE = re.compile(r" \(\S*/\S+:\d+:\d+\)$")
"""A place in the library's source, with which it ends its messages."""

_NUMBER = re.compile(r"^\d+: ")

mend()


class LinkLost(TransportError):
    """A connection or stream ended, or could not be made."""


@contextmanager
def as_link_lost(doing: str) -> Iterator[None]:
    """Turn the library's errors into LinkLost. doing: what was done, for the message."""
    try:
        yield
    except iroh.IrohError as error:
        message = f"{doing}: {plain_reason(error.message())}"
        raise LinkLost(message) from error
    except InternalError as error:
        message = f"{doing}: {printable(str(error))}"
        raise LinkLost(message) from error


def plain_reason(message: str) -> str:
    """Return the innermost cause of an error of the library in words for people, without the places in its source."""
    outer, _, causes = message.partition("\nCaused by:\n")
    lines = [line.strip() for line in (causes or outer).splitlines() if line.strip()] or [outer]
    reason = _NUMBER.sub("", lines[-1] if causes else lines[0])
    return printable(_SOURCE.sub("", reason), at_most=300)


class ObserverRefused(LinkLost):
    """An observer was reached, but did not send our address."""


class Stream:
    """Both directions of a QUIC stream. Reads must not run concurrently with each other, nor writes."""

    def __init__(self, bi_stream: Any) -> None:
        self._send = bi_stream.send()
        self._receive = bi_stream.recv()

    async def read(self, most: int) -> bytes:
        """Return between 1 and `most` bytes, b"" at the end. Cancelling it breaks the stream."""
        with as_link_lost("read"):
            return bytes(await self._receive.read(most))

    async def read_exactly(self, count: int) -> bytes:
        """Return `count` bytes; raise LinkLost when the stream ends before. Cancelling it breaks the stream."""
        with as_link_lost("read"):
            return bytes(await self._receive.read_exact(count))

    async def write(self, data: bytes | memoryview) -> None:
        """Write all bytes; wait while the peer does not read. Cancelling it breaks the stream."""
        with as_link_lost("write"):
            await self._send.write_all(data)

    async def finish(self) -> None:
        """Mark the end of what we write."""
        with as_link_lost("finish"):
            await self._send.finish()

    async def delivered(self) -> None:
        """Wait until the peer has received all of a finished stream, or has stopped reading it.

        In the second case, what is still here is dropped. The library would send all of it, and a slow line be full of it.
        """
        with as_link_lost("wait for delivery"):
            stopped = await self._send.stopped()
        if stopped is not None:
            await self._reset()

    async def prefer(self) -> None:
        """Send this stream's bytes before those of others."""
        with as_link_lost("set priority"):
            await self._send.set_priority(_CONTROL_PRIORITY)

    async def stop_reading(self) -> None:
        """Inform the peer that nothing more is read, and drop received data. No read may be pending."""
        with anyio.move_on_after(_GIVE_UP_SECONDS, shield=True):
            try:
                await self._receive.stop(0)
            except iroh.IrohError:
                return  # it has ended already

    async def abandon(self) -> None:
        """Give up both directions, so that the peer sees a broken stream, not a finished one. No read or write may be pending."""
        await self.stop_reading()
        await self._reset()

    async def _reset(self) -> None:
        with anyio.move_on_after(_GIVE_UP_SECONDS, shield=True):
            try:
                await self._send.reset(1)
            except iroh.IrohError:
                return  # it has ended already


@dataclass(frozen=True, slots=True)
class Path:
    """The present path of a link's packets. relayed: through a relay. rtt: seconds there and back, 0 before it is measured."""

    relayed: bool
    rtt: float


class Link:
    """A connection to a peer that has proved its key."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.peer: bytes = bytes(connection.remote_id().to_bytes())
        self._path: Path | None = None
        self._received: dict[tuple[bool, str], int] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        """The `ip:port` texts from which the peer has answered on this connection, normally one; empty once it is closed."""
        paths = self._connection.paths()
        return tuple(str(path.remote_addr) for path in paths if path.is_ip and (path.is_selected or path.stats.udp_rx_datagrams))

    @property
    def path(self) -> Path | None:
        """The path in use; None once the link is closed, and while nothing has arrived.

        The library selects no path on a connection from a peer whose earlier connection, from another address, has just ended;
        then this is the path on which most has arrived since the last call. On a busy machine the library lists no path for a
        while, though messages arrive; then this is the path that was used last.
        """
        if self._connection.close_reason():
            return None

        paths = list(self._connection.paths())
        received = {(path.is_ip, str(path.remote_addr)): path.stats.udp_rx_datagrams for path in paths}
        news = {place: count - self._received.get(place, 0) for place, count in received.items()}
        self._received |= received
        found = [(path.is_selected, news[path.is_ip, str(path.remote_addr)], path) for path in paths]
        selected, latest, used = max(found, key=lambda one: one[:2], default=(False, 0, None))
        if used is not None and (selected or latest > 0):
            self._path = Path(not used.is_ip, used.rtt_ms / 1000)
        return self._path

    async def read_one_way(self, most: int) -> bytes:
        """Return all of the next one-way stream that the peer opens, at most `most` bytes."""
        with as_link_lost("read a one-way stream"):
            stream = await self._connection.accept_uni()
            return bytes(await stream.read_to_end(most))

    async def open(self) -> Stream:
        """Open a stream; the peer sees it after the first write."""
        with as_link_lost("open a stream"):
            return Stream(await self._connection.open_bi())

    async def accept(self) -> Stream:
        """Return the next stream that the peer opened."""
        with as_link_lost("accept a stream"):
            return Stream(await self._connection.accept_bi())

    async def accept_one_way(self) -> None:
        """Wait until the peer opens a one-way stream, and stop it."""
        with as_link_lost("accept a stream"):
            stream = await self._connection.accept_uni()
            await stream.stop(0)

    def close(self, code: int, reason: str) -> None:
        """End the connection now; pending reads and writes of both sides fail."""
        self._connection.close(code, reason.encode()[:200])

    async def closed(self) -> None:
        """Wait until the link has ended."""
        with as_link_lost("wait for the end"):
            await self._connection.closed()

    @property
    def close_reason(self) -> str:
        """Why the link ended, "" while it is open; the peer's text, safe to show."""
        return printable(str(self._connection.close_reason() or ""))

    @property
    def peer_code(self) -> int | None:
        """The code with which the peer closed the link; None while it is open or if it ended otherwise."""
        found = _PEER_CODE.fullmatch(str(self._connection.close_reason() or ""))
        return int(found[1]) if found else None


class Arrival:
    """An incoming connection attempt; nothing about it is proved yet."""

    def __init__(self, incoming: Any) -> None:
        self._incoming = incoming

    async def complete(self) -> Link:
        """Finish the handshake."""
        with as_link_lost("accept a connection"):
            accepting = await self._incoming.accept()
            return Link(await accepting.connect())

    async def prove_source(self) -> bool:
        """Make the sender prove its address by connecting again (QUIC retry); return False when it has proved it already."""
        with as_link_lost("ask for a retry"):
            if await self._incoming.remote_addr_validated():
                return False

            await self._incoming.retry()
            return True

    async def refuse(self) -> None:
        """Refuse the connection."""
        with as_link_lost("refuse a connection"):
            await self._incoming.refuse()
