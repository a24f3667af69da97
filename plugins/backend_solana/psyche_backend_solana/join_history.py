"""Reads from the chain's history who joined with which transport address.

The state holds members' keys but not where they are reached. Decided: every join names the run's instance, which nothing else but
the owner's commands does, so the history of that account is the list of joins. The address is taken from the instruction that the
member signed, not from log lines, which any program can print. Refuses to ask twice for the same transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import anyio
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from psyche_backend_solana.address_parts import AddressBook
from psyche_backend_solana.layouts.coordinator import Number, Run
from psyche_backend_solana.rpc import methods
from psyche_backend_solana.rpc.client import Rpc, RpcUnavailable
from psyche_backend_solana.rpc.failures import RpcError

CALL_SECONDS = 15.0
AT_ONCE = 8
CHUNK = 64
"""Transactions read before it is looked whether older ones are needed."""
MAX_PAGES = 5
TRIES = 4
"""How often a transaction that is listed and not served is asked for: a provider may be late, or have thrown it away."""
_JOIN_HEAD = 1 + 32 + 2


@dataclass(frozen=True, slots=True)
class JoinSeen:
    """A join instruction: who signed it, with which transport key, and the part of an address it carries."""

    signer: bytes
    p2p: bytes
    part: bytes


def joins_in(transaction: bytes, run: Run) -> Iterator[JoinSeen]:
    """The joins to a run in a signed transaction, as its own instructions (a join through another program is not seen)."""
    message = VersionedTransaction.from_bytes(transaction).message
    keys = message.account_keys
    for instruction in message.instructions:
        data, places = bytes(instruction.data), bytes(instruction.accounts)
        if max((instruction.program_id_index, *places)) >= len(keys) or keys[instruction.program_id_index] != run.program:
            continue
        if len(data) < _JOIN_HEAD or data[0] != Number.join or len(places) < 4 or keys[places[3]] != run.account:
            continue

        length = int.from_bytes(data[33:35], "little")
        yield JoinSeen(bytes(keys[places[0]]), data[1:33], data[_JOIN_HEAD : _JOIN_HEAD + length])


class JoinHistory:
    """Follows the history of a run's instance and notes what it finds in a book."""

    def __init__(self, rpc: Rpc, run: Run, book: AddressBook) -> None:
        self._rpc = rpc
        self._run = run
        self._book = book
        self._newest: Signature | None = None
        self._unserved: Counter[Signature] = Counter()

    async def read(self, wanted: Collection[tuple[bytes, bytes]]) -> bool:
        """Read what is new. Whether the book has changed. Raises RpcError, RpcUnavailable; nothing is lost then.

        wanted: signer and transport key of every member. The first reading goes back only until the joins of all are found.
        """
        entries = await self._new_entries()
        found: dict[Signature, tuple[JoinSeen, ...] | None] = {}
        missing = set(wanted)
        read = 0
        for start in range(0, len(entries), CHUNK):
            chunk = entries[start : start + CHUNK]
            found |= await self._joins_of([entry.signature for entry in chunk if not entry.failed])
            read = start + len(chunk)
            missing -= {(seen.signer, seen.p2p) for joins in found.values() for seen in joins or () if seen.part[:1] == b"\0"}
            if self._newest is None and not missing:
                break  # what is older is about addresses nobody has any more

        changed = False
        for entry in reversed(entries[:read]):  # oldest first
            joins = () if entry.failed else found[entry.signature]
            if joins is None:
                self._unserved[entry.signature] += 1
                if self._unserved[entry.signature] < TRIES:
                    return changed  # listed, but not served yet: everything from here on is read again
                joins = ()

            for seen in joins:
                changed |= self._book.note(seen.signer, seen.p2p, seen.part)
            self._newest = entry.signature
        self._unserved.clear()
        return changed

    async def _joins_of(self, signatures: Collection[Signature]) -> dict[Signature, tuple[JoinSeen, ...] | None]:
        """The joins in transactions, several asked for at a time; None for one that is not served. Raises what a call raises."""
        found: dict[Signature, tuple[JoinSeen, ...] | None] = {}
        errors: list[RpcError | RpcUnavailable] = []
        limit = anyio.CapacityLimiter(AT_ONCE)

        async def fetch(signature: Signature) -> None:
            async with limit:
                try:
                    content = await methods.transaction(self._rpc, signature, timeout=CALL_SECONDS)
                except (RpcError, RpcUnavailable) as error:
                    errors.append(error)
                else:
                    found[signature] = None if content is None else tuple(joins_in(content, self._run))

        async with anyio.create_task_group() as group:
            for signature in signatures:
                group.start_soon(fetch, signature)
        if errors:
            raise errors[0]

        return found

    async def _new_entries(self) -> list[methods.HistoryEntry]:
        """Newest first. The first reading goes back MAX_PAGES pages at most: who joined before them will have joined again."""
        entries: list[methods.HistoryEntry] = []
        before: Signature | None = None
        for _ in range(MAX_PAGES):
            page = await methods.history(self._rpc, self._run.instance, until=self._newest, before=before, timeout=CALL_SECONDS)
            entries += page
            if len(page) < methods.HISTORY_PAGE:
                break
            before = page[-1].signature
        return entries
