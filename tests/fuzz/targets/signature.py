"""Keys and signatures as strangers choose them: true for the owner's own signature, else false, never an exception."""

from __future__ import annotations

from psyche_core.wire.signing import SecretKey, verify

DOCUMENTED: tuple[type[Exception], ...] = ()
MAX_BYTES = 512
MEMORY = (16, 65_536)

_KEY = SecretKey(b"k" * 32)
_BODY = b"what was signed"
_SIGNED = _KEY.public + _KEY.sign("commitment", b"run", _BODY) + _BODY
_IDENTITY = b"\1" + bytes(31)
"""The group's neutral element: with it as key a lax verifier accepts forgeries."""


def seeds() -> list[bytes]:
    return [_SIGNED, _IDENTITY + _IDENTITY + bytes(32) + _BODY, bytes(96), b""]


def TARGET(data: bytes) -> None:
    accepted = verify(data[:32], data[32:96], domain="commitment", run=b"run", body=data[96:])
    assert accepted == (data == _SIGNED)
