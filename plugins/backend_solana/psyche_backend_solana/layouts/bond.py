"""The bond program: its accounts as values, its instructions as bytes. Docs: docs/reference/solana-programs.md, Bond."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from types import MappingProxyType
from typing import Final

from solders.account import Account
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from psyche_backend_solana.layouts import authorizer, header, tokens
from psyche_backend_solana.programs.addresses import ASSOCIATED_TOKEN, AUTHORIZER, BOND, SYSTEM, TOKEN
from psyche_core.errors import WireError

BONDS_MAGIC: Final = b"PsycheBs"
BONDS_BYTES: Final = 256
BOND_MAGIC: Final = b"PsycheBo"
BOND_BYTES: Final = 128
VERSION: Final = 1
MAX_WAITING: Final = 90 * 86_400
"""Longest waiting time of any terms, in seconds."""
LONGEST_EPOCH: Final = 7 * 86_400
"""Seconds after the waiting time from which on an epoch that is still played keeps no bond of a member that has left it."""
SHORTEST_COOLDOWN: Final = 30
"""Seconds of a run's cooldown_time that leave members the time to burn a bond before the next epoch begins."""
NATIVE_MINT: Final = Pubkey.from_string("So11111111111111111111111111111111111111112")
"""The mint of wrapped SOL, whose tokens cannot be burned."""

ERRORS: Final[Mapping[int, tuple[str, str]]] = MappingProxyType(
    {
        100: ("BadTerms", "terms have an amount above 0, at most 90 days of waiting, and one ground or both"),
        101: ("OtherRun", "these accounts belong to another run, or the run's join authority is not this account of terms"),
        102: ("OtherBonds", "this bond was put down for other terms"),
        103: ("NotActive", "this bond is not active: its withdrawal has begun, or it was forfeited"),
        104: ("NotLeaving", "begin the withdrawal first, with `psyche solana bond withdraw`"),
        105: ("TooEarly", "the waiting time after the beginning of the withdrawal is not over"),
        106: (
            "StillMember",
            (
                "the wallet is pending, or in the epoch that is played, and this does not end yet; leave the run with `psyche "
                "run-manager withdraw`, and repeat this when the epoch and its cooldown are over, at most 7 days beyond the "
                "waiting time"
            ),
        ),
        107: ("Ejected", "the run has ejected this wallet in its last epoch, on a ground for which bonds are forfeited"),
        108: ("NotEjected", "the run does not show this wallet as ejected on a ground for which bonds are forfeited"),
        109: ("StillNeeded", "members still have bonds by these terms"),
        110: ("BadImage", "the account of the run's state holds no image that this program understands"),
        111: (
            "OtherTerms",
            "the terms are no longer those that were read before; read them again with `psyche solana bond show`",
        ),
        112: ("NativeMint", "tokens of wrapped SOL cannot be burned, so they make no bonds; choose another token"),
    }
)
"""The program's errors by number, as in Custom(n): name and sentence."""


class Ground(IntFlag):
    """Why a bond is forfeited. Signatures: two signed results for one share. Strikes: two failed checks in an epoch."""

    Signatures = 1
    Strikes = 2


class BondState(IntEnum):
    """Active: its user may join. Leaving: it waits to be paid back. Forfeited: burned."""

    Active = 0
    Leaving = 1
    Forfeited = 2


@dataclass(frozen=True, slots=True)
class Bonds:
    """A run's terms. amount: units of the mint for each member. waiting: seconds. held: bonds in the vault. burned: units."""

    bump: int
    grounds: Ground
    authority: Pubkey
    instance: Pubkey
    mint: Pubkey
    vault: Pubkey
    amount: int
    waiting: int
    held: int
    burned: int


@dataclass(frozen=True, slots=True)
class Bond:
    """A member's bond. amount: units. since: unix second in which it entered its state."""

    bump: int
    state: BondState
    bonds: Pubkey
    user: Pubkey
    amount: int
    since: int


@dataclass(frozen=True, slots=True)
class Terms:
    """The addresses that go with a run's terms. account: of the run's state. program: the bond program."""

    bonds: Pubkey
    mint: Pubkey
    vault: Pubkey
    instance: Pubkey
    account: Pubkey
    program: Pubkey = BOND
    authorizer: Pubkey = AUTHORIZER

    def bond(self, user: Pubkey) -> Pubkey:
        """A user's bond."""
        return bond_address(self.bonds, user, program=self.program)

    def authorization(self, user: Pubkey) -> Pubkey:
        """The right to join that goes with a user's bond."""
        return authorizer.address(self.bonds, self.bond(user), program=self.authorizer)


def bonds_address(authority: Pubkey, instance: Pubkey, *, program: Pubkey = BOND) -> Pubkey:
    """The account of the terms that a wallet makes for a run; known before the run is, so that it can be its join authority."""
    return Pubkey.find_program_address([b"bonds", bytes(authority), bytes(instance)], program)[0]


def bond_address(bonds: Pubkey, user: Pubkey, *, program: Pubkey = BOND) -> Pubkey:
    """A user's bond for some terms."""
    return Pubkey.find_program_address([b"bond", bytes(bonds), bytes(user)], program)[0]


def parse_bonds(account: Account, *, program: Pubkey = BOND) -> Bonds:
    """Parse an account of terms. Raises WireError if it is not one."""
    data = header.content(
        account, program, magic=BONDS_MAGIC, version=VERSION, size=BONDS_BYTES, what="account of terms for bonds"
    )
    if data[13] not in (1, 2, 3):
        message = f"these terms for bonds name the grounds {data[13]}; expected 1 to 3"
        raise WireError(message)

    return Bonds(
        bump=data[12],
        grounds=Ground(data[13]),
        authority=header.key(data, 16),
        instance=header.key(data, 48),
        mint=header.key(data, 80),
        vault=header.key(data, 112),
        amount=header.number(data, 144),
        waiting=header.number(data, 152),
        held=header.number(data, 160),
        burned=header.number(data, 168),
    )


def parse_bond(account: Account, *, program: Pubkey = BOND) -> Bond:
    """Parse a member's bond. Raises WireError if it is not one."""
    data = header.content(account, program, magic=BOND_MAGIC, version=VERSION, size=BOND_BYTES, what="member's bond")
    if data[13] > BondState.Forfeited:
        message = f"this bond is in the state {data[13]}; expected 0 to 2"
        raise WireError(message)

    keys = header.key(data, 16), header.key(data, 48)
    return Bond(data[12], BondState(data[13]), *keys, header.number(data, 80), header.number(data, 88))


def create(
    payer: Pubkey, authority: Pubkey, *, terms: Terms, amount: int, waiting: int, grounds: Ground = Ground.Signatures
) -> Instruction:
    """Creates a run's terms and their vault. Signers: payer, authority. amount: units. waiting: seconds."""
    accounts = [
        AccountMeta(payer, True, True),
        AccountMeta(authority, True, False),
        AccountMeta(terms.bonds, False, True),
        AccountMeta(terms.vault, False, True),
        AccountMeta(terms.mint, False, False),
        AccountMeta(terms.instance, False, False),
        *(AccountMeta(program, False, False) for program in (TOKEN, ASSOCIATED_TOKEN, SYSTEM)),
    ]
    return Instruction(terms.program, struct.pack("<BQQB", 0, amount, waiting, grounds), accounts)


def deposit(
    user: Pubkey, source: Pubkey, *, terms: Terms, amount: int, waiting: int, grounds: Ground = Ground.Signatures
) -> Instruction:
    """Puts a bond down from a user's own token account, and gives the right to join. Signer: user, who pays the rent.

    amount, waiting, grounds: of the terms that the user agrees to; others are refused.
    """
    accounts = [
        AccountMeta(user, True, True),
        AccountMeta(source, False, True),
        AccountMeta(terms.bonds, False, True),
        AccountMeta(terms.bond(user), False, True),
        AccountMeta(terms.vault, False, True),
        AccountMeta(terms.authorization(user), False, True),
        *_run(terms),
        *(AccountMeta(program, False, False) for program in (terms.authorizer, TOKEN, SYSTEM)),
    ]
    return Instruction(terms.program, struct.pack("<BQQB", 1, amount, waiting, grounds), accounts)


def withdraw_begin(user: Pubkey, *, terms: Terms) -> Instruction:
    """Ends the right to join, and begins the waiting time. Signer: user."""
    accounts = [
        AccountMeta(user, True, True),
        AccountMeta(terms.bonds, False, True),
        AccountMeta(terms.bond(user), False, True),
        AccountMeta(terms.authorization(user), False, True),
        AccountMeta(terms.authorizer, False, False),
    ]
    return Instruction(terms.program, b"\2", accounts)


def withdraw(user: Pubkey, destination: Pubkey, *, terms: Terms) -> Instruction:
    """Pays a bond back to a user's own token account, or closes the account of a forfeited one. Signer: user."""
    accounts = [
        AccountMeta(user, True, True),
        AccountMeta(destination, False, True),
        AccountMeta(terms.bonds, False, True),
        AccountMeta(terms.bond(user), False, True),
        AccountMeta(terms.vault, False, True),
        *_run(terms),
        AccountMeta(TOKEN, False, False),
    ]
    return Instruction(terms.program, b"\3", accounts)


def close_burned(user: Pubkey, bonds: Pubkey, *, program: Pubkey = BOND) -> Instruction:
    """Closes the account of a forfeited bond by the terms at `bonds`, which may be closed. Signer: user, who gets the rent.

    It is `withdraw`: of a forfeited bond the program looks at nothing but its user, so the user stands for all the rest.
    """
    accounts = [
        AccountMeta(user, True, True),
        AccountMeta(user, True, True),
        AccountMeta(bonds, False, True),
        AccountMeta(bond_address(bonds, user, program=program), False, True),
        *(AccountMeta(user, True, True) for _ in range(4)),
    ]
    return Instruction(program, b"\3", accounts)


def forfeit(user: Pubkey, *, terms: Terms) -> Instruction:
    """Burns the bond of a user that was ejected, and ends its right to join. Anybody may send it; no signer."""
    accounts = [
        AccountMeta(terms.bonds, False, True),
        AccountMeta(terms.bond(user), False, True),
        AccountMeta(terms.vault, False, True),
        AccountMeta(terms.mint, False, True),
        AccountMeta(terms.authorization(user), False, True),
        *_run(terms),
        AccountMeta(terms.authorizer, False, False),
        AccountMeta(TOKEN, False, False),
    ]
    return Instruction(terms.program, b"\4", accounts)


def close(authority: Pubkey, spill: Pubkey, *, terms: Terms) -> Instruction:
    """Closes terms by which nobody has a bond; what else lies in the vault is burned. Signer: authority."""
    accounts = [
        AccountMeta(authority, True, False),
        AccountMeta(spill, False, True),
        AccountMeta(terms.bonds, False, True),
        AccountMeta(terms.vault, False, True),
        AccountMeta(terms.mint, False, True),
        AccountMeta(TOKEN, False, False),
    ]
    return Instruction(terms.program, b"\5", accounts)


def terms_of(
    bonds: Pubkey,
    *,
    mint: Pubkey,
    instance: Pubkey,
    account: Pubkey,
    program: Pubkey = BOND,
    authorizer_program: Pubkey = AUTHORIZER,
) -> Terms:
    """The addresses of terms whose vault is the associated token account. account: of the run's state."""
    return Terms(bonds, mint, tokens.associated(bonds, mint), instance, account, program, authorizer_program)


def _run(terms: Terms) -> list[AccountMeta]:
    return [AccountMeta(terms.instance, False, False), AccountMeta(terms.account, False, False)]
