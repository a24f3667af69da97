"""Members of an overlay in one process, small enough for two cores: from six members on, four neighbours each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import anyio

from psyche_core.errors import WireError
from psyche_core.interfaces.transport import Opened
from psyche_core.p2p.overlay import Overlay
from psyche_core.testing.transport import until
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.connections.mesh import Mesh
from psyche_p2p_quic.settings import QuicSettings
from psyche_p2p_quic.transport import QuicTransport

SEED = 7
DEGREE = 4
SETTINGS = QuicSettings(
    overlay_above=5,
    overlay_degree=DEGREE,
    guests=2,
    visits=1,
    guest_idle_seconds=0.4,
    guest_turn_seconds=3600.0,
    visit_seconds=20.0,
    dial_grace_seconds=0.0,
    stall_seconds=2.0,
    hedge_seconds=0.05,
)
NO_BEATS = replace(SETTINGS, heartbeat_seconds=3600.0)
"""Nobody compares what is live: what a member does not get at once, or as an id, it never gets."""


def opened(message: bytes) -> Opened:
    """A check for messages that begin with their author's key."""
    if len(message) < 32:
        error = "too short"
        raise WireError(error)

    return Opened(message[:32], message[32:])


def mesh_of(member: QuicTransport) -> Mesh:
    """The connections of a member."""
    assert member._mesh is not None
    return member._mesh


async def name_each_other(members: Sequence[QuicTransport], *, seed: int | None = SEED, others: Sequence[bytes] = ()) -> None:
    """Pass the same members to all of them. others: keys of members without an address."""
    peers = {member.peer_id: member.address for member in members} | dict.fromkeys(others, b"")
    for member in members:
        await member.set_peers(peers, seed=seed)


def graph(members: Sequence[QuicTransport], *, seed: int = SEED, others: Sequence[bytes] = (), degree: int = DEGREE) -> Overlay:
    """The graph that all must have computed."""
    return Overlay([*(member.peer_id for member in members), *others], seed, degree=degree, full_mesh=SETTINGS.overlay_above)


async def joined(members: Sequence[QuicTransport], overlay: Overlay) -> None:
    """Wait until each is connected with its neighbours, and nobody else."""
    keys = {member.peer_id for member in members}
    await until(
        lambda: all(set(member.stats.peers) == keys & set(overlay.neighbours(member.peer_id)) for member in members),
        what="members of an overlay did not connect with their neighbours, and with nobody else,",
    )


@asynccontextmanager
async def members_of(
    count: int, *, settings: QuicSettings = SETTINGS, others: Sequence[bytes] = (), checked: bool = True
) -> AsyncIterator[list[QuicTransport]]:
    """So many members, each connected with its neighbours. others: further keys."""
    with anyio.fail_after(90):
        async with AsyncExitStack() as stack:
            found = [
                await stack.enter_async_context(QuicTransport("run", SecretKey.generate(), settings=settings))
                for _ in range(count)
            ]
            if checked:
                for member in found:
                    member.check_messages(opened)
            await name_each_other(found, others=others)
            await joined(found, graph(found, others=others, degree=settings.overlay_degree))
            yield found
