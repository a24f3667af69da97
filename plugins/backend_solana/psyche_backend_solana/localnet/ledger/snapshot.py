"""Converts a ledger to plain values and back: every account that was ever written, the newest slots and transactions.

LiteSVM cannot list all its accounts. But each account that differs from a new chain was writable in a transaction or was set
directly, and the ledger records both. Programs are saved like other accounts, so a chain keeps its first programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from solders.account import Account
from solders.pubkey import Pubkey

from psyche_backend_solana.localnet.ledger.blockhashes import BlockhashWindow
from psyche_backend_solana.localnet.ledger.genesis import LOADER, SYSTEM
from psyche_backend_solana.localnet.ledger.ledger import Ledger
from psyche_backend_solana.localnet.ledger.records import Block, TransactionRecord
from psyche_core.errors import WireError

_RECORDS = 1000


def take_snapshot(ledger: Ledger) -> dict[str, Any]:
    """Return the plain values for `restore`. This is fast: values are copied, nothing is encoded."""
    records = [record.to_plain() for _, record in zip(range(_RECORDS), ledger.history.newest_first(), strict=False)]
    return {
        "genesis_hash": ledger.genesis_hash,
        "slot": ledger.slot,
        "unix": ledger.unix,
        "transaction_count": ledger.transaction_count,
        "airdrops": ledger.airdrops,
        "blockhashes": [[slot, value] for slot, value in ledger.blockhashes.items()],
        "processed": [[signature, slot] for signature, slot in ledger.processed.items()],
        "accounts": [_account_plain(address, ledger.account(address)) for address in sorted(ledger.touched, key=bytes)],
        "records": records[::-1],
    }


def restore(plain: object, *, history: int) -> Ledger:
    """Return the ledger of a snapshot, in the same slot. Raises WireError for an invalid snapshot."""
    try:
        return _restore(plain, history)
    except WireError:
        raise
    except Exception as error:  # a wrong structure may raise any exception
        message = f"its content is malformed ({type(error).__name__}: {error})"
        raise WireError(message) from error


def _restore(plain: Any, history: int) -> Ledger:
    ledger = Ledger(unix=plain["unix"], history=history, genesis_hash=plain["genesis_hash"])
    accounts = [_read_account(one) for one in plain["accounts"]]
    programs = [one for one in accounts if one[1].executable]
    for address, account in [one for one in accounts if not one[1].executable] + programs:  # a program after its data
        if account.lamports or ledger.account(address) is not None:
            ledger.set_account(address, account)
        ledger.touched.add(address)
    ledger.transaction_count = _integer(plain["transaction_count"])
    ledger.airdrops = _integer(plain["airdrops"])
    ledger.processed = {str(signature): _integer(slot) for signature, slot in plain["processed"]}
    window = [(_integer(slot), str(value)) for slot, value in plain["blockhashes"]]
    slot, unix = _integer(plain["slot"]), _integer(plain["unix"])
    ledger.resume(slot, unix, BlockhashWindow.restored(window))
    parent = window[1][0] if len(window) > 1 else 0
    ledger.history.begin(Block(slot=slot, parent=parent, blockhash=ledger.blockhashes.latest, unix=unix, signatures=[]))
    for record in plain["records"]:
        ledger.history.add(TransactionRecord.from_plain(record))
    ledger.take_events()
    ledger.changes = 0
    return ledger


def _account_plain(address: Pubkey, account: Account | None) -> list[Any]:
    if account is None:
        return [bytes(address)]

    data, owner = bytes(account.data), bytes(account.owner)
    return [bytes(address), account.lamports, data, owner, account.executable, account.rent_epoch]


def _read_account(plain: Sequence[Any]) -> tuple[Pubkey, Account]:
    match plain:
        case [bytes() as address]:
            return Pubkey.from_bytes(address), Account(0, b"", SYSTEM, False, 0)
        case [bytes() as address, int() as lamports, bytes() as data, bytes() as owner, bool() as executable, int() as epoch]:
            program = Pubkey.from_bytes(owner)
            return Pubkey.from_bytes(address), Account(lamports, data, program, executable and program == LOADER, epoch)
    message = "a saved account is malformed"
    raise WireError(message)


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        message = f"expected a whole number, got {type(value).__name__}"
        raise WireError(message)

    return value
