"""A chain in this process (LiteSVM) with our programs on it, for tests and measurements of programs: no network, no waiting.

Accounts and token balances can be put there as a test needs them; transactions are real ones, signed and verified.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from solders.account import Account
from solders.compute_budget import set_compute_unit_limit
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import Transaction
from solders.transaction_metadata import FailedTransactionMetadata
from solders.transaction_status import InstructionErrorCustom, TransactionErrorInstructionError

from psyche_backend_solana.programs import load
from psyche_backend_solana.programs.addresses import PROGRAMS, TOKEN
from psyche_core.errors import PsycheError

LAMPORTS = 10**12
MAX_COMPUTE_UNITS = 1_400_000
MINT_BYTES = 82
TOKEN_ACCOUNT_BYTES = 165


class Refused(PsycheError):
    """A transaction failed. code: n of Custom(n), None where it was another error; logs: what the programs said."""

    def __init__(self, code: int | None, reason: str, logs: list[str]) -> None:
        super().__init__(f"{reason}: {logs}")
        self.code = code
        self.reason = reason
        self.logs = logs


@dataclass(frozen=True, slots=True)
class Receipt:
    """A transaction that succeeded. compute_units: of all its instructions; setting the limit costs 150 of them."""

    compute_units: int
    logs: list[str]


class ProgramChain:
    """The chain. payer: a funded key pair that pays for transactions.

    programs: the names of those to put there, all by default. UserError if one was not shipped.
    """

    def __init__(self, programs: Iterable[str] = tuple(PROGRAMS)) -> None:
        self.svm = LiteSVM()
        for name in programs:
            self.svm.add_program(PROGRAMS[name], load(name))
        self.payer = self.user()

    def user(self) -> Keypair:
        """A new key pair with lamports."""
        made = Keypair()
        self.svm.airdrop(made.pubkey(), LAMPORTS)
        return made

    def send(self, *instructions: Instruction, signers: Iterable[Keypair] = ()) -> Receipt:
        """One transaction, paid by `payer`, signed by it and by `signers`. Raises Refused if it fails; then nothing changed."""
        found = self.svm.send_transaction(self._transaction(instructions, signers))
        if isinstance(found, FailedTransactionMetadata):
            raise _refused(found)
        return Receipt(found.compute_units_consumed(), found.logs())

    def rehearse(self, *instructions: Instruction, signers: Iterable[Keypair] = ()) -> Receipt:
        """What `send` would do; nothing is kept. Raises Refused if it would fail."""
        found = self.svm.simulate_transaction(self._transaction(instructions, signers))
        if isinstance(found, FailedTransactionMetadata):
            raise _refused(found)
        return Receipt(found.meta().compute_units_consumed(), found.meta().logs())

    def refused(self, instruction: Instruction, *signers: Keypair) -> int | None:
        """The code with which a program refuses an instruction, None for an error without one. AssertionError if it succeeds."""
        try:
            self.rehearse(instruction, signers=signers)
        except Refused as refusal:
            return refusal.code
        message = f"no program refused {instruction}"
        raise AssertionError(message)

    def _transaction(self, instructions: Iterable[Instruction], signers: Iterable[Keypair]) -> Transaction:
        self.svm.expire_blockhash()
        keys = {signer.pubkey(): signer for signer in (self.payer, *signers)}
        message = Message([set_compute_unit_limit(MAX_COMPUTE_UNITS), *instructions], self.payer.pubkey())
        required = message.account_keys[: message.header.num_required_signatures]
        return Transaction([keys[key] for key in required], message, self.svm.latest_blockhash())

    def account(self, key: Pubkey) -> Account:
        """What lies there; KeyError if nothing does."""
        found = self.svm.get_account(key)
        if found is None:
            raise KeyError(str(key))
        return found

    def exists(self, key: Pubkey) -> bool:
        """Whether anything lies there."""
        found = self.svm.get_account(key)
        return found is not None and found.lamports > 0

    def put(self, key: Pubkey, data: bytes, owner: Pubkey) -> None:
        """Makes an account as if its program had written it, with enough lamports to stay."""
        lamports = self.svm.minimum_balance_for_rent_exemption(len(data))
        self.svm.set_account(key, Account(lamports, data, owner))

    def advance(self, slots: int = 1) -> None:
        """Time goes on: so many slots later, one second for each."""
        clock = self.svm.get_clock()
        self.svm.warp_to_slot(clock.slot + slots)
        clock = self.svm.get_clock()
        clock.unix_timestamp += slots
        self.svm.set_clock(clock)

    def mint(self, supply: int = 0) -> Pubkey:
        """A new mint of SPL Token without authorities."""
        made = Pubkey.new_unique()
        self.put(made, struct.pack("<I32sQBBI32s", 0, bytes(32), supply, 6, 1, 0, bytes(32)), TOKEN)
        return made

    def tokens(self, owner: Pubkey, mint: Pubkey, amount: int = 0, *, at: Pubkey | None = None) -> Pubkey:
        """A token account with so many units on it."""
        made = at or Pubkey.new_unique()
        fields = (bytes(mint), bytes(owner), amount, 0, bytes(32), 1, 0, 0, 0, 0, bytes(32))
        self.put(made, struct.pack("<32s32sQI32sBIQQI32s", *fields), TOKEN)
        return made

    def balance(self, tokens: Pubkey) -> int:
        """Units on a token account."""
        return int.from_bytes(self.account(tokens).data[64:72], "little")


def _refused(found: FailedTransactionMetadata) -> Refused:
    error = found.err()
    inner = error.err if isinstance(error, TransactionErrorInstructionError) else None
    return Refused(inner.code if isinstance(inner, InstructionErrorCustom) else None, str(error), found.meta().logs())


def without_signer(instruction: Instruction, place: int) -> Instruction:
    """The instruction with one account no longer marked as a signer."""
    return _changed(instruction, place, signer=False)


def read_only(instruction: Instruction, place: int) -> Instruction:
    """The instruction with one account no longer marked as written."""
    return _changed(instruction, place, writable=False)


def exchanged(instruction: Instruction, place: int, key: Pubkey) -> Instruction:
    """The instruction with another account in one place, marked as the one before."""
    return _changed(instruction, place, key=key)


def with_data(instruction: Instruction, data: bytes) -> Instruction:
    """The instruction with other data."""
    return Instruction(instruction.program_id, data, instruction.accounts)


def fewer_accounts(instruction: Instruction) -> Instruction:
    """The instruction without its last account."""
    return Instruction(instruction.program_id, bytes(instruction.data), instruction.accounts[:-1])


def _changed(
    instruction: Instruction, place: int, *, key: Pubkey | None = None, signer: bool | None = None, writable: bool | None = None
) -> Instruction:
    accounts = list(instruction.accounts)
    meta = accounts[place]
    accounts[place] = AccountMeta(
        meta.pubkey if key is None else key,
        meta.is_signer if signer is None else signer,
        meta.is_writable if writable is None else writable,
    )
    return Instruction(instruction.program_id, bytes(instruction.data), accounts)
