"""The header that every account of our programs has, and fixed-size text fields.

Owner, size, magic and version are checked in this order, as the programs do. Any mismatch raises WireError.
"""

from __future__ import annotations

import struct

from solders.account import Account
from solders.pubkey import Pubkey

from psyche_core.errors import WireError

BYTES = 12


def content(account: Account, program: Pubkey, *, magic: bytes, version: int, size: int, what: str) -> bytes:
    """The data of an account, after checks of owner, size (at least `size` bytes), magic and version. Raises WireError."""
    data = bytes(account.data)
    if account.owner != program:
        message = f"this account is no {what}: it belongs to {account.owner}, not to {program}"
        raise WireError(message)
    if len(data) < size:
        message = f"this account is no {what}: it has {len(data)} bytes, expected {size}"
        raise WireError(message)
    if data[:8] != magic:
        message = f"this account is no {what}: it begins with {data[:8]!r}, expected {magic!r}"
        raise WireError(message)
    (found,) = struct.unpack_from("<I", data, 8)
    if found != version:
        message = f"this {what} is of version {found}; this release reads version {version}"
        raise WireError(message)
    return data


def key(data: bytes, offset: int) -> Pubkey:
    """The 32 bytes at an offset, as an address."""
    return Pubkey(data[offset : offset + 32])


def number(data: bytes, offset: int) -> int:
    """The u64 at an offset."""
    return int.from_bytes(data[offset : offset + 8], "little")


def text(value: str, size: int, what: str) -> bytes:
    """A text as UTF-8, padded with zeros to `size` bytes. Raises ValueError if it does not fit or contains NUL."""
    encoded = value.encode()
    if len(encoded) > size or b"\0" in encoded:
        message = f"{what} {value!r} has {len(encoded)} bytes; at most {size} fit, and none may be NUL"
        raise ValueError(message)
    return encoded.ljust(size, b"\0")
