"""Connections of visitors take few files, and none takes one for long."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import socket
from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import ByteStream

from psyche_core.telemetry import events as telemetry
from psyche_core.web import visitors
from psyche_core.web.access import Access
from psyche_core.web.feeds import Feed, Feeds
from psyche_core.web.hosting import listen, serving
from psyche_core.web.visitors import Places, VisitorLimits

HALF_A_HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"
REQUEST = HALF_A_HEAD + b"\r\n"
EVENTS = REQUEST.replace(b"GET /", b"GET /api/events?run=first-light")


class Page:
    """A page that is really served, and its visitors."""

    def __init__(self, address: tuple[str, int], opened: contextlib.AsyncExitStack, feed: Feed) -> None:
        self.feed = feed
        self._address = address
        self._opened = opened

    async def connect(self, *, own: str = "127.0.0.1", says: bytes = b"") -> ByteStream:
        """A visitor that stays until the end of the test, at most."""
        stream = await self._opened.enter_async_context(await anyio.connect_tcp(*self._address, local_host=own))
        await stream.send(says)
        return stream

    async def reads_events(self, *, own: str = "127.0.0.1") -> ByteStream:
        """A visitor with an open stream of events."""
        stream = await self.connect(own=own, says=EVENTS)
        assert (await answer(stream)).startswith(b"HTTP/1.1 200")
        return stream

    async def serves(self, *, own: str) -> bool:
        """Whether a new visitor gets an answer."""
        async with await anyio.connect_tcp(*self._address, local_host=own) as stream:
            with contextlib.suppress(anyio.BrokenResourceError):
                await stream.send(REQUEST)
            return (await answer(stream)).startswith(b"HTTP/1.1 200")


@contextlib.asynccontextmanager
async def page(limits: VisitorLimits) -> AsyncIterator[Page]:
    """Serve a page of one run."""
    feeds = Feeds()
    feed = feeds.add("first-light")
    listening = listen("127.0.0.1", 0)
    address = listening.getsockname()
    with anyio.fail_after(20):
        async with (
            serving(feeds, Access(), listening, limits=limits),
            contextlib.AsyncExitStack() as opened,
        ):
            yield Page(address, opened, feed)


async def answer(stream: ByteStream) -> bytes:
    """The first bytes of an answer; empty when the connection was closed instead."""
    try:
        return await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return b""


def test_places_are_counted_by_address_and_in_all() -> None:
    places = Places(VisitorLimits(connections=4, per_address=2))

    def let_in(host: str) -> bool:
        return places.enter(host) is not None

    first = places.enter("192.0.2.1")
    assert first is not None
    assert [let_in("192.0.2.1"), let_in("192.0.2.1")] == [True, False]
    assert not let_in("::ffff:192.0.2.1")  # the same
    assert [let_in(f"2001:db8::{number}") for number in range(3)] == [True, True, False]  # a /64 is one address
    assert not let_in("192.0.2.2")  # four in all
    first.left()
    first.left()  # once more changes nothing
    assert [let_in("192.0.2.2"), let_in("192.0.2.2")] == [True, False]


@pytest.mark.anyio
async def test_who_takes_all_places_of_its_address_is_closed_and_others_are_served() -> None:
    async with page(VisitorLimits(connections=8, per_address=3)) as served:
        held = [await served.reads_events() for _ in range(3)]
        assert await answer(await served.connect()) == b""
        assert await served.serves(own="127.0.0.2")
        await held[0].aclose()
        while not await served.serves(own="127.0.0.1"):
            await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
async def test_all_places_may_be_taken_and_further_visitors_are_closed() -> None:
    async with page(VisitorLimits(connections=2)) as served:
        held = [await served.reads_events(own=own) for own in ("127.0.0.1", "127.0.0.2")]
        assert await answer(await served.connect(own="127.0.0.3")) == b""
        await held[0].aclose()
        while not await served.serves(own="127.0.0.3"):
            await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
@pytest.mark.parametrize("own", ["127.0.0.1", "127.0.0.2"])
async def test_half_requests_make_room_for_a_visitor_the_oldest_first(own: str) -> None:
    async with page(VisitorLimits(connections=4, per_address=3)) as served:
        reader = await served.reads_events(own="127.0.0.2")
        held = [await served.connect(says=HALF_A_HEAD) for _ in range(3)]
        assert await served.serves(own=own)
        assert await answer(held[0]) == b""
        await held[2].send(b"\r\n")
        assert (await answer(held[2])).startswith(b"HTTP/1.1 200")
        with anyio.move_on_after(0.01):
            assert await answer(reader) != b""


@pytest.mark.anyio
async def test_who_has_all_places_of_its_address_takes_none_of_others() -> None:
    async with page(VisitorLimits(connections=8, per_address=1)) as served:
        half = await served.connect(own="127.0.0.2", says=HALF_A_HEAD)
        await served.reads_events()
        assert not await served.serves(own="127.0.0.1")
        await half.send(b"\r\n")
        assert (await answer(half)).startswith(b"HTTP/1.1 200")


@pytest.mark.anyio
async def test_a_slow_line_is_not_cut_while_it_takes_something() -> None:
    visit = Places(VisitorLimits(seconds=0.01)).enter("192.0.2.1")
    assert visit is not None
    transport = _Line([100, 60, 60, 20, 20, 20])
    visit.began(transport)
    visit.look(asks_nothing=True, takes_nothing=True)
    with anyio.fail_after(20):
        await transport.cut.wait()
    assert transport.unsent == []


@pytest.mark.anyio
async def test_who_still_reads_an_answer_makes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psyche_core.web.app.PAGES", (_Large(),))
    async with page(VisitorLimits(connections=1)) as served:
        reader = await served.connect(says=REQUEST)
        size = len(await answer(reader))
        assert not await served.serves(own="127.0.0.2")
        while size < len(_Large().html()):
            chunk = await answer(reader)
            assert chunk
            size += len(chunk)


@pytest.mark.anyio
@pytest.mark.parametrize("says", [b"", HALF_A_HEAD, REQUEST, REQUEST + HALF_A_HEAD, REQUEST[:-2] + b"Content-Length: 9\r\n\r\n"])
async def test_who_keeps_the_page_waiting_is_disconnected(says: bytes) -> None:
    async with page(VisitorLimits(seconds=0.3)) as served:
        stream = await served.connect(says=says)
        received = b"".join([chunk async for chunk in _until_closed(stream)])
        assert received.startswith(b"HTTP/1.1 200") == (REQUEST[:-2] in says and b"\r\n\r\n" in says)


@pytest.mark.anyio
async def test_drops_of_a_head_gain_no_time() -> None:
    async with page(VisitorLimits(seconds=0.3)) as served:
        stream = await served.connect(says=HALF_A_HEAD)
        with contextlib.suppress(anyio.BrokenResourceError, anyio.EndOfStream):
            while True:
                await stream.send(b"x: y\r\n")
                with anyio.move_on_after(0.05):
                    await stream.receive()


@pytest.mark.anyio
async def test_a_stream_of_events_is_not_ended_for_lasting_longer_than_a_head_may() -> None:
    async with page(VisitorLimits(seconds=0.2)) as served:
        reader = await served.reads_events()
        async for _ in _until_closed(await served.connect(says=HALF_A_HEAD)):
            pass  # later than the reader's time would have been over
        served.feed.view.handle("client-1", 1.0, telemetry.Started("client", "ab" * 32, "first-light", "x"))
        served.feed.changed()
        seen = b""
        async for chunk in _until_closed(reader):
            seen += chunk
            if b"client-1" in seen:
                break
        assert b"client-1" in seen


@pytest.mark.anyio
async def test_who_takes_nothing_of_an_answer_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psyche_core.web.app.PAGES", (_Large(),))
    async with page(VisitorLimits(connections=1, seconds=0.2)) as served:
        await served.connect(says=REQUEST)  # and reads nothing
        while not await served.serves(own="127.0.0.2"):
            await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
async def test_who_takes_nothing_of_a_stream_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def messages(*_: object, **__: object) -> AsyncIterator[str]:
        while True:
            yield "x" * 1_000_000
            await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(Feed, "messages", messages)
    async with page(VisitorLimits(connections=1, seconds=0.2)) as served:
        await served.connect(says=EVENTS)  # and reads nothing
        while not await served.serves(own="127.0.0.2"):
            await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
async def test_no_files_left_is_said_once_and_visitors_come_in_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(visitors, "_PAUSE_SECONDS", 0.01)
    accept, refused = socket.socket.accept, list[socket.socket]()

    def full(listening: socket.socket) -> object:
        if len(refused) < 5:
            refused.append(listening)
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", full)
    async with page(VisitorLimits()) as served:
        assert (await answer(await served.connect(says=REQUEST))).startswith(b"HTTP/1.1 200")
    assert len(refused) == 5
    said = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage() for record in said] == [
        "the page cannot accept visitors now: Too many open files; trying again every second"
    ]
    assert said[0].exc_info is None


@pytest.mark.anyio
async def test_no_request_writes_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with page(VisitorLimits()) as served:
        assert (await answer(await served.connect(says=b"\x16\x03\x01 no http\r\n\r\n"))).startswith(b"HTTP/1.1 400")
        upgrade = REQUEST[:-2] + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"
        assert (await answer(await served.connect(says=upgrade))).startswith(b"HTTP/1.1 200")
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(("hard", "connections"), [(resource.RLIM_INFINITY, 200), (1024, 200), (256, 64), (20, 16)])
def test_the_limit_of_open_files_is_raised_or_fewer_are_let_in(
    monkeypatch: pytest.MonkeyPatch, hard: int, connections: int
) -> None:
    limits = [(16, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))
    assert VisitorLimits().within_open_files().connections == connections
    assert limits[-1] == (1224 if hard == resource.RLIM_INFINITY else hard, hard)


class _Line(asyncio.Transport):
    """Says how much is not sent yet each time it is asked."""

    def __init__(self, unsent: list[int]) -> None:
        super().__init__()
        self.unsent = unsent
        self.cut = anyio.Event()

    def get_write_buffer_size(self) -> int:
        return self.unsent.pop(0)

    def abort(self) -> None:
        self.cut.set()


class _Large:
    """A page that no socket's buffers hold."""

    path = "/"

    def html(self) -> str:
        return "x" * 30_000_000


async def _until_closed(stream: ByteStream) -> AsyncIterator[bytes]:
    while chunk := await answer(stream):
        yield chunk
