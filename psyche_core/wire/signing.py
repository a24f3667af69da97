"""Ed25519 keys and domain-separated signatures.

Every signature covers a domain tag and the run's instance, an id that is new for every run. So a signature for one purpose or run
is not valid for another one, even if a run is created again under the same name (the reference implementation signs only a hash).
PyNaCl verifies strictly. `cryptography` accepts forged messages for the identity key (the public key that is the neutral element
of the curve) and must not be used to verify peers. Key files contain the 32 raw seed bytes and are written with mode 0600.
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
    """Return the bytes to sign: prefix, domain, the run's instance, body. They include lengths, so two inputs never collide."""
    tag = domain.encode()
    return b"".join((_PREFIX, bytes((len(tag),)), tag, bytes((len(run),)), run, body))


class SecretKey:
    """A client's Ed25519 key pair. seed: 32 bytes. Raises IdentityError for another length.

    public: the 32 bytes of the public key. `repr` shows only the public key.
    """

    __slots__ = ("_key", "public")

    def __init__(self, seed: bytes) -> None:
        if len(seed) != 32:
            message = f"an identity key is 32 raw bytes, got {len(seed)}"
            raise IdentityError(message)

        self._key = SigningKey(seed)
        self.public: bytes = bytes(self._key.verify_key)

    def __repr__(self) -> str:
        return f"SecretKey(public={self.public.hex()})"

    @property
    def seed(self) -> bytes:
        """The 32 secret bytes, for libraries that create signatures themselves (QUIC)."""
        return bytes(self._key)

    @classmethod
    def generate(cls) -> SecretKey:
        """Return a new random key."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def load(cls, path: Path) -> SecretKey:
        """Read a key file, which must contain 32 raw bytes or 64 hex digits and be readable only by its owner.

        Raises IdentityError.
        """
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

        return cls(_not_zero(content, f"the identity key {path}"))

    @classmethod
    def parse(cls, text: str, *, source: str) -> SecretKey:
        """Return the key written as 64 hex digits. source: where the text comes from, for errors, which never show it.

        Raises IdentityError.
        """
        try:
            seed = bytes.fromhex(text.strip())
        except ValueError:
            seed = b""
        if len(seed) != 32:
            message = f"{source} holds no identity key: expected 64 hex digits (`openssl rand -hex 32`)"
            raise IdentityError(message)

        return cls(_not_zero(seed, f"the identity key in {source}"))

    def save(self, path: Path) -> None:
        """Write the key file, readable only by its owner. Raises IdentityError, also if the file already exists."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(self.seed)
        except OSError as error:
            message = f"cannot write the identity key {path}: {error.strerror}"
            raise IdentityError(message) from error

    def sign(self, domain: str, run: bytes, body: bytes) -> bytes:
        """Return the 64-byte signature over domain, the run's instance `run` and body."""
        return bytes(self._key.sign(framed(domain, run, body)).signature)


def _not_zero(seed: bytes, what: str) -> bytes:
    """The seed. Raises IdentityError for one of zeros, as from a file that was made and never filled: everybody has that key."""
    if not any(seed):
        message = f"{what} consists of zeros, so that everybody can sign with it; make another with `openssl rand 32`"
        raise IdentityError(message)

    return seed


def verify(public: bytes, signature: bytes, *, domain: str, run: bytes, body: bytes) -> bool:
    """Whether `signature` is valid for the public key and these values.

    Returns False for malformed keys and signatures and never raises.
    """
    try:
        VerifyKey(public).verify(framed(domain, run, body), signature)
    except (BadSignatureError, ValueError, TypeError):
        return False

    return True
