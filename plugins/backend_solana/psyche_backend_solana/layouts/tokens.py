"""SPL Token: balances, and the address of a holder's associated token account.

Only the parts that our programs and commands use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from solders.account import Account
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from psyche_backend_solana.layouts import header
from psyche_backend_solana.programs.addresses import ASSOCIATED_TOKEN, SYSTEM, TOKEN
from psyche_core.errors import WireError

ACCOUNT_BYTES: Final = 165
MINT_BYTES: Final = 82
_CREATE_IDEMPOTENT = b"\1"

ERRORS: Final[Mapping[int, tuple[str, str]]] = MappingProxyType(
    {
        0: ("TokenNotRentExempt", "the token program refused an account without enough SOL for its rent"),
        1: ("TokensTooFew", "the token account holds too few tokens"),
        2: ("TokenInvalidMint", "the token program refused the mint; check the token's address"),
        3: ("TokenOtherMint", "the token account is one of another token"),
        4: ("TokenOtherOwner", "the wallet does not own the token account, or does not have this authority over the token"),
        5: ("TokenFixedSupply", "nobody can create more of this token"),
        10: ("TokenNative", "the token program does not do this with wrapped SOL"),
        11: ("TokensLeft", "the token account still holds tokens, so it cannot be closed"),
        17: ("TokenFrozen", "the token's issuer has frozen the token account"),
    }
)
"""Errors of the token program by number, as in Custom(n): name and sentence. Of its others only the number is told."""


@dataclass(frozen=True, slots=True)
class TokenAccount:
    """Units of one token of one owner. restricted: frozen, delegated or closable by another, which our programs reject."""

    mint: Pubkey
    owner: Pubkey
    amount: int
    restricted: bool


@dataclass(frozen=True, slots=True)
class Mint:
    """A token. supply: total units. decimals: a token is 10**decimals units.

    authority: creates more of it; None for nobody. freeze_authority: freezes token accounts; None for nobody.
    """

    supply: int
    decimals: int
    authority: Pubkey | None = None
    freeze_authority: Pubkey | None = None


def associated(owner: Pubkey, mint: Pubkey) -> Pubkey:
    """The associated token account of an owner for a mint, whose address everybody can compute."""
    return Pubkey.find_program_address([bytes(owner), bytes(TOKEN), bytes(mint)], ASSOCIATED_TOKEN)[0]


def parse(account: Account) -> TokenAccount:
    """Parse a token account. Raises WireError if it is not one."""
    data = bytes(account.data)
    if account.owner != TOKEN or len(data) != ACCOUNT_BYTES or data[108] == 0:
        message = f"this is no token account: it has {len(data)} bytes and belongs to {account.owner}"
        raise WireError(message)
    restricted = data[108] != 1 or data[72:76] != bytes(4) or data[129:133] != bytes(4)
    return TokenAccount(header.key(data, 0), header.key(data, 32), header.number(data, 64), restricted)


def parse_mint(account: Account) -> Mint:
    """Parse a mint. Raises WireError if it is not one."""
    data = bytes(account.data)
    if account.owner != TOKEN or len(data) != MINT_BYTES or data[45] != 1:
        message = f"this is no mint of SPL Token: it has {len(data)} bytes and belongs to {account.owner}"
        raise WireError(message)
    authority = header.key(data, 4) if data[:4] != bytes(4) else None
    freeze_authority = header.key(data, 50) if data[46:50] != bytes(4) else None
    return Mint(header.number(data, 36), data[44], authority, freeze_authority)


def create_associated(payer: Pubkey, owner: Pubkey, *, mint: Pubkey) -> Instruction:
    """Creates the associated token account; succeeds also if it exists already. Signer: payer."""
    accounts = [
        AccountMeta(payer, True, True),
        AccountMeta(associated(owner, mint), False, True),
        AccountMeta(owner, False, False),
        AccountMeta(mint, False, False),
        AccountMeta(SYSTEM, False, False),
        AccountMeta(TOKEN, False, False),
    ]
    return Instruction(ASSOCIATED_TOKEN, _CREATE_IDEMPOTENT, accounts)


def transfer(source: Pubkey, destination: Pubkey, *, owner: Pubkey, amount: int) -> Instruction:
    """Moves units from one token account to another. Signer: owner."""
    accounts = [AccountMeta(source, False, True), AccountMeta(destination, False, True), AccountMeta(owner, True, False)]
    return Instruction(TOKEN, b"\3" + amount.to_bytes(8, "little"), accounts)


def initialize_mint(mint: Pubkey, *, authority: Pubkey, decimals: int) -> Instruction:
    """Turns a new account of the token program into a mint; authority may mint, nobody may freeze."""
    return Instruction(TOKEN, bytes([20, decimals]) + bytes(authority) + b"\0", [AccountMeta(mint, False, True)])


def mint_to(mint: Pubkey, destination: Pubkey, *, authority: Pubkey, amount: int) -> Instruction:
    """Mints units of a token. Signer: authority."""
    accounts = [AccountMeta(mint, False, True), AccountMeta(destination, False, True), AccountMeta(authority, True, False)]
    return Instruction(TOKEN, b"\7" + amount.to_bytes(8, "little"), accounts)
