"""What is kept for each peer, for instance how often it may do something. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

REMEMBERED_PEERS = 4096

_Kept = TypeVar("_Kept")


class Remembered(Generic[_Kept]):
    """One value for each peer. It outlasts membership, so that who leaves and comes back does not begin anew.

    What is remembered is bounded; the least recently used value is forgotten first.
    """

    def __init__(self, make: Callable[[], _Kept]) -> None:
        self._make = make
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()

    def of(self, peer: bytes) -> _Kept:
        """The peer's value, made when it is first asked for."""
        if peer not in self._kept:
            self._kept[peer] = self._make()
        self._kept.move_to_end(peer)
        if len(self._kept) > REMEMBERED_PEERS:
            self._kept.popitem(last=False)
        return self._kept[peer]
