"""Blobs by the SHA-256 of their bytes, each kept until its tag expires, within limits of number and bytes.

When space is needed, fetched blobs are dropped before our own blobs, then lower tags before higher ones, then older blobs before
newer ones. `put` checks no hashes: the caller has just computed or checked the hash (`sha256`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import anyio.to_thread

from psyche_core.errors import TransportError

HASH_BYTES = 32
LARGE_BLOB_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class _Kept:
    blob: bytes
    tag: int
    own: bool


class BlobStore:
    """Blobs in memory. max_blobs: maximum number of blobs. max_bytes: maximum number of their bytes together."""

    def __init__(self, *, max_blobs: int = 16_384, max_bytes: int = 2 * 2**30) -> None:
        self._max_blobs = max_blobs
        self._max_bytes = max_bytes
        self._kept: dict[bytes, _Kept] = {}
        self._bytes = 0
        self._expired_before: int | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, blob_hash: object) -> bool:
        return blob_hash in self._kept

    @property
    def hashes(self) -> tuple[bytes, ...]:
        """The hashes of all blobs."""
        return tuple(self._kept)

    @property
    def total_bytes(self) -> int:
        """Number of bytes of all blobs."""
        return self._bytes

    def put(self, blob_hash: bytes, blob: bytes, *, tag: int, own: bool) -> bool:
        """Keep a blob. Returns False if its tag has expired or the limits leave no room for it.

        blob_hash: SHA-256 of the blob, 32 bytes. own: True for a blob of our own, False for a fetched one. If the blob is already
        here, the higher tag counts, and it is our own if one of the calls said so.
        """
        if self._expired_before is not None and tag < self._expired_before:
            return False

        before = self._kept.pop(blob_hash, None)
        if before is not None:
            self._bytes -= len(before.blob)
            tag, own = max(tag, before.tag), own or before.own
        self._kept[blob_hash] = _Kept(blob, tag, own)
        self._bytes += len(blob)
        while len(self._kept) > self._max_blobs or self._bytes > self._max_bytes:
            self._drop(min(self._kept, key=self._rank))

        return blob_hash in self._kept

    async def publish(self, blob: bytes, *, tag: int) -> bytes:
        """Keep a blob of our own; returns its SHA-256. Raises TransportError if its tag has expired or there is no room."""
        blob_hash = await sha256(blob)
        if not self.put(blob_hash, blob, tag=tag, own=True):
            message = f"a blob of {len(blob)} bytes cannot be kept: its tag {tag} has expired or the store is full"
            raise TransportError(message)

        return blob_hash

    def get(self, blob_hash: bytes) -> bytes | None:
        """Return the blob, or None if it is not here."""
        kept = self._kept.get(blob_hash)
        return None if kept is None else kept.blob

    def touch(self, blob_hash: bytes, *, tag: int) -> None:
        """Keep a blob at least until `tag` expires. Does nothing if the blob is not here."""
        kept = self._kept.get(blob_hash)
        if kept is not None and kept.tag < tag:
            self._kept[blob_hash] = _Kept(kept.blob, tag, kept.own)

    def expire(self, before: int) -> None:
        """Drop blobs with a tag lower than `before`, and reject such blobs from now on."""
        if self._expired_before is None or before > self._expired_before:
            self._expired_before = before
        for blob_hash in [name for name, kept in self._kept.items() if kept.tag < before]:
            self._drop(blob_hash)

    def _rank(self, blob_hash: bytes) -> tuple[bool, int]:
        kept = self._kept[blob_hash]
        return kept.own, kept.tag

    def _drop(self, blob_hash: bytes) -> None:
        self._bytes -= len(self._kept.pop(blob_hash).blob)


async def sha256(blob: bytes) -> bytes:
    """Return the SHA-256 of a blob (32 bytes), computed in a worker thread if the blob is large."""
    if len(blob) < LARGE_BLOB_BYTES:
        return hashlib.sha256(blob).digest()

    return await anyio.to_thread.run_sync(lambda: hashlib.sha256(blob).digest())
