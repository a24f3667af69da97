"""Contract of a transport: small messages to all epoch members, large blobs by their hash.

Messages are opaque and already signed by their origin (psyche_core.wire.signing), so any member may pass them on. Blobs are named
by the SHA-256 of their bytes, so anybody may serve them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

MAX_MESSAGE_BYTES = 16 * 1024
"""Longest message a transport carries; longer ones are a ValueError here and close the connection there."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message as it arrived. via: p2p key (32 bytes) of the peer that handed it over, not necessarily its origin."""

    via: bytes
    message: bytes


@dataclass(frozen=True, slots=True)
class TransportStats:
    """Totals since start, in bytes on our side of the wire, and peers connected now (p2p keys)."""

    bytes_sent: int = 0
    bytes_received: int = 0
    peers: tuple[bytes, ...] = ()


class Transport(ABC):
    """An endpoint. An async context manager: entering binds it.

    Guaranteed: only peers named by `set_peers` are talked to; while a message's tag is live it reaches every member that is
    connected, directly or through others, at least once in the end, also one that connects late; each distinct message is
    delivered by `receive` once. Not guaranteed: order, latency, or delivery to a member that never becomes reachable.
    Queues are bounded; a peer that exceeds its share loses its connection, nobody else anything.

    Tags are integers that grow with time (the client uses the round); `expire(tag)` forgets all that is older.
    """

    @property
    @abstractmethod
    def peer_id(self) -> bytes:
        """Our p2p key, a raw 32-byte Ed25519 public key."""

    @property
    @abstractmethod
    def address(self) -> bytes:
        """What others need to dial us; opaque, at most 1024 bytes."""

    @property
    @abstractmethod
    def stats(self) -> TransportStats:
        """Counters for people to look at."""

    @abstractmethod
    async def set_peers(self, peers: Mapping[bytes, bytes]) -> None:
        """Replace the members: p2p key -> address (b"" when unknown). Returns at once; connections are made and kept behind.

        Peers left out are disconnected. Our own key in it is ignored.
        """

    @abstractmethod
    async def broadcast(self, message: bytes, *, tag: int) -> None:
        """Start sending a message to all members and return; it is kept and re-sent to who lacks it until its tag expires.

        Raises ValueError above MAX_MESSAGE_BYTES.
        """

    @abstractmethod
    async def receive(self) -> Incoming:
        """Wait for a message from somebody else. Cancel-safe. Messages whose tag expired before they were read may be gone."""

    @abstractmethod
    async def publish(self, blob: bytes, *, tag: int) -> bytes:
        """Offer a blob to members until its tag expires. Returns its SHA-256."""

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
        """Offer members a blob that is kept elsewhere, on disk for instance, until its tag expires. Reads nothing now.

        read: gives the blob's bytes whenever somebody asks for them; it may block and is called in a worker thread, by several
        at once. It raises OSError or TransportError when it cannot. size: how many bytes that are. stamp: called before `read`,
        and like it; equal stamps promise equal bytes, None promises nothing.

        Guaranteed: what is read is compared with the hash before a byte of it leaves, each time but where its stamp is one that
        was found right; who asks for a blob that cannot be read any more, or has become another, is answered that we do not have
        it, and the offer is withdrawn. Of a blob offered twice the offer with the higher tag counts, and of equal tags the later
        one. Offers are limited in number, not in bytes, and take no room from blobs that were published or fetched; what is read
        is held in memory only while it is being sent, and bounded in sum. Raises TransportError when the tag has expired or
        there are too many offers.
        """

    @abstractmethod
    async def fetch(
        self, blob_hash: bytes, *, sources: Sequence[bytes], max_bytes: int, timeout: float, tag: int, keep: bool = True
    ) -> bytes:
        """Get a blob: from our own store or offers, else from `sources` (p2p keys, best first), else from any other member.

        Verified against its hash before it is returned, then, with `keep`, stored and offered to others under `tag`; without,
        handed over and forgotten, for who keeps it elsewhere. Concurrent fetches of one hash share one transfer. A peer that
        gave false bytes is asked after all others from then on. Raises BlobNotFound after `timeout` seconds or when everybody
        asked has answered no, BlobRejected when every answer was too large or false.
        """

    @abstractmethod
    async def expire(self, before: int) -> None:
        """Forget messages, blobs and offers with a tag lower than `before`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close all connections so that peers see it at once; idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
