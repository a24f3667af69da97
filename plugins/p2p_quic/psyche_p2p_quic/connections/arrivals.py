"""Connections that others make just now: accepted, and not yet part of the mesh.

Whoever has a member's key may connect and then say nothing. Members that are no neighbours have few places for the time until
their hello, apart from those of guests, and one each. When all are taken, the one that has been silent longest makes room for the
newest. An honest member says hello at once, so silent ones keep it out only if they come faster than its hello.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from psyche_p2p_quic.connections import session


class Closable(Protocol):
    """What is known of a connection here."""

    peer: bytes

    def close(self, code: int, reason: str) -> None:
        """End it."""


class Arrivals:
    """Connections being made. most: of members that are no neighbours, before the hello. per_peer: of one neighbour at once."""

    def __init__(self, *, most: int, per_peer: int) -> None:
        self._most = most
        self._per_peer = per_peer
        self._coming: Counter[bytes] = Counter()
        self._silent: dict[bytes, Closable] = {}

    def __contains__(self, peer: object) -> bool:
        return peer in self._coming

    def are_enough(self, peer: bytes, *, beside: bool) -> bool:
        """Return whether a peer has as many connections here as it may. beside: whether it is no neighbour."""
        return self._coming[peer] >= (1 if beside else self._per_peer)

    @contextmanager
    def coming(self, link: Closable, *, beside: bool) -> Iterator[None]:
        """Count a connection while this is entered. beside: whether its peer is no neighbour; another may be closed for it."""
        self._coming[link.peer] += 1
        if beside:
            if len(self._silent) >= self._most:
                longest = next(iter(self._silent))
                self._silent.pop(longest).close(session.NO_NEIGHBOUR, "you did not say hello, and others need your place")
            self._silent[link.peer] = link
        try:
            yield
        finally:
            self.greeted(link)
            self._coming[link.peer] -= 1
            if not self._coming[link.peer]:
                del self._coming[link.peer]

    def greeted(self, link: Closable) -> None:
        """Note that a peer has said hello: it is no arrival any more, see `guests`."""
        if self._silent.get(link.peer) is link:
            del self._silent[link.peer]
