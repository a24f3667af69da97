"""Request and answer of a blob stream: the bytes before the blob itself. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from psyche_core.errors import WireError
from psyche_p2p_quic.connections.control_frames import VERSION

BLOB_REQUEST_BYTES = 41
BLOB_HEAD_BYTES = 9


@dataclass(frozen=True, slots=True)
class BlobRequest:
    """A request, 41 bytes: version byte, hash (32 bytes), most bytes wanted (u64 big-endian)."""

    blob_hash: bytes
    max_bytes: int

    def encode(self) -> bytes:
        """Return the request's bytes."""
        return bytes((VERSION,)) + self.blob_hash + self.max_bytes.to_bytes(8, "big")

    @classmethod
    def decode(cls, data: bytes) -> BlobRequest:
        """Read a request. Raises WireError."""
        if len(data) != BLOB_REQUEST_BYTES:
            message = f"a blob request has {BLOB_REQUEST_BYTES} bytes, got {len(data)}"
            raise WireError(message)

        if data[0] != VERSION:
            message = f"a blob request of version {data[0]} came to a program of version {VERSION}; update the older one"
            raise WireError(message)

        return cls(data[1:33], int.from_bytes(data[33:], "big"))


@dataclass(frozen=True, slots=True)
class BlobHead:
    """The head of an answer, 9 bytes: found flag, length (u64 big-endian).

    The body follows unless it is longer than requested.
    """

    found: bool
    length: int

    def encode(self) -> bytes:
        """Return the head's bytes."""
        return bytes((self.found,)) + self.length.to_bytes(8, "big")

    @classmethod
    def decode(cls, data: bytes) -> BlobHead:
        """Read a head. Raises WireError."""
        if len(data) != BLOB_HEAD_BYTES or data[0] > 1:
            message = f"a blob answer begins with {BLOB_HEAD_BYTES} bytes, the first 0 or 1"
            raise WireError(message)

        return cls(data[0] == 1, int.from_bytes(data[1:], "big"))
