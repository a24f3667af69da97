"""The chain itself: LiteSVM, its slots, its blockhashes, and its transactions and blocks.

Only one thread uses it (LiteSVM allows no more). Sockets, JSON-RPC and wall time belong to other modules. A transaction is
processed when it is sent, and is final at once. Signatures are remembered as long as their blockhash is valid; this prevents
repeated transactions. Durable nonces are not supported, because LiteSVM has no useful RecentBlockhashes sysvar.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from solders.account import Account
from solders.clock import Clock
from solders.compute_budget import set_compute_unit_limit
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import FailedTransactionMetadata, SimulatedTransactionInfo, TransactionMetadata

from psyche_backend_solana.localnet import base58
from psyche_backend_solana.localnet.ledger import tokens
from psyche_backend_solana.localnet.ledger.blockhashes import BlockhashWindow, next_hash
from psyche_backend_solana.localnet.ledger.clock import Instant
from psyche_backend_solana.localnet.ledger.genesis import (
    FIRST_SLOT,
    SLOTS_PER_EPOCH,
    faucet_key,
    install_program,
    is_installed,
    make_svm,
)
from psyche_backend_solana.localnet.ledger.meta import inner_json, return_data_json
from psyche_backend_solana.localnet.ledger.records import AccountSet, Block, Event, History, Landed, SlotBegan, TransactionRecord
from psyche_backend_solana.localnet.ledger.transaction_errors import error_json
from psyche_backend_solana.localnet.ledger.transactions import AccountKeys, account_keys, signatures_match
from psyche_backend_solana.localnet.settings import BLOCKHASH_SLOTS

SLOT_HASHES = 512
"""Slots whose hashes programs can read, as on a real chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A transaction that was not executed and cost nothing. err: the error as JSON."""

    err: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The effects of a simulated transaction. err: as JSON. accounts: the named accounts after it; empty if it failed."""

    err: Any
    logs: list[str]
    units: int
    fee: int
    inner: list[dict[str, Any]]
    return_data: dict[str, Any] | None
    accounts: Mapping[Pubkey, Account]


class Ledger:
    """A chain that begins at `unix` seconds.

    history: maximum number of transactions and of blocks that are kept. genesis_hash: base58; None makes a new one, so that
    every chain has a different one.
    """

    def __init__(self, *, unix: int, history: int = 10_000, genesis_hash: str | None = None) -> None:
        self._svm = make_svm()
        self._faucet = faucet_key()
        self.genesis_hash: str = genesis_hash or base58.encode(secrets.token_bytes(32))
        self.identity: Pubkey = Keypair.from_seed(base58.decode(self.genesis_hash)).pubkey()
        self.history: History = History(history)
        self.transaction_count: int = 0
        self.slot: int = FIRST_SLOT
        self.unix: int = unix
        self.blockhashes: BlockhashWindow = BlockhashWindow(FIRST_SLOT, next_hash(self.genesis_hash, FIRST_SLOT))
        self._slot_hashes: deque[tuple[int, Hash]] = deque(maxlen=SLOT_HASHES)
        self.processed: dict[str, int] = {}
        self.touched: set[Pubkey] = {self._faucet.pubkey()}
        self.changes: int = 0
        self._events: list[Event] = []
        self.airdrops: int = 0
        self._set_clock()
        self.history.begin(Block(slot=self.slot, parent=0, blockhash=self.blockhashes.latest, unix=unix, signatures=[]))

    # ------------------------------------------------------------ reading

    def account(self, address: Pubkey) -> Account | None:
        """An account; None if it does not exist or is empty."""
        account = self._svm.get_account(address)
        return None if account is None or account.lamports == 0 else account

    def balance(self, address: Pubkey) -> int:
        """Return an address's balance in lamports."""
        return self._svm.get_balance(address) or 0

    def program_accounts(self, program: Pubkey) -> list[tuple[Pubkey, Account]]:
        """Every account the program owns, ordered by address."""
        found = [(address, account) for address, account in self._svm.get_program_accounts(program) if account.lamports]
        return sorted(found, key=lambda pair: bytes(pair[0]))

    def has_program(self, address: Pubkey, elf: bytes) -> bool:
        """Whether exactly this program is installed there."""
        return is_installed(self._svm, address, elf)

    def rent_exempt(self, size: int) -> int:
        """Lamports that an account of `size` bytes needs."""
        return self._svm.minimum_balance_for_rent_exemption(size)

    def decimals(self, mint: str) -> int | None:
        """A mint's decimals; None if it is not a mint."""
        account = self.account(Pubkey.from_string(mint))
        parsed = None if account is None else tokens.read_mint(str(account.owner), bytes(account.data))
        return None if parsed is None else parsed.decimals

    @property
    def epoch(self) -> int:
        """The epoch of the newest slot."""
        return self.slot // SLOTS_PER_EPOCH

    def take_events(self) -> list[Event]:
        """The events since the last call, in order."""
        events, self._events = self._events, []
        return events

    # ------------------------------------------------------------ time

    def begin_slot(self, instant: Instant) -> None:
        """Start a later slot; the slots in between are skipped. Does nothing for the present slot or an earlier one."""
        if instant.slot <= self.slot:
            return

        parent, self.slot, self.unix = self.slot, instant.slot, max(instant.unix, self.unix)
        self._slot_hashes.appendleft((parent, Hash.from_string(self.blockhashes.latest)))
        self.blockhashes.add(self.slot, next_hash(self.blockhashes.latest, self.slot, fresh=secrets.token_bytes(32)))
        self.processed = {known: slot for known, slot in self.processed.items() if self.slot - slot <= BLOCKHASH_SLOTS}
        self._set_clock()
        self.history.begin(Block(slot=self.slot, parent=parent, blockhash=self.blockhashes.latest, unix=self.unix, signatures=[]))
        self._events.append(SlotBegan(self.slot, parent))

    def resume(self, slot: int, unix: int, blockhashes: BlockhashWindow) -> None:
        """Continue a saved chain from its newest slot, time and blockhashes."""
        self.slot, self.unix, self.blockhashes = slot, unix, blockhashes
        self._slot_hashes.clear()
        self._slot_hashes.extend((at, Hash.from_string(value)) for at, value in blockhashes.items() if at < slot)
        self._set_clock()

    def _set_clock(self) -> None:
        self._svm.set_clock(Clock(self.slot, 0, self.epoch, self.epoch + 1, self.unix))
        self._svm.set_slot_hashes(list(self._slot_hashes))  # a slot has its hash when it is over

    # ------------------------------------------------------------ transactions

    def send(self, transaction: VersionedTransaction, *, within: int = BLOCKHASH_SLOTS) -> TransactionRecord | Refused:
        """Process a sanitized transaction now. within: maximum age of its blockhash in slots.

        Raises RpcError for a bad lookup table.
        """
        refusal = self._refusal(transaction, within=within)
        if refusal is not None:
            return Refused(err=refusal)

        keys = account_keys(transaction.message, self.account)
        before = [self.balance(key) for key in keys.all]
        tokens_before = self._token_balances(keys.all)
        result = self._svm.send_transaction(transaction)
        after = [self.balance(key) for key in keys.all]
        err = error_json(result.err()) if isinstance(result, FailedTransactionMetadata) else None
        if err is not None and before[0] == after[0]:
            return Refused(err=err)

        meta = result.meta() if isinstance(result, FailedTransactionMetadata) else result
        record = TransactionRecord(
            signature=str(transaction.signatures[0]),
            raw=bytes(transaction),
            slot=self.slot,
            unix=self.unix,
            version=str(transaction.version()) if isinstance(transaction.version(), int) else "legacy",
            err=err,
            logs=list(meta.logs()),
            units=meta.compute_units_consumed(),
            fee=meta.fee(),
            accounts=[str(key) for key in keys.all],
            loaded_writable=len(keys.loaded_writable),
            loaded_readonly=len(keys.loaded_readonly),
            pre_balances=before,
            post_balances=after,
            pre_tokens=tokens_before,
            post_tokens=self._token_balances(keys.all),
            inner=inner_json(meta),
            return_data=return_data_json(meta),
        )
        self._landed(record, keys)
        return record

    def simulate(
        self, transaction: VersionedTransaction, *, verify: bool, check_blockhash: bool = True, within: int = BLOCKHASH_SLOTS
    ) -> Simulated:
        """Simulate a sanitized transaction now. verify: whether to check its signatures.

        Raises RpcError for a bad lookup table.
        """
        account_keys(transaction.message, self.account)
        refusal = self._refusal(transaction, within=within, verify=verify, check_blockhash=check_blockhash)
        if refusal is not None:
            return Simulated(err=refusal, logs=[], units=0, fee=0, inner=[], return_data=None, accounts={})

        self._svm.with_sigverify(verify)
        try:
            result = self._svm.simulate_transaction(transaction)
        finally:
            self._svm.with_sigverify(True)
        meta: TransactionMetadata = result.meta()
        return Simulated(
            err=None if isinstance(result, SimulatedTransactionInfo) else error_json(result.err()),
            logs=list(meta.logs()),
            units=meta.compute_units_consumed(),
            fee=meta.fee(),
            inner=inner_json(meta),
            return_data=return_data_json(meta),
            accounts=dict(result.post_accounts()) if isinstance(result, SimulatedTransactionInfo) else {},
        )

    def airdrop(self, address: Pubkey, lamports: int) -> TransactionRecord | Refused:
        """Give lamports with a transaction of the faucet. A different unit limit makes each transaction unique."""
        self.airdrops += 1
        paying = self._faucet.pubkey()
        instructions = [
            set_compute_unit_limit(1_400_000 - self.airdrops % 1_000_000),
            transfer(TransferParams(from_pubkey=paying, to_pubkey=address, lamports=lamports)),
        ]
        message = Message.new_with_blockhash(instructions, paying, Hash.from_string(self.blockhashes.latest))
        return self.send(VersionedTransaction(message, [self._faucet]))

    def _refusal(
        self, transaction: VersionedTransaction, *, within: int, verify: bool = True, check_blockhash: bool = True
    ) -> str | None:
        """The reason why a transaction may not be executed; None if it may. The checks have the order of a validator."""
        if verify and not signatures_match(transaction):
            return "SignatureFailure"

        if not check_blockhash:
            return None

        if str(transaction.signatures[0]) in self.processed:
            return "AlreadyProcessed"

        blockhash = str(transaction.message.recent_blockhash)
        return None if self.blockhashes.is_valid(blockhash, within=within) else "BlockhashNotFound"

    def _landed(self, record: TransactionRecord, keys: AccountKeys) -> None:
        self.history.add(record)
        self.processed[record.signature] = record.slot
        self.transaction_count += 1
        self.touched.update(keys.writable)
        written = keys.writable if record.err is None else keys.static[:1]
        self._changed(Landed(record, tuple(str(key) for key in written)))

    def _token_balances(self, keys: tuple[Pubkey, ...]) -> list[dict[str, Any]]:
        balances = []
        for index, key in enumerate(keys):
            account = self.account(key)
            if account is None or str(account.owner) not in tokens.PROGRAM_NAMES:
                continue

            held = tokens.read_token_account(str(account.owner), bytes(account.data))
            decimals = None if held is None else self.decimals(held.mint)
            if held is not None and decimals is not None:
                amount = tokens.amount_json(held.amount, decimals)
                entry = {"accountIndex": index, "mint": held.mint, "owner": held.owner, "programId": str(account.owner)}
                balances.append({**entry, "uiTokenAmount": amount})
        return balances

    # ------------------------------------------------------------ changes from outside

    def set_account(self, address: Pubkey, account: Account) -> None:
        """Replace an account without a transaction; for tests and for restoring state."""
        self._svm.set_account(address, account)
        self.touched.add(address)
        self._changed(AccountSet(str(address)))

    def install(self, address: Pubkey, elf: bytes, *, authority: Pubkey | None) -> None:
        """Install a program at its address. Raises UserError for an invalid program."""
        self.touched.update(install_program(self._svm, address, elf, authority=authority))
        self._changed(AccountSet(str(address)))

    def _changed(self, event: Event) -> None:
        self.changes += 1
        self._events.append(event)
