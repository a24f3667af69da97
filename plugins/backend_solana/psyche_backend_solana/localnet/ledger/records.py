"""The chain's records: processed transactions, blocks, and new events.

A record holds plain values only, so it can be saved as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any

from psyche_core.errors import WireError


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRecord:
    """A processed transaction, successful or not.

    raw: bytes as sent. unix: seconds. err: as JSON, None for success. units: compute units. fee and balances: lamports, one
    balance per account in the order of accounts. loaded_*: how many of the last accounts came from lookup tables. inner:
    `innerInstructions`.
    """

    signature: str
    raw: bytes
    slot: int
    unix: int
    version: str
    err: Any
    logs: list[str]
    units: int
    fee: int
    accounts: list[str]
    loaded_writable: int
    loaded_readonly: int
    pre_balances: list[int]
    post_balances: list[int]
    pre_tokens: list[dict[str, Any]]
    post_tokens: list[dict[str, Any]]
    inner: list[dict[str, Any]]
    return_data: dict[str, Any] | None

    def to_plain(self) -> list[Any]:
        """Convert to plain values for saving."""
        return list(astuple(self))

    @classmethod
    def from_plain(cls, plain: object) -> TransactionRecord:
        """Convert from the values of `to_plain`. Raises WireError."""
        names = cls.__slots__
        if not isinstance(plain, list) or len(plain) != len(names):
            message = f"a saved transaction has {len(names)} parts"
            raise WireError(message)

        values: dict[str, Any] = dict(zip(names, plain, strict=True))
        types = {"signature": str, "raw": bytes, "slot": int}
        if not all(isinstance(values[name], expected) for name, expected in types.items()):
            message = "a saved transaction's signature, bytes or slot are of the wrong type"
            raise WireError(message)

        return cls(**values)


@dataclass(slots=True, kw_only=True)
class Block:
    """A slot that was not skipped. signatures: those of its transactions, in order; the newest block's list still grows."""

    slot: int
    parent: int
    blockhash: str
    unix: int
    signatures: list[str]


@dataclass(frozen=True, slots=True)
class SlotBegan:
    """A new slot."""

    slot: int
    parent: int


@dataclass(frozen=True, slots=True)
class Landed:
    """A transaction was processed. written: accounts (base58) it may have changed."""

    record: TransactionRecord
    written: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AccountSet:
    """An account was replaced without a transaction."""

    address: str


Event = SlotBegan | Landed | AccountSet


class History:
    """The newest transactions and blocks, at most `size` of each."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._records: dict[str, TransactionRecord] = {}
        self._blocks: dict[int, Block] = {}

    def add(self, record: TransactionRecord) -> None:
        """Add a transaction to the newest block."""
        self._records[record.signature] = record
        block = self._blocks.get(record.slot)
        if block is not None:
            block.signatures.append(record.signature)
        while len(self._records) > self._size:
            del self._records[next(iter(self._records))]

    def begin(self, block: Block) -> None:
        """Add a new block."""
        self._blocks[block.slot] = block
        while len(self._blocks) > self._size:
            del self._blocks[next(iter(self._blocks))]

    def record(self, signature: str) -> TransactionRecord | None:
        """A transaction; None if it is unknown or no longer kept."""
        return self._records.get(signature)

    def block(self, slot: int) -> Block | None:
        """A block; None if the slot was skipped, is no longer kept or lies in the future."""
        return self._blocks.get(slot)

    @property
    def first_slot(self) -> int:
        """The slot of the oldest block."""
        return next(iter(self._blocks))

    def blocks(self) -> Iterable[Block]:
        """The blocks, oldest first."""
        return self._blocks.values()

    def newest_first(self) -> Iterable[TransactionRecord]:
        """The transactions, newest first."""
        return reversed(self._records.values())
