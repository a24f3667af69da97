"""To which neighbours a member sends a message at once, so that it reaches all members of an overlay in few hops and few copies.

The author sends its message to all its neighbours. For every other member w everybody knows how far it is from the author, so
everybody computes the same few senders for w and this message: neighbours of w that are one hop nearer to the author, and,
where there are too few of these, neighbours at the same distance. Which of them, the id of the message decides, so nobody
depends on the same senders for all messages of an author. There are no timers and no repairs of a tree: a member computes from
the message alone to whom it sends it.

A sender may be dead or drop what it should send. Therefore a member has several senders (`senders`), and ids of messages are
announced to some random neighbours besides, which request what they lack (`MessageLog.claim_request`). Members with slightly
different lists of members compute different senders for a few; announced ids repair that as well.

Who sends a message on has checked it first: `MessageLog.add_from` says whose it is and whether it may be passed on.
"""

from __future__ import annotations

from psyche_core.p2p.overlay import Overlay

SENDERS = 2
"""Members from which a member that is no neighbour of the author gets each message at once."""

_MIX = 0x9E3779B97F4A7C15
"""An odd constant (2**64 divided by the golden ratio): neighbouring numbers multiplied by it are far apart."""


class Spread:
    """What one member sends on.

    overlay: the graph of the epoch. own: our key. senders: copies that a member gets if it is no neighbour of the author; at
    least 1.
    """

    def __init__(self, overlay: Overlay, own: bytes, *, senders: int = SENDERS) -> None:
        if senders < 1:
            message = f"each member needs at least one sender of a message, got {senders}"
            raise ValueError(message)

        self._overlay = overlay
        self._own = own
        self._senders = senders
        self._neighbours = overlay.neighbours(own)
        self._receivers: dict[bytes, tuple[_Receiver, ...]] = {}

    def receivers(self, origin: bytes, message_id: bytes) -> tuple[bytes, ...]:
        """Return the neighbours to which we send a message now.

        origin: the key that signed it, ours for our own; nobody gets a message at once whose author is not in the overlay.
        message_id: SHA-256 of the message.
        """
        if origin == self._own:
            return self._neighbours

        if origin not in self._overlay:
            return ()

        receivers = self._receivers.get(origin)
        if receivers is None:
            receivers = self._receivers[origin] = self._of(origin)
        drawn = int.from_bytes(message_id[:8], "little")
        return tuple(receiver.key for receiver in receivers if receiver.chooses(drawn, self._senders))

    def _of(self, origin: bytes) -> tuple[_Receiver, ...]:
        """Return the neighbours to which we may have to send messages of this author."""
        found = []
        for key in self._neighbours:
            ours = self._overlay.position(origin, key, self._own)
            if ours is not None and ours.is_nearer:
                found.append(_Receiver(key, ours.place, ours.nearer, 0))
            elif ours is not None and ours.nearer < self._senders:
                found.append(_Receiver(key, ours.place, ours.level, ours.nearer))
        return tuple(found)


class _Receiver:
    """A neighbour of ours, and our place among those that may send to it.

    place, count: of us among `count` equals. before: senders that it has in any case.
    """

    __slots__ = ("_before", "_count", "_place", "_salt", "key")

    def __init__(self, key: bytes, place: int, count: int, before: int) -> None:
        self.key: bytes = key
        self._place = place
        self._count = count
        self._before = before
        self._salt = int.from_bytes(key[:8], "little")

    def chooses(self, drawn: int, senders: int) -> bool:
        """Return whether we are one of this neighbour's senders of a message. drawn: a number from the message's id."""
        first = ((drawn ^ self._salt) * _MIX >> 32) % self._count
        return (self._place - first) % self._count < senders - self._before
