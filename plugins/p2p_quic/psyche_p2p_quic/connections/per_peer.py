"""Stores a value for each peer, for instance how often it may do something. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

REMEMBERED_PEERS = 4096

_Kept = TypeVar("_Kept")


class Remembered(Generic[_Kept]):
    """One value for each peer. It stays when the peer is no longer a member, so that leaving and returning does not reset it.

    The number of values is limited; the least recently used value is forgotten first.
    """

    def __init__(self, make: Callable[[], _Kept]) -> None:
        self._make = make
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()

    def of(self, peer: bytes) -> _Kept:
        """Return the peer's value, made at the first request."""
        if peer not in self._kept:
            self._kept[peer] = self._make()
        self._kept.move_to_end(peer)
        if len(self._kept) > REMEMBERED_PEERS:
            self._kept.popitem(last=False)
        return self._kept[peer]
