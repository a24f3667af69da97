"""Reads a run's account repeatedly, and transfers as few bytes as possible.

The reader keeps a copy of the account as it was after one instruction. Each reading leads to a later copy or changes nothing.
`account_slices` decides which bytes a reading needs. Two rules make sure that all bytes belong to one moment, whichever endpoint
answers: added entries are read before the head, and the other parts are read between two readings of the head with the same
nonce; and the slots of the answers must be in that order.

The whole account is read in one call if this fails three times, if the parts do not fit together, when an epoch begins or ends,
after a change to another endpoint, and every few minutes. So wrong bytes from one endpoint are replaced soon. An endpoint that
is behind changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from psyche_backend_solana.following import account_slices
from psyche_backend_solana.following.account_slices import HEAD, WHOLE, Copy, Slice
from psyche_backend_solana.following.chain_clock import CLOCK_SYSVAR, ChainClock, unix_time
from psyche_backend_solana.layouts.coordinator import Run
from psyche_backend_solana.layouts.coordinator_accounts import NONCE_OFFSET
from psyche_backend_solana.lookup.runs import expect_owner, read_coordinator
from psyche_backend_solana.rpc import methods
from psyche_backend_solana.rpc.client import Rpc, RpcUnavailable
from psyche_backend_solana.rpc.endpoints import Endpoint
from psyche_backend_solana.rpc.failures import RpcError
from psyche_core.errors import BackendClosed, WireError

MOST_BEHIND = 64
"""If a copy is more instructions behind than this, the whole account is read, which is then cheaper than the parts."""
WHOLE_SECONDS = 300.0
"""Seconds after which the whole account is read again."""
TRIES = 3
"""Attempts to read the parts, if instructions arrive in between, before the whole account is read."""


@dataclass(frozen=True, slots=True)
class _Head:
    """The account's head and the clock, both of one slot."""

    slot: int
    data: bytes
    clock: ChainClock

    @property
    def nonce(self) -> int:
        return int.from_bytes(self.data[NONCE_OFFSET : NONCE_OFFSET + 8], "little")


class Follower:
    """Follows the account of one run."""

    def __init__(self, rpc: Rpc, run: Run, *, call_seconds: float) -> None:
        self._rpc = rpc
        self._run = run
        self._call_seconds = call_seconds
        self._copy: Copy | None = None
        self._endpoint: Endpoint | None = None
        self._since = 0.0

    @property
    def nonce(self) -> int:
        """Nonce of the copy; -1 before the first reading."""
        return -1 if self._copy is None else self._copy.nonce

    async def read(self, *, reported_nonce: int) -> tuple[Copy, ChainClock]:
        """The current account, as known to an endpoint, and the clock.

        reported_nonce: the highest one. Raises RpcError, RpcUnavailable, WireError, BackendClosed; the copy is then unchanged.
        """
        copy = self._copy
        if copy is None or copy.state is None or self._is_old():
            return await self._whole()

        reported = reported_nonce - copy.nonce
        count = reported if 1 <= reported <= MOST_BEHIND else 1  # a websocket may report any number
        while True:
            where = account_slices.additions(copy.state, count)
            content = None if where is None else await self._slice(where)
            head = await self._head()
            behind = head.nonce - copy.nonce
            if behind <= 0:
                return copy, head.clock
            if where is not None and content is not None and content.slot <= head.slot:
                found = account_slices.added(copy, head.data, where, content.data, now=head.clock.unix)
                if found is not None:
                    return self._keep(found), head.clock
            if behind <= count or behind > MOST_BEHIND or where is None:
                break
            count = behind  # there were more instructions than were reported

        if behind > MOST_BEHIND:
            return await self._whole()
        return await self._parts(copy, head) or await self._whole()

    async def _parts(self, copy: Copy, head: _Head) -> tuple[Copy, ChainClock] | None:
        """Read the parts that can have changed; None if the whole account must be read."""
        for _ in range(TRIES):
            plan = account_slices.parts(copy, head.data)
            if plan is None:
                return None

            reads = await self._slices(plan.slices)
            closing = await self._head()
            steady = all(head.slot <= read.slot <= closing.slot for read in reads)
            if steady and closing.nonce == head.nonce:
                found = account_slices.gathered(copy, plan, closing.data, [read.data for read in reads])
                return None if found is None else (self._keep(found), closing.clock)
            if closing.nonce > copy.nonce:  # the answer is not from an endpoint that is behind
                head = closing
        return None

    def _is_old(self) -> bool:
        return self._rpc.current is not self._endpoint or anyio.current_time() - self._since > WHOLE_SECONDS

    def _keep(self, found: Copy) -> Copy:
        if self._copy is None or found.nonce > self._copy.nonce:
            self._copy = found
        return self._copy

    async def _whole(self) -> tuple[Copy, ChainClock]:
        at = anyio.current_time()
        account, clock = await methods.accounts(self._rpc, [self._run.account, CLOCK_SYSVAR], timeout=self._call_seconds)
        found = self._existing(account)
        read_coordinator(found, self._run)
        reading = ChainClock(unix_time(clock.data) if clock is not None else 0, at)
        whole = Copy.of(found.data, earlier=self._copy)
        if self._copy is None or whole.nonce >= self._copy.nonce:
            self._copy, self._endpoint, self._since = whole, self._rpc.current, at
        return self._copy, reading

    async def _head(self) -> _Head:
        at = anyio.current_time()
        account, clock = await methods.accounts(
            self._rpc, [self._run.account, CLOCK_SYSVAR], data_slice=(HEAD.start, HEAD.length), timeout=self._call_seconds
        )
        found = self._existing(account)
        unix = unix_time(clock.data) if clock is not None else 0
        return _Head(found.slot, _cut(found.data, HEAD), ChainClock(unix, at))

    async def _slice(self, where: Slice) -> methods.AccountRead:
        (account,) = await methods.accounts(
            self._rpc, [self._run.account], data_slice=(where.start, where.length), timeout=self._call_seconds
        )
        found = self._existing(account, part=True)
        return methods.AccountRead(found.slot, found.lamports, found.owner, _cut(found.data, where))

    async def _slices(self, wanted: Sequence[Slice]) -> list[methods.AccountRead]:
        """Read several slices at the same time. Raises the errors of each read."""
        found: dict[int, methods.AccountRead] = {}
        errors: list[RpcError | RpcUnavailable | WireError | BackendClosed] = []

        async def read(number: int, where: Slice) -> None:
            try:
                found[number] = await self._slice(where)
            except (RpcError, RpcUnavailable, WireError, BackendClosed) as error:
                errors.append(error)

        async with anyio.create_task_group() as group:
            for number, where in enumerate(wanted):
                group.start_soon(read, number, where)
        if errors:
            raise errors[0]

        return [found[number] for number in range(len(wanted))]

    def _existing(self, account: methods.AccountRead | None, *, part: bool = False) -> methods.AccountRead:
        if account is None or not (account.data or part):
            message = (
                f"the run's account {self._run.account} is gone: its owner has closed the run; "
                "what this client saved stays on its disk"
            )
            raise BackendClosed(message)

        expect_owner(account, self._run.program, "coordinator account")
        return account


def _cut(data: bytes, where: Slice) -> bytes:
    """The requested slice, also from an endpoint that sends the whole account. Raises WireError for another length."""
    content = data[where.start : where.end] if len(data) == WHOLE.length else data
    if len(content) != where.length:
        message = f"expected {where.length} bytes of the coordinator account from {where.start} on, got {len(content)}"
        raise WireError(message)

    return content
