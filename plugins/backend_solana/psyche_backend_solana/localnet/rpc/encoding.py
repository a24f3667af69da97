"""Accounts as JSON: base58, base64, base64+zstd and jsonParsed, whole or a slice.

jsonParsed parses SPL Token's accounts and mints and gives everything else in base64, as a real validator does with programs that
it cannot parse. zstd needs Python 3.14 or one of `backports.zstd` and `zstandard`; without them the request fails.
"""

from __future__ import annotations

import base64
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from solders.account import Account

from psyche_backend_solana.localnet import base58
from psyche_backend_solana.localnet.ledger import tokens
from psyche_backend_solana.localnet.rpc_error import RpcError, invalid

ENCODINGS = ("binary", "base58", "base64", "base64+zstd", "jsonParsed")
_MAX_BASE58 = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """The encoding of an account's data for a client. offset, length: the requested slice; None for all data."""

    name: str = "binary"
    offset: int = 0
    length: int | None = None

    def slice(self, data: bytes) -> bytes:
        """The requested slice."""
        return data if self.length is None else data[self.offset : self.offset + self.length]


def encode_account(account: Account, encoding: Encoding, *, decimals: Callable[[str], int | None]) -> dict[str, Any]:
    """An account's JSON object. decimals: returns a mint's decimals by its address.

    Raises RpcError if this encoding cannot represent it.
    """
    whole = bytes(account.data)
    return {
        "lamports": account.lamports,
        "owner": str(account.owner),
        "data": _encode_data(account, whole, encoding, decimals),
        "executable": account.executable,
        "rentEpoch": account.rent_epoch,
        "space": len(whole),
    }


def _encode_data(account: Account, whole: bytes, encoding: Encoding, decimals: Callable[[str], int | None]) -> Any:
    if encoding.name == "jsonParsed":
        parsed = tokens.parse(str(account.owner), whole, decimals=decimals)
        if parsed is not None:
            return {"program": tokens.PROGRAM_NAMES[str(account.owner)], "parsed": parsed, "space": len(whole)}

    data = encoding.slice(whole)
    match encoding.name:
        case "binary" | "base58":
            if len(data) > _MAX_BASE58:
                message = "Encoded binary (base 58) data should be less than 128 bytes, please use Base64 encoding."
                raise RpcError(-32600, message)

            text = base58.encode(data)
            return text if encoding.name == "binary" else [text, "base58"]
        case "base64+zstd":
            return [base64.b64encode(_zstd(data)).decode(), encoding.name]
    return [base64.b64encode(data).decode(), "base64"]


def _zstd(data: bytes) -> bytes:
    for name in ("compression.zstd", "backports.zstd", "zstandard"):
        try:
            compress = importlib.import_module(name).compress
        except ImportError:
            continue

        return bytes(compress(data))

    message = "this chain's Python has no zstd; request base64, or install backports.zstd for the chain"
    raise invalid(message)
