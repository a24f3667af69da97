"""A neighbour in an overlay that answers requests for blobs as a test says: a member's key on a raw endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import anyio

from plugins.p2p_quic.tests.overlay_members import graph, members_of
from plugins.p2p_quic.tests.rogue import Rogue, talk
from psyche_core.errors import WireError
from psyche_core.testing.transport import until
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.blobs.frames import BLOB_REQUEST_BYTES
from psyche_p2p_quic.endpoint.endpoint import Endpoint
from psyche_p2p_quic.endpoint.links import Link, LinkLost, Stream
from psyche_p2p_quic.settings import QuicSettings
from psyche_p2p_quic.transport import QuicTransport

Answer = Callable[[Stream], Awaitable[None]]


async def answer_all(link: Link, answer: Answer, asked: anyio.Event) -> None:
    async def one(stream: Stream) -> None:
        with suppress(LinkLost, WireError):
            await stream.read_exactly(BLOB_REQUEST_BYTES)
            asked.set()
            await answer(stream)

    async with anyio.create_task_group() as tasks:
        with suppress(LinkLost):
            while True:
                tasks.start_soon(one, await link.accept())


@asynccontextmanager
async def with_a_false_neighbour(
    answer: Answer, settings: QuicSettings
) -> AsyncIterator[tuple[QuicTransport, list[QuicTransport], Stream, anyio.Event]]:
    """A member, all honest ones, the control stream of a neighbour of it that lies, and whether that was asked for a blob."""
    async with beside_a_false_neighbour(settings) as (victim, members, link, stream):
        asked = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer_all, link, answer, asked)
            yield victim, members, stream, asked
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def beside_a_false_neighbour(
    settings: QuicSettings,
) -> AsyncIterator[tuple[QuicTransport, list[QuicTransport], Link, Stream]]:
    """A member, all honest ones, and a neighbour of it that only keeps the connection alive: its link and its control stream."""
    key = SecretKey.generate()
    async with members_of(9, settings=replace(settings, silent_beats=10_000), others=[key.public]) as members:
        near = graph(members, others=[key.public], degree=settings.overlay_degree).neighbours(key.public)
        victim = next(member for member in members if member.peer_id in near)
        endpoint = await Endpoint.bind(key.seed, interface="127.0.0.1", port=0)
        try:
            link, stream = await Rogue(endpoint, key).greeted(victim)
            await until(lambda: key.public in victim.stats.peers)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(talk, stream)
                yield victim, members, link, stream
                tasks.cancel_scope.cancel()
        finally:
            await endpoint.aclose(timeout=1)
