"""Decodes transactions as clients send them, and lists the accounts they name.

As on a real validator, a bad encoding, more bytes than a packet, or a message with indices out of range is an error before the
chain is read. Addresses from lookup tables are read from the tables' accounts here, because LiteSVM does not return which ones
it used.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass

from solders.account import Account
from solders.message import Message, MessageV0, MessageV1
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from psyche_backend_solana.localnet import base58
from psyche_backend_solana.localnet.rpc_error import RpcError, invalid
from psyche_backend_solana.localnet.settings import PACKET_BYTES

AnyMessage = Message | MessageV0 | MessageV1

_TABLE_HEADER = 56
_ENCODED_LIMITS = {"base58": 1683, "base64": 1644}


def decode_bytes(text: str, encoding: str, *, kind: str) -> bytes:
    """Decode a client's bytes, at most one packet. kind: "transaction" or "message", for the error message. Raises RpcError."""
    limit = _ENCODED_LIMITS.get(encoding)
    if limit is None:
        message = f"unsupported encoding: {encoding}. Supported encodings: base58, base64"
        raise invalid(message)

    if len(text) > limit:
        message = f"{encoding} encoded {kind} too large: {len(text)} bytes (max: encoded/raw {limit}/{PACKET_BYTES})"
        raise invalid(message)

    try:
        data = base58.decode(text) if encoding == "base58" else base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as error:
        message = f"invalid {encoding} encoding: {error}"
        raise invalid(message) from error

    if len(data) > PACKET_BYTES:
        message = f"decoded {kind} too large: {len(data)} bytes (max: {PACKET_BYTES} bytes)"
        raise invalid(message)

    return data


def decode_transaction(data: bytes) -> VersionedTransaction:
    """A legacy or version 0 transaction with valid indices. Raises RpcError."""
    try:
        transaction = VersionedTransaction.from_bytes(data)
    except Exception as error:  # solders has one exception per cause
        message = f"failed to deserialize a transaction of {len(data)} bytes: {error}"
        raise invalid(message) from error

    if not isinstance(transaction.message, Message | MessageV0):
        message = "transactions of version 1 are not supported; send a legacy or version 0 one"
        raise invalid(message)

    try:
        transaction.sanitize()
    except Exception as error:  # see above
        message = f"invalid transaction: {error}"
        raise invalid(message) from error

    return transaction


def signatures_match(transaction: VersionedTransaction) -> bool:
    """Whether every signer signed this message."""
    return all(transaction.verify_with_results())


def read_table(account: Account | None) -> list[Pubkey]:
    """The addresses in a lookup table; empty if it is not one."""
    if account is None:
        return []

    entries = account.data[_TABLE_HEADER:]
    return [Pubkey.from_bytes(entries[at : at + 32]) for at in range(0, len(entries) - len(entries) % 32, 32)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountKeys:
    """The accounts of a transaction, in the order of its indices: static, loaded writable, loaded readonly."""

    static: tuple[Pubkey, ...]
    loaded_writable: tuple[Pubkey, ...] = ()
    loaded_readonly: tuple[Pubkey, ...] = ()
    writable: tuple[Pubkey, ...] = ()

    @property
    def all(self) -> tuple[Pubkey, ...]:
        """Every account."""
        return self.static + self.loaded_writable + self.loaded_readonly


def account_keys(message: AnyMessage, read: Callable[[Pubkey], Account | None]) -> AccountKeys:
    """The accounts that a message names. read: returns an account of the chain.

    Raises RpcError for an index out of a lookup table.
    """
    static = tuple(message.account_keys)
    header = message.header
    signers = header.num_required_signatures
    writable = [
        key
        for index, key in enumerate(static)
        if index < signers - header.num_readonly_signed_accounts
        or signers <= index < len(static) - header.num_readonly_unsigned_accounts
    ]
    loaded_writable: list[Pubkey] = []
    loaded_readonly: list[Pubkey] = []
    for lookup in message.address_table_lookups if isinstance(message, MessageV0) else ():
        table = read_table(read(lookup.account_key))
        for indexes, loaded in ((lookup.writable_indexes, loaded_writable), (lookup.readonly_indexes, loaded_readonly)):
            for index in bytes(indexes):
                if index >= len(table):
                    message_text = f"lookup table {lookup.account_key} has {len(table)} addresses, the transaction names {index}"
                    raise RpcError(-32602, message_text)

                loaded.append(table[index])
    return AccountKeys(
        static=static,
        loaded_writable=tuple(loaded_writable),
        loaded_readonly=tuple(loaded_readonly),
        writable=(*writable, *loaded_writable),
    )
