"""Which peers said that they have which blobs.

A peer that has fetched a result tells its neighbours, who may then fetch it from that peer. Such an announcement may be false,
and may come before we know that the blob exists, so announcements are kept for any blob, a limited number for each peer; of too
many the oldest are forgotten. `downloads` chooses among the holders, and `message_log` does the same for messages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

MAX_PREFIXES = 2048
"""Most announcements kept of one peer: 256 results of some rounds, and many more."""


class HolderBook:
    """Announcements by peer and by blob. max_prefixes: most of one peer.

    A blob is named by the first bytes of its hash; all callers use the same number of bytes.
    """

    def __init__(self, *, max_prefixes: int = MAX_PREFIXES) -> None:
        self._max_prefixes = max_prefixes
        self._by_peer: dict[bytes, OrderedDict[bytes, None]] = {}
        self._by_prefix: dict[bytes, dict[bytes, None]] = {}

    def note(self, peer: bytes, prefixes: Iterable[bytes]) -> None:
        """Note that a peer says that it has these blobs."""
        known = self._by_peer.setdefault(peer, OrderedDict())
        for prefix in prefixes:
            known[prefix] = None
            known.move_to_end(prefix)
            self._by_prefix.setdefault(prefix, {})[peer] = None
            if len(known) > self._max_prefixes:
                self._drop(peer, known.popitem(last=False)[0])
        if not known:
            del self._by_peer[peer]

    def of(self, prefix: bytes) -> tuple[bytes, ...]:
        """Return the peers that said that they have this blob, the first first."""
        return tuple(self._by_prefix.get(prefix, ()))

    def count(self, prefix: bytes) -> int:
        """Return how many peers said that they have this blob."""
        return len(self._by_prefix.get(prefix, ()))

    def withdraw(self, peer: bytes, prefix: bytes) -> None:
        """Forget that a peer said that it has this blob."""
        known = self._by_peer.get(peer)
        if known is not None and prefix in known:
            del known[prefix]
            if not known:
                del self._by_peer[peer]
            self._drop(peer, prefix)

    def forget_peer(self, peer: bytes) -> None:
        """Forget what a peer said, because its connection ended or it does not have what it said."""
        for prefix in self._by_peer.pop(peer, ()):
            self._drop(peer, prefix)

    def forget_blob(self, prefix: bytes) -> None:
        """Forget who has a blob, because we do not need it any more."""
        for peer in self._by_prefix.pop(prefix, ()):
            known = self._by_peer[peer]
            del known[prefix]
            if not known:
                del self._by_peer[peer]

    def _drop(self, peer: bytes, prefix: bytes) -> None:
        peers = self._by_prefix[prefix]
        del peers[peer]
        if not peers:
            del self._by_prefix[prefix]
