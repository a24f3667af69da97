"""What of a published address we may dial: sockets that `dial_ranges` permits, and a relay that is one of ours."""

from __future__ import annotations

import logging
from dataclasses import replace

from psyche_core.errors import WireError
from psyche_core.telemetry.repeated_problem import RepeatedProblem
from psyche_core.text_safety import printable
from psyche_p2p_quic.addresses.peer_address import PeerAddress
from psyche_p2p_quic.connections.dial_ranges import may_dial
from psyche_p2p_quic.connections.per_peer import Remembered
from psyche_p2p_quic.endpoint.endpoint import Endpoint

logger: logging.Logger = logging.getLogger("psyche.p2p")


class PublishedAddresses:
    """Reads members' addresses. endpoint: ours, whose networks and relays count."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._undialable = Remembered(RepeatedProblem)

    def read(self, peer: bytes, address: bytes) -> PeerAddress | None:
        """Return a member's address, None if it has published none that can be read."""
        if not address:
            return None

        try:
            published = PeerAddress.decode(address)
        except WireError as error:
            if self._undialable.of(peer).failed():
                logger.warning("peer %s cannot be dialled: %s", peer[:4].hex(), error)
            return None

        return published

    def dialable(self, published: PeerAddress) -> tuple[list[str], str | None]:
        """Return the addresses that may be dialled, and the relay if it is one of ours."""
        own = self._endpoint.own_ips
        kept = replace(published, sockets=tuple(pair for pair in published.sockets if may_dial(pair[0], own)))
        relay = published.relay if published.relay in self._endpoint.relays else None
        return list(dict.fromkeys(kept.dialable())), relay

    def tell_undialable(self, peer: bytes, published: PeerAddress) -> None:
        """Log, not each time, that nothing of an address may be dialled."""
        if not self._undialable.of(peer).failed():
            return

        message = "peer %s is not dialled: it published only addresses of private networks that we are not in, or of nobody"
        if published.relay is None:
            logger.warning(message, peer[:4].hex())
        else:
            message += ", and its relay %s is none of ours; with --iroh-relay we use the relays that it names, and no others"
            logger.warning(message, peer[:4].hex(), printable(published.relay))
