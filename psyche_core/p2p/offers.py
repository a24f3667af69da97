"""Blobs that are served directly from where they are stored: how to read them, and until when they are offered.

The bytes read are compared with their hash, so a changed file is noticed before any byte of it is served. As long as the owner's
stamp shows that nothing has changed, the hash is not computed again, because many peers may ask for the same blob. Of two offers
of a blob, the one with the higher tag is kept, because the data of the other one may be deleted earlier. Offers over the limit
are rejected; they do not replace others. The transport that serves a blob calls `checked` in a worker thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from psyche_core.errors import TransportError


@dataclass(slots=True, eq=False)
class Offer:
    """One offered blob.

    blob_hash: SHA-256 of the blob, 32 bytes. size: of the blob in bytes. read: returns the blob; may block and may raise OSError
    or TransportError. tag: the offer expires when a higher tag is given to `expire`. stamp: equal stamps mean equal bytes, None
    means unknown; may raise the same errors as `read`. right_at: the stamp at which the bytes last had the right hash.
    """

    blob_hash: bytes
    size: int
    read: Callable[[], bytes | memoryview]
    tag: int
    stamp: Callable[[], object | None] = lambda: None
    right_at: object | None = None

    def checked(self) -> bytes | memoryview | None:
        """Return the blob, or None if it cannot be read any more or has changed. Blocks."""
        try:
            stamp = self.stamp()  # before the bytes are read: a change in between then gives another stamp next time
            blob = self.read()
        except (OSError, TransportError):
            return None

        if len(blob) != self.size:
            return None
        if stamp is None or stamp != self.right_at:
            if hashlib.sha256(blob).digest() != self.blob_hash:
                return None
            self.right_at = stamp
        return blob


class OfferBook:
    """The offers of one transport, by hash.

    max_offers: maximum number of offers; 65,536 pieces of 4 MiB are a model of 6.9 * 10^10 float32 values.
    """

    def __init__(self, *, max_offers: int = 65_536) -> None:
        self._max_offers = max_offers
        self._offers: dict[bytes, Offer] = {}
        self._expired_before: int | None = None

    def __len__(self) -> int:
        return len(self._offers)

    def add(self, offer: Offer) -> None:
        """Add an offer. Raises TransportError if its tag has expired or there are too many offers."""
        known = self._offers.get(offer.blob_hash)
        expired = self._expired_before is not None and offer.tag < self._expired_before
        if expired or (known is None and len(self._offers) >= self._max_offers):
            message = (
                f"a blob of {offer.size} bytes cannot be offered: its tag {offer.tag} has expired or there are too many offers"
            )
            raise TransportError(message)

        if known is None or offer.tag >= known.tag:
            self._offers[offer.blob_hash] = offer

    def get(self, blob_hash: bytes) -> Offer | None:
        """Return the offer of a blob, or None if there is none."""
        return self._offers.get(blob_hash)

    def withdraw(self, offer: Offer) -> None:
        """Remove an offer whose blob cannot be served, unless another offer has replaced it."""
        if self._offers.get(offer.blob_hash) is offer:
            del self._offers[offer.blob_hash]

    def expire(self, before: int) -> None:
        """Remove offers with a tag lower than `before`, and reject such offers from now on."""
        if self._expired_before is None or before > self._expired_before:
            self._expired_before = before
        self._offers = {blob_hash: offer for blob_hash, offer in self._offers.items() if offer.tag >= before}
