"""Reads from the chain's history who joined with which transport address.

The state holds members' keys but not where they are reached. Decided: every join names the run's instance, which nothing else but
the owner's commands does, so the history of that account is the list of joins. The address is taken from the instruction that the
member signed, not from log lines, which any program can print. Refuses to ask twice for the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
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
MAX_PAGES = 5
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

    async def read(self) -> bool:
        """Read what is new. Whether the book has changed. Raises RpcError, RpcUnavailable; nothing is lost then."""
        entries = await self._new_entries()
        found: dict[Signature, bytes | None] = {}
        limit = anyio.CapacityLimiter(AT_ONCE)
        errors: list[RpcError | RpcUnavailable] = []

        async def fetch(signature: Signature) -> None:
            async with limit:
                try:
                    found[signature] = await methods.transaction(self._rpc, signature, timeout=CALL_SECONDS)
                except (RpcError, RpcUnavailable) as error:
                    errors.append(error)

        async with anyio.create_task_group() as group:
            for entry in entries:
                if not entry.failed:
                    group.start_soon(fetch, entry.signature)

        if errors:
            raise errors[0]

        changed = False
        for entry in reversed(entries):  # oldest first
            content = found.get(entry.signature)
            if content is None and not entry.failed:
                return changed  # listed, but not served yet: everything from here on is read again

            for seen in joins_in(content, self._run) if content is not None else ():
                changed |= self._book.note(seen.signer, seen.p2p, seen.part)
            self._newest = entry.signature
        return changed

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
