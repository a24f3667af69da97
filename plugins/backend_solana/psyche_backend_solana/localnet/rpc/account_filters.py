"""Filters of getProgramAccounts and programSubscribe: dataSize, memcmp, tokenAccountState."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable

from psyche_backend_solana.localnet import base58
from psyche_backend_solana.localnet.ledger.tokens import ACCOUNT_BYTES
from psyche_backend_solana.localnet.rpc.parameters import read_integer, shown
from psyche_backend_solana.localnet.rpc_error import RpcError, invalid

_MAX_FILTERS = 4
_MAX_BYTES = 128
_MAX_TEXT = {"base58": 175, "base64": 172}
_STATE_AT = 108

Filter = Callable[[bytes], bool]


def read_filters(value: object) -> Filter:
    """A function that checks whether an account's data passes all filters. Raises RpcError for an invalid list of filters."""
    if value is None:
        return lambda _: True

    if not isinstance(value, list):
        message = f"filters is a list, got {shown(value)}"
        raise invalid(message)

    if len(value) > _MAX_FILTERS:
        message = f"Too many filters provided; max {_MAX_FILTERS}"
        raise invalid(message)

    filters = [_read_filter(one) for one in value]
    return lambda data: all(one(data) for one in filters)


def _read_filter(value: object) -> Filter:
    match value:
        case {"dataSize": size}:
            wanted = read_integer(size, "dataSize")
            return lambda data: len(data) == wanted
        case {"memcmp": dict() as comparison}:
            offset = read_integer(comparison.get("offset"), "memcmp.offset")
            part = _read_bytes(comparison)
            return lambda data: data[offset : offset + len(part)] == part
        case "tokenAccountState" | {"tokenAccountState": _}:
            return lambda data: len(data) == ACCOUNT_BYTES and data[_STATE_AT] != 0
        case int() if not isinstance(value, bool):
            wanted = read_integer(value, "dataSize")
            return lambda data: len(data) == wanted
    message = f"a filter is one of dataSize, memcmp, tokenAccountState, got {shown(value)}"
    raise invalid(message)


def _read_bytes(comparison: dict[str, object]) -> bytes:
    value, encoding = comparison.get("bytes"), comparison.get("encoding") or "base58"
    if isinstance(value, list):
        data = bytes(read_integer(byte, "memcmp.bytes", high=255) for byte in value[: _MAX_BYTES + 1])
    elif isinstance(value, str) and encoding in _MAX_TEXT:
        if len(value) > _MAX_TEXT[str(encoding)]:
            message = "encoded binary data should be less than 129 bytes"
            raise invalid(message)

        try:
            data = base58.decode(value) if encoding == "base58" else base64.b64decode(value, validate=True)
        except (ValueError, binascii.Error) as error:
            message = f"memcmp.bytes is not {encoding}: {error}"
            raise invalid(message) from error
    else:
        message = f"memcmp.bytes is a base58 or base64 text or a list of bytes, got {shown(value)}"
        raise invalid(message)

    if len(data) > _MAX_BYTES:
        raise RpcError(-32602, "Invalid params: encoded binary data should be less than 129 bytes")

    return data
