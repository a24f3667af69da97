"""A run with a treasurer in a real SVM: for tests of who is paid, and of every check."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from plugins.backend_solana.tests.svm.program_chain import (
    ProgramChain,
)
from psyche_backend_solana.layouts import coordinator as coordinator_layout
from psyche_backend_solana.layouts import treasurer
from psyche_backend_solana.layouts.coordinator_accounts import ACCOUNT_VERSION as VERSION
from psyche_backend_solana.layouts.coordinator_accounts import HEADER_BYTES, STAGING_BYTES
from psyche_backend_solana.layouts.errors import COMMON
from psyche_backend_solana.programs.addresses import COORDINATOR, TREASURER
from psyche_core.coordinator import canonical_image as image
from psyche_core.coordinator.state import Account, CoordinatorState
from psyche_core.testing.backend import small_state
from psyche_core.types import RunState

CODES = {name: code for code, name in COMMON.items()} | {name: code for code, (name, _) in treasurer.ERRORS.items()}


def coordinator_account(
    points: Mapping[Pubkey, tuple[int, int]], instance: Pubkey, *, run_state: RunState = RunState.Paused
) -> bytes:
    """As the coordinator's program writes it; points: earned and slashed by user."""
    accounts = tuple(
        Account(bytes(user), earned, slashed) for user, (earned, slashed) in sorted(points.items(), key=lambda x: bytes(x[0]))
    )
    state = replace(small_state(), run_state=run_state, accounts=accounts)
    return coordinator_header(instance) + image.encode(state) + bytes(STAGING_BYTES)


def coordinator_header(instance: Pubkey) -> bytes:
    return struct.pack("<8sI12x32s", b"PsycheCo", VERSION, bytes(instance)).ljust(HEADER_BYTES, b"\0")


def instance_account(run_id: str, main_authority: Pubkey, coordinator: Pubkey) -> bytes:
    """As `init` leaves it."""
    bump = coordinator_layout.instance_address(run_id)[1]
    keys = bytes(main_authority) + bytes(main_authority) + bytes(coordinator)
    return (struct.pack("<8sIB3x", b"PsycheRI", 1, bump) + keys + run_id.encode()).ljust(256, b"\0")


def run_account(bump: int, index: int, keys: tuple[Pubkey, ...], *, claimed: int = 0, created: int = 7) -> bytes:
    """As run_create leaves it. keys: main_authority, join_authority, instance, coordinator, mint, vault."""
    *first, vault = map(bytes, keys)
    fields = (b"PsycheTr", 1, bump, index, *first, claimed, 0, created, vault)
    return struct.pack("<8sIB3xQ32s32s32s32s32sQQQ32s16x", *fields)


@dataclass
class World:
    """A paused run that owes alice 100 and slashed 20 of bob's 50, with 1,000 units in its vault; carol earned nothing."""

    chain: ProgramChain = field(default_factory=lambda: ProgramChain(["coordinator", "treasurer"]))

    def __post_init__(self) -> None:
        self.owner, self.alice, self.bob, self.carol, self.payer, self.dora = (self.chain.user() for _ in range(6))
        self.users = (self.alice, self.bob, self.carol)
        self.mint = self.chain.mint(10**12)
        self.coordinator = Pubkey.new_unique()
        self.treasury = self.run(42, self.coordinator, 1000)
        self.other = self.run(43, Pubkey.new_unique(), 1000)
        self.earn({self.alice.pubkey(): (100, 0), self.bob.pubkey(): (50, 20)})
        for user in self.users:
            for treasury in (self.treasury, self.other):
                self.send(treasurer.participant_create(self.payer.pubkey(), user.pubkey(), treasury=treasury), self.payer)
        self.purse = {user.pubkey(): self.chain.tokens(user.pubkey(), self.mint) for user in (*self.users, self.owner)}
        self.purse[self.payer.pubkey()] = self.chain.tokens(self.payer.pubkey(), self.mint, 500)

    def run(self, index: int, coordinator: Pubkey, funds: int) -> treasurer.Treasury:
        run_id = f"run {index}"
        instance = coordinator_layout.instance_address(run_id)[0]
        made = treasurer.Treasury.of(index, mint=self.mint, instance=instance, coordinator=coordinator)
        self.chain.put(instance, instance_account(run_id, made.run, coordinator), COORDINATOR)
        bump = Pubkey.find_program_address([b"run", index.to_bytes(8, "little")], TREASURER)[1]
        keys = (self.owner.pubkey(), self.owner.pubkey(), made.instance, coordinator, self.mint, made.vault)
        self.chain.put(made.run, run_account(bump, index, keys), TREASURER)
        self.chain.tokens(made.run, self.mint, funds, at=made.vault)
        return made

    def earn(self, points: Mapping[Pubkey, tuple[int, int]], run_state: RunState = RunState.Paused) -> None:
        content = coordinator_account(points, self.treasury.instance, run_state=run_state)
        self.chain.put(self.coordinator, content, COORDINATOR)

    def state(self) -> CoordinatorState:
        data = bytes(self.chain.account(self.coordinator).data)
        return image.decode(data[HEADER_BYTES : HEADER_BYTES + image.SIZE])

    def become(self, **fields: Any) -> None:
        """Changes the coordinator's state as no transaction could."""
        data = bytes(self.chain.account(self.coordinator).data)
        changed = image.encode(replace(self.state(), **fields))
        self.chain.put(self.coordinator, data[:HEADER_BYTES] + changed + data[HEADER_BYTES + image.SIZE :], COORDINATOR)

    def send(self, instruction: Instruction, *signers: Keypair) -> None:
        self.chain.send(instruction, signers=signers)

    def claiming(self, user: Keypair, amount: int, *, by: Keypair | None = None) -> Instruction:
        key = user.pubkey()
        authority = (by or user).pubkey()
        return treasurer.participant_claim(authority, key, destination=self.purse[key], treasury=self.treasury, amount=amount)

    def claim(self, user: Keypair, amount: int, *, by: Keypair | None = None) -> None:
        self.send(self.claiming(user, amount, by=by), by or user)

    def withdrawing(self, *show: Keypair) -> Instruction:
        shown = [self.participant(user) for user in show]
        destination = self.purse[self.owner.pubkey()]
        return treasurer.run_withdraw_unused(self.owner.pubkey(), destination, treasury=self.treasury, show=shown)

    def withdraw(self, *show: Keypair) -> int:
        before = self.balance(self.owner)
        self.send(self.withdrawing(*show), self.owner)
        return self.balance(self.owner) - before

    def settling(self, *show: Keypair) -> Instruction:
        shown = [self.participant(user) for user in show]
        return treasurer.run_settle(self.owner.pubkey(), treasury=self.treasury, show=shown)

    def settle(self, *show: Keypair) -> None:
        self.send(self.settling(*show), self.owner)

    def make_anew(self, user: Keypair) -> None:
        """Close a participant that was never paid, and make it again."""
        key, payer = user.pubkey(), self.payer.pubkey()
        self.send(treasurer.participant_close(key, payer, run=self.treasury.run), user)
        self.send(treasurer.participant_create(payer, key, treasury=self.treasury), self.payer)

    def participant(self, user: Keypair) -> Pubkey:
        return treasurer.participant_address(self.treasury.run, user.pubkey())

    def elsewhere(self, user: Keypair) -> Pubkey:
        return treasurer.participant_address(self.other.run, user.pubkey())

    def balance(self, user: Keypair) -> int:
        return self.chain.balance(self.purse[user.pubkey()])

    def vault(self) -> int:
        return self.chain.balance(self.treasury.vault)

    def paid(self) -> treasurer.Run:
        return treasurer.parse_run(self.chain.account(self.treasury.run))
