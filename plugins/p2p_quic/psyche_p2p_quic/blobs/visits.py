"""Connections with the sources of a blob that are no neighbours, for the time of its transfer.

A caller of `fetch` names members that have a blob. Where not all members are connected, none of these may be a neighbour. Then
they are dialled one after the other, as long as the transfer lasts: the next one if one cannot be reached or has not got it.
"""

from __future__ import annotations

import anyio

from psyche_core.p2p.fetch_plan import FetchPlan
from psyche_p2p_quic.connections.mesh import Mesh
from psyche_p2p_quic.settings import QuicSettings


class Visits:
    """Visits the sources of one blob. plan: of its transfer."""

    def __init__(self, mesh: Mesh, plan: FetchPlan, *, settings: QuicSettings) -> None:
        self._mesh = mesh
        self._plan = plan
        self._settings = settings
        self._until = anyio.current_time() + settings.visit_seconds

    def askable(self) -> tuple[bytes, ...]:
        """Return the members that may be asked now: all if all are neighbours, else the sources and those that are connected.

        For a while only the sources, unless one of them has said no: they have the blob, and others would be asked in vain.
        """
        mesh, plan = self._mesh, self._plan
        if mesh.guests.neighbours is None:
            return mesh.members

        members = frozenset(mesh.members)
        sources = [peer for peer in plan.sources if peer in members]
        if sources and anyio.current_time() < self._until and not any(plan.has_answered(peer) for peer in sources):
            return tuple(sources)

        return tuple(dict.fromkeys((*sources, *mesh.guests.neighbours, *mesh.sessions)))

    async def run(self) -> None:
        """Dial sources until cancelled."""
        while True:
            for peer in self._plan.sources:
                if not self._open_here():
                    async with self._mesh.reach(peer):
                        await self._stay(peer)
            await anyio.sleep(self._settings.hedge_seconds)

    def _open_here(self) -> bool:
        """Whether a source is connected that may still give the blob."""
        return any(peer in self._mesh.sessions and not self._plan.has_answered(peer) for peer in self._plan.sources)

    async def _stay(self, peer: bytes) -> None:
        """Wait until this source is of no use any more."""
        mesh = self._mesh
        if mesh.guests.seeks(peer):
            with anyio.move_on_after(self._settings.visit_seconds):
                while peer not in mesh.sessions:
                    await mesh.changed.wait()
            while peer in mesh.sessions and not self._plan.has_answered(peer):  # noqa: ASYNC110 - a plan has no event
                await anyio.sleep(self._settings.hedge_seconds)
