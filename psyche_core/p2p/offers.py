"""Blobs that are stored elsewhere and offered from there: how to read them, and until when they are offered.

The bytes read are compared with their hash, so a changed file is noticed before any byte of it is served. While the owner's stamp
says that nothing has changed, the hash is not computed again, since many peers may ask for the same blob. Of two offers of a blob
the one with the higher tag counts, because the data behind the lower one may be deleted first. Offers over the limit are refused;
they do not replace others. The server of a blob calls `checked` in a worker thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from psyche_core.errors import TransportError


@dataclass(slots=True, eq=False)
class Offer:
    """size: bytes of the blob. read: gives them; may block, may raise OSError or TransportError. tag: when it expires.

    stamp: equal stamps promise equal bytes, None promises nothing; may raise as `read`. right_at: the stamp of bytes that had the
    hash.
    """

    blob_hash: bytes
    size: int
    read: Callable[[], bytes | memoryview]
    tag: int
    stamp: Callable[[], object | None] = lambda: None
    right_at: object | None = None

    def checked(self) -> bytes | memoryview | None:
        """The blob, None when it cannot be read any more or is another now. Blocks."""
        try:
            stamp = self.stamp()  # before the bytes: what changes in between is another stamp next time
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
    """max_offers: how many there are at most; 65,536 pieces of 4 MiB are a model of 6.9 * 10^10 float32 values."""

    def __init__(self, *, max_offers: int = 65_536) -> None:
        self._max_offers = max_offers
        self._offers: dict[bytes, Offer] = {}
        self._expired_before: int | None = None

    def __len__(self) -> int:
        return len(self._offers)

    def put(self, offer: Offer) -> bool:
        """Take an offer in; False when its tag has expired or there are too many."""
        if self._expired_before is not None and offer.tag < self._expired_before:
            return False

        known = self._offers.get(offer.blob_hash)
        if known is None and len(self._offers) >= self._max_offers:
            return False

        if known is None or offer.tag >= known.tag:
            self._offers[offer.blob_hash] = offer
        return True

    def get(self, blob_hash: bytes) -> Offer | None:
        """The offer of a blob, None when there is none."""
        return self._offers.get(blob_hash)

    def withdraw(self, offer: Offer) -> None:
        """An offer that turned out to be void is gone, unless another has taken its place."""
        if self._offers.get(offer.blob_hash) is offer:
            del self._offers[offer.blob_hash]

    def expire(self, before: int) -> None:
        """Drop offers with a tag lower than `before`, and take none from now on."""
        if self._expired_before is None or before > self._expired_before:
            self._expired_before = before
        self._offers = {blob_hash: offer for blob_hash, offer in self._offers.items() if offer.tag >= before}
