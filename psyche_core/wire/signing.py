"""Ed25519 keys and domain-separated signatures.

Every signature covers a domain tag and the run's instance, an id that is new for every run. So nothing signed for one purpose or
run is valid for another, also not for a run made anew under the same name (the reference signed a bare hash). PyNaCl verifies
strictly; `cryptography` accepts forged messages for the identity key and must not be used to verify peers. Key files hold the 32
raw seed bytes and are written with mode 0600.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from psyche_core.errors import IdentityError
from psyche_core.wire.key_files import MAX_KEY_BYTES, read_key_file

_PREFIX = b"psyche/1"


def framed(domain: str, run: bytes, body: bytes) -> bytes:
    """The bytes signed: prefix, domain, the run's instance, body. Lengths are in it, so no two inputs collide."""
    tag = domain.encode()
    return b"".join((_PREFIX, bytes((len(tag),)), tag, bytes((len(run),)), run, body))


class SecretKey:
    """A client's Ed25519 key. Never printed: repr shows the public half only."""

    __slots__ = ("_key", "public")

    def __init__(self, seed: bytes) -> None:
        if len(seed) != 32:
            message = f"an identity key is 32 raw bytes, got {len(seed)}"
            raise IdentityError(message)

        self._key = SigningKey(seed)
        self.public = bytes(self._key.verify_key)

    def __repr__(self) -> str:
        return f"SecretKey(public={self.public.hex()})"

    @property
    def seed(self) -> bytes:
        """The 32 secret bytes, for libraries that sign by themselves (QUIC)."""
        return bytes(self._key)

    @classmethod
    def generate(cls) -> SecretKey:
        """A new random key."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def load(cls, path: Path) -> SecretKey:
        """Read a key file: 32 raw bytes, or the same as 64 hex digits, that only its owner can read. Raises IdentityError."""
        remedy = "make one with `openssl rand 32 > me.key && chmod 600 me.key`"
        content = read_key_file(path, what="identity key", remedy=remedy)
        length = len(content)
        if length != 32:
            try:
                content = bytes.fromhex(content.decode("ascii").strip())
            except ValueError:
                content = b""
        if len(content) != 32:
            got = f"got {length} bytes" if length < MAX_KEY_BYTES else f"got {MAX_KEY_BYTES} bytes or more"
            message = (
                f"the identity key {path} must hold 32 raw bytes or 64 hex digits, {got}; "
                "make another with `openssl rand 32 > me.key && chmod 600 me.key`"
            )
            raise IdentityError(message)

        return cls(content)

    def save(self, path: Path) -> None:
        """Write the key file, readable by its owner only; refuses to overwrite. Raises IdentityError."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(self.seed)
        except OSError as error:
            message = f"cannot write the identity key {path}: {error.strerror}"
            raise IdentityError(message) from error

    def sign(self, domain: str, run: bytes, body: bytes) -> bytes:
        """64-byte signature over domain, instance of the run and body."""
        return bytes(self._key.sign(framed(domain, run, body)).signature)


def verify(public: bytes, signature: bytes, *, domain: str, run: bytes, body: bytes) -> bool:
    """Whether `signature` is that key's over these. False for malformed keys and signatures, never an exception."""
    try:
        VerifyKey(public).verify(framed(domain, run, body), signature)
    except (BadSignatureError, ValueError, TypeError):
        return False

    return True
