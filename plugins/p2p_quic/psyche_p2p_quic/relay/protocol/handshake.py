"""The iroh relay protocol's handshake: a client proves its id by signing a nonce that the relay made. Both sides; no I/O.

A signature is over a nonce of this connection, so it proves nothing on another one. PyNaCl verifies it (see
`psyche_core.wire.signing` for the reason); ids of small order are refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from blake3 import blake3
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from psyche_core.errors import WireError
from psyche_p2p_quic.relay.protocol.frames import ID_BYTES, described

NONCE_BYTES = 16
_CHALLENGE, _CLIENT_AUTH, _CONFIRMS, _DENIES = range(4)
_CONTEXT = "iroh-relay handshake v1 challenge signature"
_SIGNATURE_BYTES = 64
_AUTH_BYTES = 1 + ID_BYTES + 1 + _SIGNATURE_BYTES
_LONGEST_REASON = 127

WELCOME = bytes((_CONFIRMS,))
"""The frame that ends a successful handshake."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """The question that a relay asks. nonce: 16 random bytes, new for every connection."""

    nonce: bytes

    def encode(self) -> bytes:
        """Return the frame for the client."""
        return bytes((_CHALLENGE,)) + self.nonce

    @classmethod
    def decode(cls, data: bytes) -> Challenge:
        """Read the relay's challenge, as a client receives it. Raises WireError."""
        if len(data) != 1 + NONCE_BYTES or data[0] != _CHALLENGE:
            raise _not_a_relay(data)

        return cls(data[1:])

    @property
    def message(self) -> bytes:
        """The bytes that the client signs."""
        return blake3(self.nonce, derive_key_context=_CONTEXT).digest()

    def answer(self, seed: bytes) -> bytes:
        """Return the client's frame that proves its id. seed: of its Ed25519 key."""
        key = SigningKey(seed)
        signature = key.sign(self.message).signature
        return bytes((_CLIENT_AUTH,)) + bytes(key.verify_key) + bytes((_SIGNATURE_BYTES,)) + signature

    def proven_id(self, answer: bytes) -> bytes:
        """Return the id that the client's answer proves. Raises WireError."""
        if len(answer) != _AUTH_BYTES or answer[0] != _CLIENT_AUTH or answer[1 + ID_BYTES] != _SIGNATURE_BYTES:
            message = f"expected the answer to the challenge, got {described(answer)}"
            raise WireError(message)

        key = answer[1 : 1 + ID_BYTES]
        try:
            VerifyKey(key).verify(self.message, answer[2 + ID_BYTES :])
        except BadSignatureError as error:
            message = "the signature of the challenge is wrong"
            raise WireError(message) from error

        return key


def denial(reason: str) -> bytes:
    """Return the frame that refuses a client; the connection is closed after it. reason: cut to 127 bytes of UTF-8."""
    text = reason.encode()[:_LONGEST_REASON].decode(errors="ignore").encode()
    return bytes((_DENIES, len(text))) + text


def reason_of_denial(data: bytes) -> str | None:
    """Return why the relay refuses a client that has answered; None if it admits it. Raises WireError for another frame."""
    if data == WELCOME:
        return None
    if len(data) < 2 or data[0] != _DENIES or len(data) != 2 + data[1]:
        raise _not_a_relay(data)

    return data[2:].decode(errors="replace")


def _not_a_relay(data: bytes) -> WireError:
    return WireError(f"this is no iroh relay: got {data[:20].hex() or 'nothing'}")
