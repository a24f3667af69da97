"""Watches the account of a run's state, and the chain's clock.

A websocket notification only starts a reading. The reading goes over HTTP: the head of the account and the clock come in one
call and so from one slot; `account_reader` reads as little of the rest as possible. Only a nonce higher than the last one is
passed on, so it does not matter which endpoint is behind. In addition, a small poll runs (24 bytes of each account): rarely
while a socket is open, often while none is. When it finds a change that no open socket has reported, the sockets are reopened.
After `give_up_seconds` without an answer the watcher raises BackendClosed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import anyio

from psyche_backend_solana.following.account_reader import Follower
from psyche_backend_solana.following.chain_clock import CLOCK_SYSVAR, UNIX_TIME_OFFSET, ChainClock, unix_time
from psyche_backend_solana.following.subscription import Subscription
from psyche_backend_solana.layouts.coordinator import Run
from psyche_backend_solana.layouts.coordinator_accounts import NONCE_OFFSET, CoordinatorAccount
from psyche_backend_solana.rpc import methods
from psyche_backend_solana.rpc.client import Rpc, RpcUnavailable
from psyche_backend_solana.rpc.failures import RpcError
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import BackendClosed, WireError

logger: logging.Logger = logging.getLogger("psyche.backend.solana")

CALL_SECONDS = 10.0
DEAF_SECONDS = 3.0
"""Seconds within which an open socket must report a change that a poll has found."""
BEHIND_SECONDS = 0.25
"""Seconds before the next request to an endpoint that is behind another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherIntervals:
    """Seconds between polls: calm while a socket is open, alert while none is."""

    calm: float = 10.0
    alert: float = 1.0


@dataclass(frozen=True, slots=True)
class AccountReading:
    """One reading of the account, the clock of the same slot, and the state (None before the run's first configuration)."""

    account: CoordinatorAccount
    clock: ChainClock
    state: CoordinatorState | None


class Watcher:
    """Watches one run. on_reading: called with every newer account. on_clock: called with every reading of the clock."""

    def __init__(
        self,
        rpc: Rpc,
        run: Run,
        *,
        on_reading: Callable[[AccountReading], None],
        on_clock: Callable[[ChainClock], None],
        intervals: WatcherIntervals | None = None,
        give_up_seconds: float = 300.0,
    ) -> None:
        self._rpc = rpc
        self._run = run
        self._on_reading = on_reading
        self._on_clock = on_clock
        self._intervals = intervals or WatcherIntervals()
        self._give_up_seconds = give_up_seconds
        self._call_seconds = min(CALL_SECONDS, max(1.0, give_up_seconds))
        self._subscriptions = [Subscription(endpoint, run.account, on_nonce=self.note_nonce) for endpoint in rpc.endpoints]
        self._follower = Follower(rpc, run, call_seconds=self._call_seconds)
        self._seen = -1
        self._reported_nonce = -1
        self._polled = -1
        self._unreported: tuple[int, float] | None = None
        self._wake = anyio.Event()
        self._answered = anyio.current_time()

    @property
    def listening(self) -> bool:
        """Whether a socket is open."""
        return any(subscription.listening for subscription in self._subscriptions)

    async def run(self) -> None:
        """Watch until cancelled. Raises BackendClosed if the account no longer exists or no endpoint answers any more."""
        async with anyio.create_task_group() as group:
            for subscription in self._subscriptions:
                group.start_soon(subscription.run)
            await self._keep_reading()

    def note_nonce(self, nonce: int) -> None:
        """Handle a report that the account has this nonce."""
        if nonce > self._reported_nonce:
            self._reported_nonce = nonce
            if nonce > self._seen:
                self._wake.set()

    def refresh(self) -> None:
        """Read now, because we have changed something ourselves."""
        self._wake.set()

    async def read(self) -> AccountReading | None:
        """Read account and clock now, and pass on newer values. Raises RpcError, RpcUnavailable, WireError, BackendClosed."""
        copy, clock = await self._follower.read(reported_nonce=max(self._reported_nonce, self._polled))
        self._on_clock(clock)
        if copy.nonce <= self._seen:
            self._answered = anyio.current_time()
            return None

        reading = AccountReading(copy.account, clock, copy.state)
        self._on_reading(reading)
        self._seen = copy.nonce
        self._answered = anyio.current_time()
        return reading

    async def read_clock(self) -> ChainClock:
        """Read the clock, and the nonce with it. Raises RpcError, RpcUnavailable, BackendClosed."""
        at = anyio.current_time()
        length = UNIX_TIME_OFFSET + 8 - NONCE_OFFSET
        account, clock = await methods.accounts(
            self._rpc,
            [self._run.account, CLOCK_SYSVAR],
            data_slice=(NONCE_OFFSET, length),
            timeout=self._call_seconds,
        )
        if account is None or clock is None:
            message = (
                f"the run's account {self._run.account} is gone: its owner has closed the run; "
                "what this client saved stays on its disk"
            )
            raise BackendClosed(message)

        reading = ChainClock(unix_time(bytes(NONCE_OFFSET) + clock.data), at)
        self._on_clock(reading)
        nonce = int.from_bytes(account.data[:8], "little")
        self._polled = max(self._polled, nonce)
        if nonce <= self._seen:
            self._answered = anyio.current_time()
        if nonce > self._seen:
            self._wake.set()
            if nonce > self._reported_nonce and self.listening and self._unreported is None:
                self._unreported = (nonce, at)
        return reading

    def _judge_sockets(self) -> None:
        """Reopen the sockets that have not reported, in time, a change that a poll found."""
        if self._unreported is None:
            return

        nonce, since = self._unreported
        if self._reported_nonce >= nonce or not self.listening:
            self._unreported = None
        elif anyio.current_time() - since > DEAF_SECONDS:
            self._unreported = None
            logger.warning("the websockets did not report a change; reopening them")
            for subscription in self._subscriptions:
                subscription.reopen()

    async def _keep_reading(self) -> None:
        while True:
            try:
                if self._seen < 0 or self._wake.is_set():
                    self._wake = anyio.Event()
                    await self.read()
                with anyio.move_on_after(self._pause()) as waited:
                    await self._wake.wait()
                if waited.cancelled_caught:
                    await self.read_clock()
                self._judge_sockets()
            except (RpcError, RpcUnavailable, WireError) as error:
                self._wake.set()
                silent = anyio.current_time() - self._answered
                if silent > self._give_up_seconds:
                    message = (
                        f"the coordinator could not be read for {silent:.0f} s: {error}; "
                        "start the client again, with another RPC endpoint beside this one"
                    )
                    raise BackendClosed(message) from error
                logger.info("reading the coordinator failed: %s", error)
                await anyio.sleep(min(self._intervals.alert, 1.0))

    def _pause(self) -> float:
        if max(self._reported_nonce, self._polled) > self._seen:
            return min(BEHIND_SECONDS, self._intervals.alert)  # the endpoint that was read is behind another one
        if self._unreported is not None:
            return min(DEAF_SECONDS, self._intervals.calm)

        return self._intervals.calm if self.listening else self._intervals.alert
