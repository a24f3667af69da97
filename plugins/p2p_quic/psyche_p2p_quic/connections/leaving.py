"""Ends the connections that `guests` says must end: of guests without transfers, and of those whose place others need."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import anyio

from psyche_p2p_quic.connections import session
from psyche_p2p_quic.connections.guests import Guests
from psyche_p2p_quic.connections.session import Session


class Leaving:
    """The ends of guests' connections. guests: decides. sessions: of the mesh, by peer."""

    def __init__(self, guests: Guests, sessions: Mapping[bytes, Session]) -> None:
        self._guests = guests
        self._sessions = sessions

    def make_room(self, *guests: bytes | None) -> None:
        """End the connections of these guests, because others need their places. None stands for nobody."""
        for guest in guests:
            if guest is not None and guest in self._sessions:
                self._sessions[guest].close(session.NO_NEIGHBOUR, "we are no neighbours, and others need your place")

    def look(self) -> None:
        """Note who is connected now, and end what is too much."""
        staying = {peer: made.busy for peer, made in self._sessions.items() if not made.closing}
        self._guests.present(staying, asyncio.get_running_loop().time())
        self.make_room(*self._guests.surplus([peer for peer, busy in staying.items() if busy]))

    async def hang_up(self, *, every: float) -> None:
        """End the connections of guests when nothing is transferred any more. every: seconds between two looks."""
        while True:
            await anyio.sleep(every)
            if self._guests.neighbours is not None:
                transfers = {peer: (made.busy, made.transfers) for peer, made in self._sessions.items()}
                for peer in self._guests.idle(transfers, asyncio.get_running_loop().time()):
                    self._sessions[peer].close(session.NO_NEIGHBOUR, "nothing is transferred, and we are no neighbours")
