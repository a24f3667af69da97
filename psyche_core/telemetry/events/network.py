"""The transport: what it has sent and received, and how members are reached."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NetworkTotals:
    """Totals since the start on our side of the transport, and number of connected peers.

    Attributes:
        broadcasts_sent: messages that we sent to all members.
        messages_received: messages of other members that we took in.
        messages_refused: messages that were not what they must be.
        downloads_started: results of other members that we began to fetch.
        downloads_finished: of these, complete ones.
        downloads_failed: of these, ones that no member sent us in time, or not as they were announced.
        download_bytes: bytes of the complete ones.
    """

    bytes_sent: int
    bytes_received: int
    peers: int
    broadcasts_sent: int = 0
    messages_received: int = 0
    messages_refused: int = 0
    downloads_started: int = 0
    downloads_finished: int = 0
    downloads_failed: int = 0
    download_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PathOfPeer:
    """How one member is reached. peer: first digits of its p2p key. path: `direct`, `relayed` (through a relay) or `none`.

    rtt_ms: time of a packet there and back, 0 while unknown. sent_per_second, received_per_second: bytes, since the last report.
    neighbour: whether the transport keeps a connection with it; otherwise it is connected for a while, for a transfer. Where no
    overlay is used, all members are neighbours.
    """

    peer: str
    path: str
    rtt_ms: float = 0.0
    sent_per_second: int = 0
    received_per_second: int = 0
    neighbour: bool = True


@dataclass(frozen=True, slots=True)
class PeerPaths:
    """How the other members of the epoch are reached. Emitted when that changes for a neighbour, and every half minute.

    peers: our neighbours, and others that are connected now. over_others: number of all other members. The transport keeps no
    connection with these (an overlay, in a run with many members); messages and results of theirs come over the neighbours.
    """

    peers: tuple[PathOfPeer, ...]
    over_others: int = 0
