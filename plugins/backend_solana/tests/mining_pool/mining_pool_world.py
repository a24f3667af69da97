"""A mining pool in a real SVM: for tests of shares, and of every check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from plugins.backend_solana.tests.svm.program_chain import (
    ProgramChain,
)
from psyche_backend_solana.layouts import mining_pool, tokens
from psyche_backend_solana.layouts.errors import COMMON

CODES = {name: code for code, name in COMMON.items()} | {name: code for code, (name, _) in mining_pool.ERRORS.items()}
U64 = 2**64 - 1
INDEX = 42


@dataclass
class World:
    """A pool without deposits yet, its limits at the maximum, and three lenders with 1,000,000 units of collateral each."""

    chain: ProgramChain = field(default_factory=lambda: ProgramChain(["mining_pool"]))
    funds: Sequence[int] = (10**6, 10**6, 10**6)

    def __post_init__(self) -> None:
        self.authority, self.payer = self.chain.user(), self.chain.user()
        self.lenders = [self.chain.user() for _ in self.funds]
        self.collateral, self.redeemable = self.chain.mint(U64), self.chain.mint(U64)
        self.pool = self.make(INDEX)
        self.vault = tokens.associated(self.pool, self.collateral)
        self.pot = tokens.associated(self.pool, self.redeemable)
        self.other = self.make(INDEX + 1)
        self.purses = [
            self.chain.tokens(lender.pubkey(), self.collateral, amount)
            for lender, amount in zip(self.lenders, self.funds, strict=True)
        ]
        self.winnings = [self.chain.tokens(lender.pubkey(), self.redeemable) for lender in self.lenders]
        self.treasury = self.chain.tokens(self.authority.pubkey(), self.collateral)
        for lender in self.lenders:
            self.chain.send(mining_pool.lender_create(self.payer.pubkey(), lender.pubkey(), pool=self.pool), signers=[self.payer])
        self.update(cap=U64, lender_cap=U64)

    def make(self, index: int) -> Pubkey:
        made = mining_pool.pool_create(
            self.payer.pubkey(), self.authority.pubkey(), index=index, mint=self.collateral, metadata='{"name": "Pool"}'
        )
        self.chain.send(made, signers=[self.payer, self.authority])
        return mining_pool.pool_address(index)

    def command(self, instruction: Instruction) -> None:
        self.chain.send(instruction, signers=[self.authority, self.payer])

    def update(self, **changes: object) -> None:
        instruction = mining_pool.pool_update(self.authority.pubkey(), self.pool, **changes)  # type: ignore[arg-type]
        self.chain.send(instruction, signers=[self.authority])

    def depositing(self, place: int, amount: int) -> Instruction:
        user = self.lenders[place].pubkey()
        return mining_pool.lender_deposit(user, self.purses[place], pool=self.pool, vault=self.vault, amount=amount)

    def claiming(self, place: int, amount: int) -> Instruction:
        user = self.lenders[place].pubkey()
        return mining_pool.lender_claim(user, self.winnings[place], pool=self.pool, vault=self.pot, amount=amount)

    def refunding(self, place: int, amount: int) -> Instruction:
        user = self.lenders[place].pubkey()
        return mining_pool.lender_refund(user, self.purses[place], pool=self.pool, vault=self.vault, amount=amount)

    def extracting(self, amount: int) -> Instruction:
        authority = self.authority.pubkey()
        return mining_pool.pool_extract(authority, self.treasury, pool=self.pool, vault=self.vault, amount=amount)

    def deposit(self, place: int, amount: int) -> None:
        self.chain.send(self.depositing(place, amount), signers=[self.lenders[place]])

    def claim(self, place: int, amount: int) -> None:
        self.chain.send(self.claiming(place, amount), signers=[self.lenders[place]])

    def refund(self, place: int, amount: int) -> None:
        self.chain.send(self.refunding(place, amount), signers=[self.lenders[place]])

    def extract(self, amount: int) -> None:
        self.chain.send(self.extracting(amount), signers=[self.authority])

    def opening_claims(self) -> Instruction:
        keys = self.payer.pubkey(), self.authority.pubkey()
        return mining_pool.pool_claimable(*keys, pool=self.pool, mint=self.redeemable)

    def open_claims(self) -> None:
        self.command(self.opening_claims())

    def open_refunds(self) -> None:
        self.chain.send(mining_pool.pool_refundable(self.authority.pubkey(), self.pool), signers=[self.authority])

    def win(self, amount: int) -> None:
        """Redeemables come into the pot, from anywhere."""
        self.chain.tokens(self.pool, self.redeemable, self.chain.balance(self.pot) + amount, at=self.pot)

    def read(self) -> mining_pool.Pool:
        return mining_pool.parse_pool(self.chain.account(self.pool))

    def lender(self, place: int) -> mining_pool.Lender:
        return mining_pool.parse_lender(self.chain.account(self.lender_key(place)))

    def lender_key(self, place: int) -> Pubkey:
        return mining_pool.lender_address(self.pool, self.lenders[place].pubkey())


def settled(funds: Sequence[int] = (10**6, 10**6, 10**6)) -> World:
    """Two lenders put in 300 and 100, 250 were moved out, 1,001 came back; claims and refunds are open."""
    world = World(funds=funds)
    world.deposit(0, 300)
    world.deposit(1, 100)
    world.extract(250)
    world.open_claims()
    world.win(1001)
    world.open_refunds()
    return world
