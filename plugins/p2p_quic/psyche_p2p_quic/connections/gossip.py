"""How messages of others go on: at once to some neighbours in an overlay, and as ids to a few members in any case.

Where all members are connected, an author's message reaches everybody in one hop. Where they are not, `psyche_core.p2p.spread`
says to which neighbours each message goes at once. Ids are sent to a few random members besides, which request what they lack, so
that neither an author nor those between decide who gets a message and when.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection

import anyio

from psyche_core.p2p.message_log import LogEntry, MessageLog
from psyche_core.p2p.overlay import KEY_BYTES, Overlay
from psyche_core.p2p.spread import Spread
from psyche_p2p_quic.connections.mesh import Mesh
from psyche_p2p_quic.settings import QuicSettings

_MOST_GATHERED = 8192
"""Most messages whose ids wait for the next turn, as many as the log has for it."""


class Gossip:
    """Passes messages of `log` on over `mesh`. own: our key."""

    def __init__(self, log: MessageLog, mesh: Mesh, *, own: bytes, settings: QuicSettings) -> None:
        self._log = log
        self._mesh = mesh
        self._own = own
        self._settings = settings
        self._arrived = anyio.Event()
        self._gathered: deque[LogEntry] = deque(maxlen=_MOST_GATHERED)
        self._graph: tuple[frozenset[bytes], int] | None = None
        self._spread: Spread | None = None

    def neighbours(self, members: Collection[bytes], seed: int | None) -> tuple[bytes, ...] | None:
        """Return the members to connect to, None for all. Messages are spread over the same graph from now on.

        members: their keys. seed: u64 of the epoch; None connects all.
        """
        everybody = frozenset(key for key in (*members, self._own) if len(key) == KEY_BYTES)
        if seed is None or len(everybody) <= self._settings.overlay_above:
            self._graph = self._spread = None
            return None

        overlay = Overlay(everybody, seed, degree=self._settings.overlay_degree, full_mesh=self._settings.overlay_above)
        if self._graph != (everybody, seed):
            self._graph = everybody, seed
            self._spread = Spread(overlay, self._own)
        return overlay.neighbours(self._own)

    def arrived(self) -> None:
        """Note that there may be messages to pass on; in an overlay, pass them on now."""
        self._arrived.set()
        if self._spread is None:
            return

        for entry in self._log.take_received():
            self._gathered.append(entry)
            if entry.opened is None:
                continue  # nobody knows who wrote it, so nobody knows where it is already

            for peer in self._spread.receivers(entry.opened.origin, entry.id):
                neighbour = self._mesh.sessions.get(peer)
                if neighbour is not None and peer != entry.via:
                    neighbour.send(neighbour.conversation.announce(entry))

    async def run(self) -> None:
        """Send some members the ids of messages from others, again and again."""
        while True:
            await self._arrived.wait()
            await anyio.sleep(self._settings.gossip_seconds)
            self._arrived = anyio.Event()
            received = [*self._gathered, *self._log.take_received()]
            self._gathered.clear()
            sessions = list(self._mesh.sessions.values())
            for session in random.sample(sessions, min(self._settings.gossip_peers, len(sessions))):
                session.send(session.conversation.announce_known(received))
