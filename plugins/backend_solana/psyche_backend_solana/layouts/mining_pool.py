"""The mining pool: its accounts as values, its instructions as bytes. Docs: docs/reference/solana-programs.md, Mining pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from solders.account import Account
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from psyche_backend_solana.layouts import header, tokens
from psyche_backend_solana.programs.addresses import ASSOCIATED_TOKEN, MINING_POOL, SYSTEM, TOKEN

POOL_MAGIC: Final = b"PsychePo"
POOL_BYTES: Final = 704
LENDER_MAGIC: Final = b"PsycheLe"
LENDER_BYTES: Final = 128
VERSION: Final = 1
MAX_METADATA: Final = 400

ERRORS: Final[Mapping[int, tuple[str, str]]] = MappingProxyType(
    {
        100: ("OverCap", "the deposit would exceed the pool's or the lender's limit"),
        101: ("Frozen", "the pool's authority froze this for now"),
        102: ("DepositsClosed", "nobody deposits any more once claims or refunds are open"),
        103: ("ClaimsClosed", "claims are not open yet"),
        104: ("RefundsClosed", "refunds are not open"),
        105: ("AlreadyOpen", "this was opened before, for good"),
        106: ("OverShare", "more was asked for than the lender's share has left"),
        107: ("OtherPool", "this lender's account belongs to another pool"),
        108: ("ExtractionClosed", "collateral is being refunded and leaves the pool in no other way any more"),
        109: ("StillNeeded", "a lender who deposited keeps its account"),
        110: ("SameMint", "the redeemable token must be another than the collateral"),
    }
)
"""The program's errors by number, as in Custom(n): name and sentence."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool. Amounts are totals in units: deposited, extracted and refunded collateral, claimed redeemables.

    cap, lender_cap: maximum deposit in total and by one lender. redeemable: mint and vault, once claims are open.
    """

    bump: int
    claiming: bool
    refunding: bool
    deposits_frozen: bool
    claims_frozen: bool
    index: int
    authority: Pubkey
    collateral_mint: Pubkey
    collateral_vault: Pubkey
    redeemable: tuple[Pubkey, Pubkey] | None
    cap: int
    lender_cap: int
    deposited: int
    extracted: int
    claimed: int
    refunded: int
    lenders: int
    metadata: str


@dataclass(frozen=True, slots=True)
class Lender:
    """The amounts that one user deposited and received back, in units."""

    bump: int
    pool: Pubkey
    user: Pubkey
    deposited: int
    claimed: int
    refunded: int


def pool_address(index: int, *, program: Pubkey = MINING_POOL) -> Pubkey:
    """The account of the pool with an index."""
    return Pubkey.find_program_address([b"pool", index.to_bytes(8, "little")], program)[0]


def lender_address(pool: Pubkey, user: Pubkey, *, program: Pubkey = MINING_POOL) -> Pubkey:
    """A user's account for a pool."""
    return Pubkey.find_program_address([b"lender", bytes(pool), bytes(user)], program)[0]


def share(pot: int, own: int, every: int) -> int:
    """A lender's share of a pot in units, floor(pot * own / every); 0 without deposits. pot: units in the vault and paid out."""
    return min(pot, 2**64 - 1) * own // every if every else 0


def parse_pool(account: Account, *, program: Pubkey = MINING_POOL) -> Pool:
    """Parse the account. Raises WireError if it is not a pool."""
    data = header.content(account, program, magic=POOL_MAGIC, version=VERSION, size=POOL_BYTES, what="mining pool")
    claiming = data[13] == 1
    length = int.from_bytes(data[248:250], "little")
    return Pool(
        bump=data[12],
        claiming=claiming,
        refunding=data[14] == 1,
        deposits_frozen=data[15] == 1,
        claims_frozen=data[16] == 1,
        index=header.number(data, 24),
        authority=header.key(data, 32),
        collateral_mint=header.key(data, 64),
        collateral_vault=header.key(data, 96),
        redeemable=(header.key(data, 128), header.key(data, 160)) if claiming else None,
        cap=header.number(data, 192),
        lender_cap=header.number(data, 200),
        deposited=header.number(data, 208),
        extracted=header.number(data, 216),
        claimed=header.number(data, 224),
        refunded=header.number(data, 232),
        lenders=header.number(data, 240),
        metadata=data[256 : 256 + min(length, MAX_METADATA)].decode("utf-8", errors="replace"),
    )


def parse_lender(account: Account, *, program: Pubkey = MINING_POOL) -> Lender:
    """Parse the account. Raises WireError if it is not a lender's."""
    data = header.content(account, program, magic=LENDER_MAGIC, version=VERSION, size=LENDER_BYTES, what="lender of a pool")
    amounts = [header.number(data, offset) for offset in (80, 88, 96)]
    return Lender(data[12], header.key(data, 16), header.key(data, 48), *amounts)


def pool_create(
    payer: Pubkey, authority: Pubkey, *, index: int, mint: Pubkey, metadata: str = "", program: Pubkey = MINING_POOL
) -> Instruction:
    """Creates a pool and its vault; limits are zero at first. Signers: payer, authority."""
    pool = pool_address(index, program=program)
    accounts = [
        AccountMeta(payer, True, True),
        AccountMeta(authority, True, False),
        AccountMeta(pool, False, True),
        *_vault_accounts(pool, mint),
    ]
    return Instruction(program, b"\0" + index.to_bytes(8, "little") + _metadata(metadata), accounts)


def pool_update(
    authority: Pubkey,
    pool: Pubkey,
    *,
    cap: int | None = None,
    lender_cap: int | None = None,
    deposits_frozen: bool | None = None,
    claims_frozen: bool | None = None,
    metadata: str | None = None,
    program: Pubkey = MINING_POOL,
) -> Instruction:
    """Changes the given fields and keeps the others. Signer: authority."""
    parts = [
        None if cap is None else cap.to_bytes(8, "little"),
        None if lender_cap is None else lender_cap.to_bytes(8, "little"),
        None if deposits_frozen is None else bytes([deposits_frozen]),
        None if claims_frozen is None else bytes([claims_frozen]),
        None if metadata is None else _metadata(metadata),
    ]
    mask = sum(1 << place for place, part in enumerate(parts) if part is not None)
    data = b"".join(part for part in parts if part is not None)
    accounts = [AccountMeta(authority, True, False), AccountMeta(pool, False, True)]
    return Instruction(program, bytes([1, mask]) + data, accounts)


def pool_extract(
    authority: Pubkey, destination: Pubkey, *, pool: Pubkey, vault: Pubkey, amount: int, program: Pubkey = MINING_POOL
) -> Instruction:
    """Moves collateral to the authority's own token account. Signer: authority."""
    accounts = [
        AccountMeta(authority, True, False),
        AccountMeta(destination, False, True),
        AccountMeta(pool, False, True),
        AccountMeta(vault, False, True),
        AccountMeta(TOKEN, False, False),
    ]
    return Instruction(program, b"\2" + amount.to_bytes(8, "little"), accounts)


def pool_claimable(payer: Pubkey, authority: Pubkey, *, pool: Pubkey, mint: Pubkey, program: Pubkey = MINING_POOL) -> Instruction:
    """Sets the shared token, creates its vault, opens claims and closes deposits permanently. Signers: payer, authority."""
    accounts = [
        AccountMeta(payer, True, True),
        AccountMeta(authority, True, False),
        AccountMeta(pool, False, True),
        *_vault_accounts(pool, mint),
    ]
    return Instruction(program, b"\3", accounts)


def pool_refundable(authority: Pubkey, pool: Pubkey, *, program: Pubkey = MINING_POOL) -> Instruction:
    """Opens refunds of the remaining collateral and closes deposits and extraction permanently. Signer: authority."""
    return Instruction(program, b"\4", [AccountMeta(authority, True, False), AccountMeta(pool, False, True)])


def lender_create(payer: Pubkey, user: Pubkey, *, pool: Pubkey, program: Pubkey = MINING_POOL) -> Instruction:
    """Creates a user's account for a pool. Signer: payer, who need not be the user."""
    accounts = [
        AccountMeta(payer, True, True),
        AccountMeta(user, False, False),
        AccountMeta(pool, False, True),
        AccountMeta(lender_address(pool, user, program=program), False, True),
        AccountMeta(SYSTEM, False, False),
    ]
    return Instruction(program, b"\5", accounts)


def lender_deposit(
    user: Pubkey, source: Pubkey, *, pool: Pubkey, vault: Pubkey, amount: int, program: Pubkey = MINING_POOL
) -> Instruction:
    """Moves collateral from a user's own token account into the pool. Signer: user."""
    return _lender(6, user, source, pool=pool, vault=vault, amount=amount, program=program)


def lender_claim(
    user: Pubkey, destination: Pubkey, *, pool: Pubkey, vault: Pubkey, amount: int, program: Pubkey = MINING_POOL
) -> Instruction:
    """Pays redeemables to a user's own token account; at most `share` minus earlier claims. Signer: user."""
    return _lender(7, user, destination, pool=pool, vault=vault, amount=amount, program=program)


def lender_refund(
    user: Pubkey, destination: Pubkey, *, pool: Pubkey, vault: Pubkey, amount: int, program: Pubkey = MINING_POOL
) -> Instruction:
    """Pays collateral back to a user's own token account; at most `share` minus earlier refunds. Signer: user."""
    return _lender(8, user, destination, pool=pool, vault=vault, amount=amount, program=program)


def lender_close(user: Pubkey, spill: Pubkey, *, pool: Pubkey, program: Pubkey = MINING_POOL) -> Instruction:
    """Closes the account of a user who deposited nothing. Signer: user."""
    accounts = [
        AccountMeta(user, True, False),
        AccountMeta(spill, False, True),
        AccountMeta(pool, False, True),
        AccountMeta(lender_address(pool, user, program=program), False, True),
    ]
    return Instruction(program, b"\x09", accounts)


def _lender(number: int, user: Pubkey, own: Pubkey, *, pool: Pubkey, vault: Pubkey, amount: int, program: Pubkey) -> Instruction:
    accounts = [
        AccountMeta(user, True, False),
        AccountMeta(own, False, True),
        AccountMeta(pool, False, True),
        AccountMeta(lender_address(pool, user, program=program), False, True),
        AccountMeta(vault, False, True),
        AccountMeta(TOKEN, False, False),
    ]
    return Instruction(program, bytes([number]) + amount.to_bytes(8, "little"), accounts)


def _vault_accounts(pool: Pubkey, mint: Pubkey) -> list[AccountMeta]:
    programs = [AccountMeta(program, False, False) for program in (TOKEN, ASSOCIATED_TOKEN, SYSTEM)]
    return [AccountMeta(tokens.associated(pool, mint), False, True), AccountMeta(mint, False, False), *programs]


def _metadata(metadata: str) -> bytes:
    encoded = metadata.encode()
    if len(encoded) > MAX_METADATA:
        message = f"metadata of {len(encoded)} bytes; at most {MAX_METADATA}"
        raise ValueError(message)
    return encoded
