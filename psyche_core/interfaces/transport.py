"""Contract of a transport: small messages to all epoch members, large blobs by their hash.

Messages are opaque and already signed by their origin (psyche_core.wire.signing), so any member may pass them on. Who reads them
can tell the transport how to open one (`check_messages`), so that only what a member signed is passed on. Blobs are named by the
SHA-256 of their bytes, so anybody may serve them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anyio.abc import AsyncResource

MAX_MESSAGE_BYTES = 16 * 1024
"""Longest message, in bytes. The sender gets a ValueError for a longer one; a receiver closes the connection."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A message whose signature is right.

    Attributes:
        origin: the p2p key (32 bytes) that signed it.
        content: what it says, opaque here.
        tags: the lowest and the highest tag that a message with this content can have; None if the content does not limit it.
    """

    origin: bytes
    content: Any = None
    tags: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Incoming:
    """A received message.

    Attributes:
        via: p2p key (32 bytes) of the peer that sent it to us, which is not necessarily its origin.
        opened: the result of the check, see `Transport.check_messages`; None if the transport checks nothing.
    """

    via: bytes
    message: bytes
    opened: Opened | None = None


@dataclass(frozen=True, slots=True)
class TransportStats:
    """Bytes sent and received since the start, counted on our side of the wire, and the connected peers (p2p keys).

    neighbours: the members to which the transport keeps connections, None if to all.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    peers: tuple[bytes, ...] = ()
    neighbours: tuple[bytes, ...] | None = None


@dataclass(frozen=True, slots=True)
class PeerPath:
    """How a connected peer is reached. peer: its p2p key. relayed: through a relay instead of directly.

    rtt: seconds that a packet takes there and back, 0 while it is unknown. bytes_sent, bytes_received: on this connection.
    """

    peer: bytes
    relayed: bool
    rtt: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0


class Transport(AsyncResource):
    """A transport endpoint. It is an async context manager: entering it binds the endpoint.

    Guaranteed: the endpoint communicates only with peers named by `set_peers`; while a message's tag is not expired, the message
    eventually reaches every member that is connected directly or through others, also one that connects late; `receive` delivers
    each distinct message once. Not guaranteed: order, latency, or delivery to a member that never becomes reachable. Queues are
    bounded. A peer that exceeds its share loses its connection; other peers are not affected. With a check, this holds for
    messages of members; other messages are not passed on.

    Tags are integers that grow with time (the client uses the round); `expire(tag)` drops everything with a lower tag.
    """

    @property
    @abstractmethod
    def peer_id(self) -> bytes:
        """Our p2p key, a raw 32-byte Ed25519 public key."""

    @property
    @abstractmethod
    def address(self) -> bytes:
        """The address with which others connect to us; opaque, at most 1024 bytes.

        It may change while the endpoint is open, because the network or the relay does. Whoever publishes it looks now and then.
        """

    @property
    @abstractmethod
    def stats(self) -> TransportStats:
        """Counters for display."""

    @property
    def paths(self) -> tuple[PeerPath, ...]:  # optional: a transport may know nothing of paths
        """How each connected peer is reached now, for display."""
        return ()

    @property
    def problems(self) -> tuple[str, ...]:  # optional: a transport may have nothing to say
        """What keeps it from connecting now, such as a relay that refuses us: sentences for people, with a remedy."""
        return ()

    async def use_relays(self, relays: Sequence[str]) -> None:
        """Use the relays (URLs) that the run names, for peers that cannot be reached directly; replaces earlier ones.

        Returns once we can be reached through one, or after a few seconds. The member's own settings take precedence. No relay
        is contacted but these and those of the settings, whatever addresses of peers name. Calls may overlap; the newest one
        counts, whichever ends last. Raises TransportError.
        """

    def check_messages(self, check: Callable[[bytes], Opened]) -> None:  # optional, for plugins of before
        """Check received messages before they are delivered or forwarded. Called at most once, before `set_peers` has any peers.

        check: opens a message, or raises WireError. It is fast, and is called once for each message that is delivered.

        Optional: without a check, a transport forwards all messages, and the reader opens them. With a check, it guarantees:
        - A message is not delivered or forwarded if it cannot be opened, or if a peer sent it as its own and another key signed
          it. Honest peers send no such messages. A peer that sends several of them loses its connection.
        - A message signed by a key that is not in `set_peers` is delivered. It is forwarded once the key is in `set_peers`,
          because other members may know a new member before us. Only a few such messages are kept.
        - The number of live messages of one origin that are forwarded is bounded.
        - A message's tag is the one that its peer sent, brought between the `tags` that the check returned. So nobody can make
          an old message of another member live again.
        """

    @abstractmethod
    async def set_peers(self, peers: Mapping[bytes, bytes], *, seed: int | None = None) -> None:
        """Replace the members: p2p key -> address (b"" if unknown).

        seed: u64 that all members of an epoch know, drawn when their keys were fixed. With it, a transport may connect each
        member of a large run with some others only, as long as messages and blobs still reach all; it then names these in
        `stats.neighbours`. Without it, each is connected with all.

        Returns at once; connections are made and kept in the background. Peers left out are disconnected. Our own key
        is among them once we are a member; no connection is made to it.
        """

    @abstractmethod
    async def broadcast(self, message: bytes, *, tag: int) -> None:
        """Start sending a message to all members and return.

        It is kept, and sent again to members that lack it, until its tag expires. Raises ValueError above MAX_MESSAGE_BYTES.
        """

    @abstractmethod
    async def receive(self) -> Incoming:
        """Wait for a message from another member. Cancel-safe. A message whose tag expired before it was read may be lost."""

    @abstractmethod
    async def publish(self, blob: bytes, *, tag: int) -> bytes:
        """Offer a blob to members until its tag expires. Returns its SHA-256 (32 bytes)."""

    @abstractmethod
    async def offer(
        self,
        blob_hash: bytes,
        *,
        size: int,
        read: Callable[[], bytes | memoryview],
        tag: int,
        stamp: Callable[[], object | None] = lambda: None,
    ) -> None:
        """Offer members a blob that is stored elsewhere, for instance on disk, until its tag expires. Reads nothing now.

        read: returns the blob's bytes whenever a member asks for them. It may block; it is called in worker threads, in several
        at the same time. It raises OSError or TransportError if it cannot read them. size: number of bytes. stamp: called before
        `read`, in the same way; equal stamps promise equal bytes, and None promises nothing.

        Guaranteed: the bytes are compared with the hash before any of them is sent, except if the stamp equals one with which
        they matched before. If a blob can no longer be read or has changed, the answer is that we do not have it, and the offer
        is withdrawn. If a blob is offered twice, the offer with the higher tag counts, and the later one if the tags are equal.
        Offers are limited in number, not in bytes, and do not displace published or fetched blobs. Bytes that were read stay in
        memory only while they are sent, and their sum is bounded. Raises TransportError if the tag has expired or there are too
        many offers.
        """

    @abstractmethod
    async def fetch(
        self,
        blob_hash: bytes,
        *,
        sources: Sequence[bytes],
        max_bytes: int,
        timeout: float,
        tag: int,
        keep: bool = True,
        wanted_by_all: bool = False,
    ) -> bytes:
        """Get a blob from our own store or offers, else from `sources` (p2p keys, best first), else from any other member.

        The blob is verified against its hash before it is returned. With `keep` it is also stored and offered to others under
        `tag`; without, the caller must keep it. Concurrent fetches of one hash share one transfer. A peer that sent wrong bytes
        is from then on asked last. Raises BlobNotFound after `timeout` seconds or when every member that was asked has answered
        no; BlobRejected if every answer was too large or wrong.

        wanted_by_all: whether all members want the blob now, as they do a round's results. A transport with neighbours then
        gets it from any member that has it, and others from their sources only. Where a transport knows how much has come,
        the timeout of such a fetch begins anew while it makes progress.
        """

    @abstractmethod
    async def expire(self, before: int) -> None:
        """Drop messages, blobs and offers with a tag lower than `before`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close all connections, so that peers notice at once; idempotent."""
