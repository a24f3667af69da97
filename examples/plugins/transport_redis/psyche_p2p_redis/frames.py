"""What members write to each other, as signed bytes, and the names of keys in Redis.

    hello, to the door of a member     [version, from, nonce, signature]
    frame, in a queue of one link      64 bytes of signature, then the body

A hello offers a nonce. Two hellos make a link: all its frames are signed over both nonces, their number and the body. So a frame
counts only in its link and at its place: one that is missing, repeated, changed or of somebody else is noticed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from psyche_core.errors import WireError
from psyche_core.interfaces.transport import MAX_MESSAGE_BYTES
from psyche_core.wire.codec import decode, encode
from psyche_core.wire.signing import SecretKey, verify

VERSION = 1
NONCE_BYTES = 16
SIGNATURE_BYTES = 64
MAX_HELLO_BYTES = 256
MAX_FRAME_BYTES = MAX_MESSAGE_BYTES + 256
_HELLO, _FRAME = "redis hello", "redis frame"


@dataclass(frozen=True, slots=True)
class Names:
    """Names of keys. prefix: of all; run_id: of the run, whose members meet here and see nothing of other runs."""

    prefix: str
    run_id: str

    @property
    def run(self) -> bytes:
        """What signatures are for."""
        return hashlib.sha256(self.run_id.encode()).digest()

    def _of(self, *parts: str) -> str:
        return ":".join((self.prefix, self.run[:8].hex(), *parts))

    def door(self, member: bytes) -> str:
        """List of hellos to a member."""
        return self._of("door", member.hex())

    def queue(self, writer: bytes, reader: bytes) -> str:
        """List of frames in one direction of a link. writer, reader: the nonces."""
        return self._of("queue", writer.hex(), reader.hex())

    def part(self, owner: bytes, blob_hash: bytes, number: int) -> str:
        """A piece of a blob that `owner` has put there."""
        return self._of("blob", owner.hex(), blob_hash.hex(), str(number))

    def probe(self, member: bytes) -> str:
        """Written to see whether Redis takes writes."""
        return self._of("probe", member.hex())


def hello(key: SecretKey, run: bytes, *, to: bytes, nonce: bytes) -> bytes:
    """What we leave at a member's door. to: its key. nonce: ours for the next link with it."""
    return encode([VERSION, key.public, nonce, key.sign(_HELLO, run, to + nonce)])


def read_hello(data: bytes, run: bytes, *, own: bytes) -> tuple[bytes, bytes]:
    """Return who said it, and its nonce. own: our key, to which it must have been said. Raises WireError."""
    match decode(data, max_bytes=MAX_HELLO_BYTES, max_depth=1):
        case [int() as version, bytes() as peer, bytes() as nonce, bytes() as signature] if (
            version == VERSION and len(nonce) == NONCE_BYTES
        ):
            pass
        case _:
            message = f"expected a hello of version {VERSION}"
            raise WireError(message)
    if not verify(peer, signature, domain=_HELLO, run=run, body=own + nonce):
        message = "a hello was not signed by whom it names, or not for us and this run"
        raise WireError(message)
    return peer, nonce


@dataclass(frozen=True, slots=True)
class LinkKeys:
    """Signs and opens the frames of one link. peer: the other one's key. ours, theirs: the nonces."""

    run: bytes
    key: SecretKey
    peer: bytes
    ours: bytes
    theirs: bytes

    def seal(self, number: int, body: bytes) -> bytes:
        """A frame of ours."""
        return self.key.sign(_FRAME, self.run, self.ours + self.theirs + number.to_bytes(8, "big") + body) + body

    def open(self, number: int, frame: bytes) -> bytes:
        """Return the body of a frame of the other one. Raises WireError; nothing is decoded before its size and signature fit."""
        if not SIGNATURE_BYTES < len(frame) <= MAX_FRAME_BYTES:
            message = f"a frame has {SIGNATURE_BYTES + 1} to {MAX_FRAME_BYTES} bytes, got {len(frame)}"
            raise WireError(message)
        signature, body = frame[:SIGNATURE_BYTES], frame[SIGNATURE_BYTES:]
        signed = self.theirs + self.ours + number.to_bytes(8, "big") + body
        if not verify(self.peer, signature, domain=_FRAME, run=self.run, body=signed):
            message = f"frame {number} is not the one that the peer signed: some are lost or repeated, or somebody else wrote it"
            raise WireError(message)
        return body
