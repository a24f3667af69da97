"""Blobs that are kept elsewhere and offered from there: what to read, and until when.

Decided here: what is read is compared with its hash each time, so a file that has changed is noticed before a byte of it is
served; the offer with the higher tag counts, since what is behind a lower one may go first; more offers than allowed are refused
and push nothing out. Refuses to read by itself: who serves calls `checked` in a worker thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from psyche_core.errors import TransportError


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """size: bytes of the blob. read: gives them; may block, may raise OSError or TransportError. tag: when it expires."""

    blob_hash: bytes
    size: int
    read: Callable[[], bytes | memoryview]
    tag: int

    def checked(self) -> bytes | memoryview | None:
        """The blob, None when it cannot be read any more or is another now. Blocks."""
        try:
            blob = self.read()
        except (OSError, TransportError):
            return None

        return blob if len(blob) == self.size and hashlib.sha256(blob).digest() == self.blob_hash else None


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
