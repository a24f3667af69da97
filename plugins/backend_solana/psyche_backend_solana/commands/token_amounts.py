"""Converts amounts of tokens between decimal numbers, which people read, and smallest units, which the chain counts."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from solders.account import Account
from solders.pubkey import Pubkey

from psyche_backend_solana.commands.context import CALL_SECONDS, CommandContext
from psyche_backend_solana.layouts import tokens
from psyche_backend_solana.rpc import methods
from psyche_core.errors import BackendError, ConfigError, UserError, WireError


async def decimals(context: CommandContext, mint: Pubkey) -> int:
    """Number of decimals of a token. Raises BackendError."""
    return (await mint_at(context, mint)).decimals


async def mint_at(context: CommandContext, mint: Pubkey) -> tokens.Mint:
    """A token. Raises BackendError."""
    read = await methods.account(context.rpc, mint, timeout=CALL_SECONDS)
    if read is None:
        message = f"there is no token {mint}; check its address and --rpc"
        raise BackendError(message)

    try:
        return tokens.parse_mint(Account(read.lamports, read.data, read.owner))
    except WireError as error:
        raise BackendError(str(error)) from error


async def must_hold(context: CommandContext, mint: Pubkey, units: int, *, places: int, purpose: str) -> Pubkey:
    """This wallet's token account, after a check that it holds enough. purpose: `a bond`. Raises UserError, BackendError."""
    own = tokens.associated(context.payer, mint)
    read = await methods.account(context.rpc, own, timeout=CALL_SECONDS)
    try:
        there = 0 if read is None else tokens.parse(Account(read.lamports, read.data, read.owner)).amount
    except WireError as error:
        raise BackendError(str(error)) from error

    if there < units:
        has = amount_of(there, places) if there else "no"
        message = f"this wallet ({context.payer}) has {has} tokens of {mint}; {purpose} needs {amount_of(units, places)}"
        raise UserError(message)

    return own


def units_of(text: str, decimals: int, *, at_least: int = 1) -> int:
    """Return a decimal amount of tokens in smallest units. at_least: smallest allowed number. Raises ConfigError."""
    try:
        units = Decimal(text) * 10**decimals
    except InvalidOperation:
        units = Decimal(-1)
    if not units.is_finite() or units < at_least or units != units.to_integral_value() or units >= 2**64:
        low = "above 0" if at_least else "of at least 0"
        message = f"expected an amount {low} with at most {decimals} decimals, got {text!r}"
        raise ConfigError(message)

    return int(units)


def amount_of(units: int, decimals: int) -> str:
    """Return smallest units as a decimal amount of tokens, without trailing zeros."""
    text = f"{Decimal(units).scaleb(-decimals):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
