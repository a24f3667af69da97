"""A member's transport address, in an account of the member's own. No I/O.

The account is an authorization (program `authorizer`) that the member grants itself. It is never active, and its scope names
this run. Its delegates are the transport key and then the address in pieces. So everybody can compute the account's address,
only the member can write it, one call reads a hundred of them, and no transaction history, which anybody could fill, is
searched. The rent is returned when the account is closed. An address is valid only if it is stored with the transport key that
the state has for the member; anything else is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche_backend_solana.layouts import authorizer
from psyche_backend_solana.programs.addresses import AUTHORIZER

MAX_ADDRESS_BYTES = 1024
"""Maximum length of an address, from the backend's contract."""
DELEGATES_AT_ONCE = 24
"""Number of delegates that fit into a transaction together with the account's creation."""

_KEY_BYTES = 32
_PIECE_BYTES = _KEY_BYTES - 1
_LENGTH_BYTES = 2
MAX_DELEGATES = 1 + -(-(_LENGTH_BYTES + MAX_ADDRESS_BYTES) // _PIECE_BYTES)
DELEGATES = (authorizer.BYTES, MAX_DELEGATES * _KEY_BYTES)
"""Offset and maximum size of the delegates in the account."""


def scope(instance: Pubkey) -> str:
    """The scope of a run's addresses."""
    return "address:" + bytes(instance).hex()[:24]


def place(signer: Pubkey, instance: Pubkey, *, program: Pubkey = AUTHORIZER) -> Pubkey:
    """The account with a member's address."""
    return authorizer.address(signer, signer, scope(instance), program=program)


def delegates(p2p: bytes, address: bytes) -> tuple[Pubkey, ...]:
    """The account's delegates: the transport key, then the length (u16) and the address in pieces, each after its number (u8).

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
    """The address in the account's delegates (their bytes), None if it is incomplete or stored with another key."""
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
    """The instructions that write a member's address, per transaction, in order. Signer: user, who pays the rent.

    made: whether the account exists already. Raises ValueError.
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
