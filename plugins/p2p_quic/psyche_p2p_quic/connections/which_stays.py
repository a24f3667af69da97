"""Which of two connections with the same peer stays, and whether an address belongs to a restarted peer. Pure."""

from __future__ import annotations

from psyche_core.errors import WireError
from psyche_p2p_quic.addresses.peer_address import PeerAddress


def newer_stays(own: bytes, peer: bytes, *, old_dialled: bool, new_dialled: bool) -> bool:
    """Return whether the newer of two connections between the same two endpoints stays; both ends decide this in the same way.

    `*_dialled`: whether we dialled it. After crossing dials, the one dialled by the smaller key stays. If the same side dialled
    both, it did so because it had lost the older one.
    """
    return old_dialled == new_dialled or new_dialled == (own < peer)


def another_life(instance: bytes, address: bytes) -> bool:
    """Return whether a member's new address has another instance than the one we are connected with."""
    try:
        published = PeerAddress.decode(address)
    except WireError:
        return True

    return not published.instance or published.instance != instance
