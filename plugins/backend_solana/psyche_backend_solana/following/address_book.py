"""The transport addresses of a run's members, read from accounts that the members write.

Accounts are read by their addresses, up to a hundred in a call, and only the ones that are needed: unknown members at once and
then less and less often, all members when an address may have changed. The results of one call are kept if the next call fails.
Only the newest address of each member is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable

import anyio
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche_backend_solana.layouts import address_record
from psyche_backend_solana.layouts.coordinator import Run
from psyche_backend_solana.rpc import methods
from psyche_backend_solana.rpc.client import Rpc, RpcUnavailable
from psyche_backend_solana.rpc.failures import RpcError
from psyche_core.types import NodeIdentity

logger: logging.Logger = logging.getLogger("psyche.backend.solana")

AT_ONCE = 100
"""Maximum number of accounts that a provider returns in one call."""
CALL_SECONDS = 15.0
FIRST_PAUSE = 0.2


class AddressBook:
    """The addresses of a run's members."""

    def __init__(self, rpc: Rpc, run: Run, *, program: Pubkey) -> None:
        """program: address of the authorizer program."""
        self._rpc = rpc
        self._run = run
        self._program = program
        self._known: dict[NodeIdentity, bytes] = {}
        self._places: dict[bytes, Pubkey] = {}
        self._wanted = anyio.Event()
        self._renewals = 0

    def address(self, member: NodeIdentity) -> bytes | None:
        """The address of a member with this transport key; None if unknown."""
        return self._known.get(member)

    def missing(self, members: Iterable[NodeIdentity]) -> tuple[NodeIdentity, ...]:
        """The members whose address is unknown."""
        return tuple(member for member in members if member not in self._known)

    def keep(self, members: Collection[NodeIdentity]) -> None:
        """Drop the addresses of all other members."""
        self._known = {member: address for member, address in self._known.items() if member in members}
        signers = {member.signer for member in members}
        self._places = {signer: place for signer, place in self._places.items() if signer in signers}

    async def read(self, wanted: Collection[NodeIdentity]) -> bool:
        """Read the addresses of these members. Returns whether an address is new or changed.

        Raises RpcError, RpcUnavailable; addresses read before the error are kept.
        """
        members = sorted(wanted, key=lambda member: member.signer)
        changed = False
        failure: RpcError | RpcUnavailable | None = None
        for start in range(0, len(members), AT_ONCE):
            part = members[start : start + AT_ONCE]
            places = [self._place(member.signer) for member in part]
            try:
                found = await methods.accounts(self._rpc, places, data_slice=address_record.DELEGATES, timeout=CALL_SECONDS)
            except (RpcError, RpcUnavailable) as error:
                failure = error
                continue
            for member, read in zip(part, found, strict=True):
                if read is not None and read.owner == self._program:
                    changed |= self._note(member, address_record.address_in(read.data, member.p2p))
        if failure is not None and not changed:
            raise failure

        return changed

    async def unwritten(self, member: NodeIdentity, address: bytes, *, timeout: float) -> tuple[tuple[Instruction, ...], ...]:
        """The instructions that write this address into the member's account, per transaction, in order; () if already there.

        Raises RpcError, RpcUnavailable, ValueError.
        """
        user = Pubkey(member.signer)
        read = await methods.account(self._rpc, self._place(member.signer), timeout=timeout)
        made = read is not None and read.owner == self._program
        if read is not None and made:
            start, length = address_record.DELEGATES
            if address_record.address_in(read.data[start : start + length], member.p2p) == address:
                return ()

        return address_record.publication(
            user, self._run.instance, p2p=member.p2p, address=address, made=made, program=self._program
        )

    def look(self) -> None:
        """Read missing addresses soon, because there is a new member."""
        self._wanted.set()

    def look_for_renewals(self) -> None:
        """Read all addresses again, because one may have changed.

        An endpoint may be behind, so they are read twice if needed.
        """
        self._renewals = 2
        self._wanted.set()

    async def keep_reading(
        self,
        members: Callable[[], frozenset[NodeIdentity]],
        on_change: Callable[[], None],
        *,
        seldom: float,
        renewals: float,
    ) -> None:
        """Read until cancelled.

        seldom: maximum seconds between two reads of missing addresses. renewals: minimum seconds between two reads of all
        addresses.
        """
        await self._wanted.wait()  # until the first state names the members
        misses, looked = 0, float("-inf")
        while True:
            self._wanted = anyio.Event()
            present = members()
            self.keep(present)
            everybody = self._renewals > 0 and anyio.current_time() - looked >= renewals
            if everybody:
                looked = anyio.current_time()
                self._renewals -= 1
            changed = False
            try:
                changed = await self.read(present if everybody else self.missing(present))
            except (RpcError, RpcUnavailable) as error:
                logger.info("reading the members' addresses failed: %s", error)
            if changed:
                on_change()
                self._renewals = 0 if everybody else self._renewals

            misses = 0 if changed else misses + 1
            pause = min(seldom, FIRST_PAUSE * 2.0 ** min(misses, 16)) if self.missing(present) else seldom
            if self._renewals:
                pause = min(pause, max(0.0, looked + renewals - anyio.current_time()))
            with anyio.move_on_after(pause):
                await self._wanted.wait()

    def _note(self, member: NodeIdentity, address: bytes | None) -> bool:
        if address is None or self._known.get(member) == address:
            return False

        self._known[member] = address
        return True

    def _place(self, signer: bytes) -> Pubkey:
        if signer not in self._places:
            self._places[signer] = address_record.place(Pubkey(signer), self._run.instance, program=self._program)
        return self._places[signer]
