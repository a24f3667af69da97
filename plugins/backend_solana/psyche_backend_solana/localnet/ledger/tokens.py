"""SPL Token's accounts and mints, read from their bytes (165 and 82 of them, layouts of the token program).

Reads both token programs, without the extensions of Token-2022.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from psyche_backend_solana.localnet import base58

TOKEN = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"  # noqa: S105  # an address
TOKEN_2022 = "TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb"  # noqa: S105
PROGRAM_NAMES = {TOKEN: "spl-token", TOKEN_2022: "spl-token-2022"}
ACCOUNT_BYTES = 165
MINT_BYTES = 82
_ACCOUNT = struct.Struct("<32s32sQI32sBIQQI32s")
_MINT = struct.Struct("<I32sQBBI32s")
_STATES = ("uninitialized", "initialized", "frozen")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAccount:
    """Tokens of one mint held for one owner. Addresses in base58, amounts in the mint's smallest unit."""

    mint: str
    owner: str
    amount: int
    delegate: str | None
    state: str
    native_reserve: int | None
    delegated: int
    close_authority: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mint:
    """A kind of token."""

    mint_authority: str | None
    supply: int
    decimals: int
    initialized: bool
    freeze_authority: str | None


def read_token_account(owner_program: str, data: bytes) -> TokenAccount | None:
    """The token account in an account's data; None if it is not one."""
    if owner_program not in PROGRAM_NAMES or len(data) != ACCOUNT_BYTES:
        return None

    mint, owner, amount, has_delegate, delegate, state, is_native, reserve, delegated, has_close, close = _ACCOUNT.unpack(data)
    if not 1 <= state < len(_STATES):
        return None

    return TokenAccount(
        mint=base58.encode(mint),
        owner=base58.encode(owner),
        amount=amount,
        delegate=base58.encode(delegate) if has_delegate else None,
        state=_STATES[state],
        native_reserve=reserve if is_native else None,
        delegated=delegated,
        close_authority=base58.encode(close) if has_close else None,
    )


def read_mint(owner_program: str, data: bytes) -> Mint | None:
    """The mint in an account's data; None if it is not one."""
    if owner_program not in PROGRAM_NAMES or len(data) != MINT_BYTES:
        return None

    has_authority, authority, supply, decimals, initialized, has_freeze, freeze = _MINT.unpack(data)
    if not initialized:
        return None

    return Mint(
        mint_authority=base58.encode(authority) if has_authority else None,
        supply=supply,
        decimals=decimals,
        initialized=True,
        freeze_authority=base58.encode(freeze) if has_freeze else None,
    )


def amount_json(amount: int, decimals: int) -> dict[str, Any]:
    """Return an amount as the JSON object UiTokenAmount."""
    exact = Decimal(amount).scaleb(-decimals)
    text = f"{exact:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return {"amount": str(amount), "decimals": decimals, "uiAmount": float(exact), "uiAmountString": text}


def parse(owner_program: str, data: bytes, *, decimals: Callable[[str], int | None]) -> dict[str, Any] | None:
    """`parsed` of jsonParsed; None for other data. decimals: returns a mint's decimals by its address, None if not a mint."""
    mint = read_mint(owner_program, data)
    if mint is not None:
        info: dict[str, Any] = {
            "mintAuthority": mint.mint_authority,
            "supply": str(mint.supply),
            "decimals": mint.decimals,
            "isInitialized": mint.initialized,
            "freezeAuthority": mint.freeze_authority,
        }
        return {"type": "mint", "info": info}

    account = read_token_account(owner_program, data)
    places = None if account is None else decimals(account.mint)
    if account is None or places is None:
        return None

    info = {
        "mint": account.mint,
        "owner": account.owner,
        "tokenAmount": amount_json(account.amount, places),
        "state": account.state,
        "isNative": account.native_reserve is not None,
    }
    if account.native_reserve is not None:
        info["rentExemptReserve"] = amount_json(account.native_reserve, places)
    if account.delegate is not None:
        info |= {"delegate": account.delegate, "delegatedAmount": amount_json(account.delegated, places)}
    if account.close_authority is not None:
        info["closeAuthority"] = account.close_authority
    return {"type": "account", "info": info}
