"""A run whose members put bonds down, in a real SVM: for tests of who loses its bond, and of every check.

The run's accounts are written as the coordinator's program would, so that a member can be in any state. Joins are real.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from plugins.backend_solana.tests.svm.program_chain import ProgramChain, Receipt
from psyche_backend_solana.layouts import bond, coordinator, tokens
from psyche_backend_solana.layouts.coordinator_accounts import ACCOUNT_VERSION, HEADER_BYTES, STAGING_BYTES
from psyche_backend_solana.layouts.errors import COMMON
from psyche_backend_solana.programs.addresses import COORDINATOR, SYSTEM
from psyche_core.coordinator import canonical_image as image
from psyche_core.coordinator.state import Client, CoordinatorState
from psyche_core.testing.small_run import small_state
from psyche_core.types import ClientState, NodeIdentity, RunState
from psyche_core.verification.standing import Standing
from psyche_core.wire.signing import SecretKey

CODES = {name: code for code, name in COMMON.items()} | {name: code for code, (name, _) in bond.ERRORS.items()}
AMOUNT = 250
WAITING = 3600
FUNDS = 1000
SUPPLY = 10**12
STRUCK = Standing(strikes=2)


def identity(user: Keypair) -> NodeIdentity:
    return NodeIdentity(signer=bytes(user.pubkey()), p2p=transport_key(user).public)


def transport_key(user: Keypair) -> SecretKey:
    return SecretKey(bytes(user)[:32])


def instance_account(run_id: str, main_authority: Pubkey, join_authority: Pubkey, account: Pubkey) -> bytes:
    """As `init` leaves it."""
    bump = coordinator.instance_address(run_id)[1]
    keys = bytes(main_authority) + bytes(join_authority) + bytes(account)
    return (struct.pack("<8sIB3x", b"PsycheRI", 1, bump) + keys + run_id.encode()).ljust(256, b"\0")


@dataclass
class Place:
    """One run of the world: its name, its terms, and its state's account."""

    run_id: str
    account: Pubkey
    terms: bond.Terms

    @property
    def run(self) -> coordinator.Run:
        return coordinator.Run(self.terms.instance, self.account)


@dataclass
class World:
    """Two runs of one owner with terms for bonds, both waiting for members. alice, bob and carol have 1,000 units each."""

    chain: ProgramChain = field(default_factory=lambda: ProgramChain(["coordinator", "authorizer", "bond"]))
    grounds: bond.Ground = bond.Ground.Signatures | bond.Ground.Strikes

    def __post_init__(self) -> None:
        self.owner, self.payer, self.alice, self.bob, self.carol = (self.chain.user() for _ in range(5))
        self.mint = self.chain.mint(SUPPLY)
        self.here, self.there = self.place("run"), self.place("other")
        for place in (self.here, self.there):
            self.become(place=place)
            self.chain.send(self.creating(place), signers=[self.payer, self.owner])
        self.purse = {
            user.pubkey(): self.chain.tokens(user.pubkey(), self.mint, FUNDS) for user in (self.alice, self.bob, self.carol)
        }

    @property
    def terms(self) -> bond.Terms:
        return self.here.terms

    def place(self, run_id: str) -> Place:
        account = Pubkey.new_unique()
        instance = coordinator.instance_address(run_id)[0]
        bonds = bond.bonds_address(self.owner.pubkey(), instance)
        self.chain.put(instance, instance_account(run_id, self.owner.pubkey(), bonds, account), COORDINATOR)
        return Place(run_id, account, bond.terms_of(bonds, mint=self.mint, instance=instance, account=account))

    def become(
        self,
        clients: Iterable[Client] = (),
        *,
        pending: Iterable[Keypair] = (),
        run_state: RunState = RunState.WaitingForMembers,
        place: Place | None = None,
    ) -> None:
        """Changes a run's state as no transaction could."""
        at = place or self.here
        state = replace(small_state(), run_state=run_state, instance=bytes(at.account), pending=tuple(map(identity, pending)))
        state = replace(state, epoch=replace(state.epoch, clients=tuple(clients)))
        self.chain.put(at.account, self.content(image.encode(state), at.terms.instance), COORDINATOR)

    @staticmethod
    def content(encoded: bytes, instance: Pubkey) -> bytes:
        header = struct.pack("<8sI12x32s", b"PsycheCo", ACCOUNT_VERSION, bytes(instance)).ljust(HEADER_BYTES, b"\0")
        return header + encoded + bytes(STAGING_BYTES)

    def state(self) -> CoordinatorState:
        data = bytes(self.chain.account(self.here.account).data)
        return image.decode(data[HEADER_BYTES : HEADER_BYTES + image.SIZE])

    def eject(self, user: Keypair, standing: Standing = STRUCK, *, run_state: RunState = RunState.RoundTrain) -> None:
        """As the run shows who was ejected: for strikes, or with another standing for two signatures."""
        others = [Client(identity(other)) for other in (self.alice, self.bob, self.carol) if other is not user]
        ejected = Client(identity(user), ClientState.Ejected, standing=standing)
        self.become([*others, ejected], run_state=run_state)

    # ------------------------------------------------------------ instructions

    def creating(self, place: Place, *, grounds: bond.Ground | None = None, amount: int = AMOUNT) -> Instruction:
        return bond.create(
            self.payer.pubkey(),
            self.owner.pubkey(),
            terms=place.terms,
            amount=amount,
            waiting=WAITING,
            grounds=self.grounds if grounds is None else grounds,
        )

    def depositing(self, user: Keypair) -> Instruction:
        """By the terms as they are now, if there are any."""
        agreed = (AMOUNT, WAITING, self.grounds)
        if self.chain.exists(self.terms.bonds):
            found = self.read()
            agreed = (found.amount, found.waiting, found.grounds)
        amount, waiting, grounds = agreed
        purse = self.purse[user.pubkey()]
        return bond.deposit(user.pubkey(), purse, terms=self.terms, amount=amount, waiting=waiting, grounds=grounds)

    def beginning(self, user: Keypair) -> Instruction:
        return bond.withdraw_begin(user.pubkey(), terms=self.terms)

    def withdrawing(self, user: Keypair) -> Instruction:
        return bond.withdraw(user.pubkey(), self.purse[user.pubkey()], terms=self.terms)

    def forfeiting(self, user: Keypair) -> Instruction:
        return bond.forfeit(user.pubkey(), terms=self.terms)

    def closing(self) -> Instruction:
        return bond.close(self.owner.pubkey(), self.payer.pubkey(), terms=self.terms)

    def joining(self, user: Keypair, authorization: Pubkey | None = None) -> tuple[Instruction, Instruction]:
        by = self.terms.authorization(user.pubkey()) if authorization is None else authorization
        return coordinator.proved_join(self.here.run, user=user.pubkey(), authorization=by, key=transport_key(user))

    # ------------------------------------------------------------ transactions

    def deposit(self, user: Keypair) -> Receipt:
        return self.chain.send(self.depositing(user), signers=[user])

    def begin(self, user: Keypair) -> Receipt:
        return self.chain.send(self.beginning(user), signers=[user])

    def withdraw(self, user: Keypair) -> Receipt:
        return self.chain.send(self.withdrawing(user), signers=[user])

    def forfeit(self, user: Keypair) -> Receipt:
        return self.chain.send(self.forfeiting(user))

    def join(self, user: Keypair, authorization: Pubkey | None = None) -> Receipt:
        return self.chain.send(*self.joining(user, authorization), signers=[user])

    # ------------------------------------------------------------ readings

    def held(self, user: Keypair) -> bond.Bond:
        return bond.parse_bond(self.chain.account(self.terms.bond(user.pubkey())))

    def read(self) -> bond.Bonds:
        return bond.parse_bonds(self.chain.account(self.terms.bonds))

    def balance(self, user: Keypair) -> int:
        return self.chain.balance(self.purse[user.pubkey()])

    def vault(self) -> int:
        return self.chain.balance(self.terms.vault)

    def supply(self) -> int:
        return tokens.parse_mint(self.chain.account(self.mint)).supply

    def gone(self, key: Pubkey) -> bool:
        """Whether nothing lies there."""
        return not self.chain.exists(key)

    def free(self, place: Place | None = None) -> None:
        """Both accounts of a run as `free` leaves them."""
        at = place or self.here
        for key in (at.terms.instance, at.account):
            self.chain.put(key, b"", SYSTEM)
