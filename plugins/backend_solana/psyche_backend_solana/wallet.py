"""The wallet, which signs transactions and pays for them, and the transport key derived from it.

A wallet is something that can sign (`Signer`), so a device that never reveals its secret can be one, too. Secrets come from a
file in Solana's own format or from the environment, never from the command line, which every user of the machine can read. A
file that others can read is an error. A `repr`, an error or a log line never contains a secret.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Protocol

from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.signature import Signature

from psyche_core.errors import IdentityError
from psyche_core.wire.key_files import read_key_file
from psyche_core.wire.signing import SecretKey

P2P_DOMAIN = b"psyche/solana/p2p-key/2"
"""Domain of the hash that derives a transport key from a wallet and a run."""

_HOW = "make one with `solana-keygen new --outfile FILE` or `psyche solana keygen FILE`"


class Signer(Protocol):
    """Something that signs for a wallet."""

    @property
    def pubkey(self) -> Pubkey:
        """The address of the wallet."""
        ...

    async def sign(self, message: bytes) -> Signature:
        """The signature of a transaction's message; may wait for a user's approval."""
        ...


class Wallet:
    """A wallet whose secret is in this process. It is never printed: repr shows only the public half."""

    __slots__ = ("_keypair",)

    def __init__(self, keypair: Keypair) -> None:
        self._keypair = keypair

    def __repr__(self) -> str:
        return f"Wallet({self.pubkey})"

    def __reduce__(self) -> tuple[object, ...]:
        message = "a wallet is not pickled: that would write its secret"
        raise TypeError(message)

    @property
    def pubkey(self) -> Pubkey:
        """The public half."""
        return self._keypair.pubkey()

    async def sign(self, message: bytes) -> Signature:
        """Sign at once."""
        return self._keypair.sign_message(message)

    def p2p_key(self, run_id: str, instance: bytes) -> SecretKey:
        """Our transport key in a run: always the same for this wallet in this run, and different in every other run.

        instance: 32 bytes, the address of the account that holds the run's state. The key's Ed25519 seed is SHA-256(P2P_DOMAIN,
        length of the run id as one byte, run id, instance, the wallet's 32 secret bytes).
        """
        run = run_id.encode()
        return SecretKey(hashlib.sha256(P2P_DOMAIN + bytes([len(run)]) + run + instance + self._keypair.secret()).digest())

    @classmethod
    def parse(cls, text: str, *, source: str) -> Wallet:
        """Parse a wallet: a JSON array of 64 bytes, or these bytes in base58. source: its origin, for errors.

        Raises IdentityError.
        """
        written = text.strip()
        try:
            keypair = Keypair.from_bytes(_bytes_of(written)) if written.startswith("[") else Keypair.from_base58_string(written)
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            # no `from error`: the cause may quote the secret
            message = f"{source} holds no wallet: expected a JSON array of 64 bytes, or their base58; {_HOW}"
            raise IdentityError(message) from None

        if not any(keypair.secret()):
            message = f"the secret in {source} consists of zeros, so that everybody can sign with it; {_HOW}"
            raise IdentityError(message)

        return cls(keypair)

    @classmethod
    def load(cls, path: Path, *, allow_readable_by_others: bool = False) -> Wallet:
        """Load a wallet file in the format of `solana-keygen`. Raises IdentityError."""
        content = read_key_file(
            path.expanduser(), what="wallet", remedy=_HOW, any_owner=True, others_may_read=allow_readable_by_others
        )
        return cls.parse(content.decode("utf-8", "replace"), source=f"the file {path}")

    @classmethod
    def generate(cls) -> Wallet:
        """A new random wallet."""
        return cls(Keypair())

    def save(self, path: Path) -> None:
        """Write a wallet file that only its owner can read. Raises IdentityError, also if the file exists."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as file:
                json.dump(list(bytes(self._keypair)), file)
        except OSError as error:
            message = f"cannot write the wallet {path}: {error.strerror}"
            raise IdentityError(message) from error


def _bytes_of(array: str) -> bytes:
    numbers = json.loads(array)
    if len(numbers) != 64 or not all(type(number) is int for number in numbers):
        message = "expected 64 numbers"
        raise ValueError(message)

    return bytes(numbers)
