"""A member's transport address, in an account of the member's own. No I/O.

The account is an authorization (program `authorizer`) that the member grants itself. It is never active, and its scope names this
run. Its delegates are the transport key and then the address in pieces. So everybody can compute where the account is, only the
member can write it, one call reads a hundred of them, and no transaction history is searched, which strangers could fill. The
rent comes back when the account is closed. An address counts only if it stands with the transport key that the state has for the
member; anything else is no address.
"""

from __future__ import annotations

from collections.abc import Sequence

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche_backend_solana.layouts import authorizer
from psyche_backend_solana.programs.addresses import AUTHORIZER

MAX_ADDRESS_BYTES = 1024
"""Of an address, as the backend's contract has it."""
DELEGATES_AT_ONCE = 24
"""How many fit a transaction beside the account's creation."""

_KEY_BYTES = 32
_PIECE_BYTES = _KEY_BYTES - 1
_LENGTH_BYTES = 2
MAX_DELEGATES = 1 + -(-(_LENGTH_BYTES + MAX_ADDRESS_BYTES) // _PIECE_BYTES)
DELEGATES = (authorizer.BYTES, MAX_DELEGATES * _KEY_BYTES)
"""Offset and most bytes of the delegates in the account."""


def scope(instance: Pubkey) -> str:
    """The scope of the addresses of a run."""
    return "address:" + bytes(instance).hex()[:24]


def place(signer: Pubkey, instance: Pubkey, *, program: Pubkey = AUTHORIZER) -> Pubkey:
    """Where a member's address lies."""
    return authorizer.address(signer, signer, scope(instance), program=program)


def delegates(p2p: bytes, address: bytes) -> tuple[Pubkey, ...]:
    """What the account names: the transport key, then pieces of the length (u16) and the address, each after its number (u8).

    Raises ValueError for an address over MAX_ADDRESS_BYTES.
    """
    if len(address) > MAX_ADDRESS_BYTES:
        message = f"a transport address has at most {MAX_ADDRESS_BYTES} bytes, got {len(address)}"
        raise ValueError(message)

    content = len(address).to_bytes(_LENGTH_BYTES, "little") + address
    pieces = [content[start : start + _PIECE_BYTES] for start in range(0, len(content), _PIECE_BYTES)]
    numbered = [bytes([number]) + piece.ljust(_PIECE_BYTES, b"\0") for number, piece in enumerate(pieces)]
    return Pubkey(p2p), *map(Pubkey, numbered)


def address_in(content: bytes, p2p: bytes) -> bytes | None:
    """The address in the account's delegates (their bytes), None if it is incomplete or stands with another key."""
    keys = [content[start : start + _KEY_BYTES] for start in range(0, len(content), _KEY_BYTES)]
    if len(keys) < 2 or keys[0] != p2p or any(key[:1] != bytes([number]) for number, key in enumerate(keys[1:])):
        return None

    joined = b"".join(key[1:] for key in keys[1:])
    length = int.from_bytes(joined[:_LENGTH_BYTES], "little")
    address = joined[_LENGTH_BYTES : _LENGTH_BYTES + length]
    return address if length <= MAX_ADDRESS_BYTES and len(address) == length else None


def publication(
    user: Pubkey, instance: Pubkey, *, p2p: bytes, address: bytes, made: bool, program: Pubkey = AUTHORIZER
) -> tuple[tuple[Instruction, ...], ...]:
    """What writes a member's address: instructions for one transaction after the other. Signer: user, who pays the rent.

    made: whether the account is there already. Raises ValueError.
    """
    named = delegates(p2p, address)
    at = place(user, instance, program=program)
    create = authorizer.create(user, user, grantee=user, scope=scope(instance), program=program)
    found: list[tuple[Instruction, ...]] = []
    for start in range(0, len(named), DELEGATES_AT_ONCE):
        part: Sequence[Pubkey] = named[start : start + DELEGATES_AT_ONCE]
        write = authorizer.grantee_update(user, user, authorization=at, add=part, clear=not start, program=program)
        found.append((write,) if start or made else (create, write))
    return tuple(found)
