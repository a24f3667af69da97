"""A local chain: the node in its thread, RPC providers, the clock, and the state file.

    async with LocalChain() as chain:
        client = AsyncClient(chain.rpc_url)

Clients connect through real sockets, also within one process, so they use the same code as with a real validator. Time follows
the wall clock, or stands still until a test moves it. A restored chain that follows the wall clock skips the slots it missed. So
a client never sees a slot twice, even when the newest changes were lost with a killed process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any, Self, TypeVar

import anyio.to_thread
from solders.account import Account
from solders.pubkey import Pubkey

from psyche_backend_solana.localnet.ledger.clock import ChainClock, Instant
from psyche_backend_solana.localnet.ledger.genesis import FIRST_SLOT
from psyche_backend_solana.localnet.ledger.ledger import Ledger, Refused
from psyche_backend_solana.localnet.ledger.snapshot import restore, take_snapshot
from psyche_backend_solana.localnet.ledger.state_file import StateFile
from psyche_backend_solana.localnet.ledger.transaction_errors import error_sentence
from psyche_backend_solana.localnet.rpc.faults import FaultSwitch
from psyche_backend_solana.localnet.serving.engine import Engine
from psyche_backend_solana.localnet.serving.node import Node
from psyche_backend_solana.localnet.serving.provider import RpcProvider
from psyche_backend_solana.localnet.serving.websocket_server import Outboxes
from psyche_backend_solana.localnet.settings import ChainSettings
from psyche_backend_solana.programs import PROGRAMS, load, sums
from psyche_core.errors import ConfigError, UserError, WireError

T = TypeVar("T")
logger: logging.Logger = logging.getLogger("psyche.backend.solana.localnet")


def shipped_programs() -> dict[str, bytes]:
    """The programs of this package, by address. Blocking. Raises UserError for damaged ones."""
    names = sums()
    return {str(address): load(name) for name, address in PROGRAMS.items() if f"{name}.so" in names}


class LocalChain:
    """A chain that runs while it is entered. Entering opens the first RPC provider.

    wall: returns unix seconds, at which the clock starts. steady: returns seconds of a monotonic clock, which drives it.
    `restored`: whether the chain continues from a saved state. `differing`: addresses whose programs are not those of the
    settings; a chain keeps its own until they are upgraded.
    """

    def __init__(
        self,
        settings: ChainSettings | None = None,
        *,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings: ChainSettings = settings or ChainSettings()
        self.providers: list[RpcProvider] = []
        self._wall = wall
        self._steady = steady
        self._outboxes = Outboxes()
        self._numbers = itertools.count(1)
        self._engine = Engine(self._outboxes.deliver)
        self._clock = ChainClock(FIRST_SLOT, wall(), slot_ms=self.settings.slot_ms, steady=None)
        self._state_file: StateFile | None = None
        self._saved_changes = -1
        self._stack = AsyncExitStack()
        self.restored: bool = False
        self.differing: list[str] = []

    async def __aenter__(self) -> Self:
        """Create or restore the chain, and listen.

        Raises UserError if a port, the state or a program cannot be used, ConfigError if an address is invalid.
        """
        settings = self.settings
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._engine.aclose)
            saved, programs = await anyio.to_thread.run_sync(self._load)
            await self._engine.start(lambda: self._make(saved, programs))
            if saved is None:
                for address, lamports in settings.airdrops.items():
                    await self.airdrop(address, lamports)
            stack.push_async_callback(self._save_at_end)
            stack.push_async_callback(self._close_doors)
            await self.open_provider(settings.rpc_port, settings.ws_port)
            if not settings.manual_clock:
                stack.push_async_callback(_ending(self._keep_time()))
            if self._state_file is not None:
                stack.push_async_callback(_ending(self._keep_saved()))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close the providers and save; idempotent."""
        with anyio.CancelScope(shield=True):  # a cancelled close would lose state and leave sockets open
            await self._stack.aclose()

    @property
    def rpc_url(self) -> str:
        """The RPC URL of the first provider."""
        return self.providers[0].rpc_url

    @property
    def ws_url(self) -> str:
        """The websocket URL of the first provider."""
        return self.providers[0].ws_url

    @property
    def faults(self) -> FaultSwitch:
        """The faults of the first provider."""
        return self.providers[0].faults

    async def open_provider(self, rpc_port: int = 0, ws_port: int | None = None) -> RpcProvider:
        """Open another pair of URLs of the same chain, with its own faults. Raises UserError if a port cannot be used."""
        settings = self.settings
        provider = RpcProvider(
            self._engine,
            host=settings.host,
            outboxes=self._outboxes,
            numbers=self._numbers,
            limits=settings.limits,
            admin=settings.allow_faults,
        )
        await provider.open(rpc_port, ws_port)
        self.providers.append(provider)
        return provider

    # ------------------------------------------------------------ for tests

    async def now(self) -> Instant:
        """The chain's slot and time."""
        return await self._on_ledger(lambda ledger: Instant(ledger.slot, ledger.unix))

    async def advance(self, seconds: float) -> Instant:
        """Advance the time immediately, by at least one slot. Raises ValueError for negative seconds."""
        return await self._begin_slot(self._clock.advance(seconds))

    async def advance_slots(self, slots: int) -> Instant:
        """Advance immediately by slots, with their time. Raises ValueError for fewer than one."""
        return await self._begin_slot(self._clock.advance_slots(slots))

    async def set_time(self, unix: float) -> Instant:
        """Start a slot at that time; the clock continues from it. Raises ValueError for a time in the past."""
        return await self._begin_slot(self._clock.set_time(unix))

    async def expire_blockhashes(self) -> None:
        """Invalidate all old blockhashes. Starts a new slot."""
        await self.advance_slots(1)
        await self._on_ledger(lambda ledger: ledger.blockhashes.forget())

    async def airdrop(self, address: str, lamports: int) -> str:
        """Give lamports; returns the signature.

        Raises ConfigError for an invalid address, UserError if there are too few lamports.
        """
        pubkey = read_address(address)
        given = await self._on_ledger(lambda ledger: ledger.airdrop(pubkey, lamports))
        if isinstance(given, Refused) or given.err is not None:
            message = f"{lamports} lamports cannot be given to {address}: {error_sentence(given.err)}"
            raise UserError(message)

        return given.signature

    async def account(self, address: str) -> Account | None:
        """The current state of an account. Raises ConfigError for an invalid address."""
        pubkey = read_address(address)
        return await self._on_ledger(lambda ledger: ledger.account(pubkey))

    async def program_accounts(self, address: str) -> list[tuple[Pubkey, Account]]:
        """All accounts that a program owns, with their addresses. Raises ConfigError for an invalid address."""
        pubkey = read_address(address)
        return await self._on_ledger(lambda ledger: ledger.program_accounts(pubkey))

    async def set_account(self, address: str, account: Account) -> None:
        """Replace an account without a transaction; subscribers are notified. Raises ConfigError for an invalid address."""
        pubkey = read_address(address)
        await self._on_ledger(lambda ledger: ledger.set_account(pubkey, account))

    async def install(self, address: str, elf: bytes, *, authority: str | None = None) -> None:
        """Install a program at an address. Raises UserError for an invalid program, ConfigError for an invalid address."""
        pubkey, owner = read_address(address), None if authority is None else read_address(authority)
        await self._on_ledger(lambda ledger: ledger.install(pubkey, elf, authority=owner))

    async def save(self) -> None:
        """Save the state to disk. Raises UserError if no file is configured or it cannot be saved."""
        if self._state_file is None:
            message = "this chain keeps no state; give ChainSettings a `state` file"
            raise UserError(message)

        changes, plain = await self._on_ledger(lambda ledger: (ledger.changes, take_snapshot(ledger)))
        await anyio.to_thread.run_sync(self._state_file.save, plain)
        self._saved_changes = changes

    async def _on_ledger(self, action: Callable[[Ledger], T]) -> T:
        node = self._engine.node
        return await self._engine.call(lambda: node.act(action))

    async def _begin_slot(self, instant: Instant) -> Instant:
        await self._engine.call(self._engine.node.begin_slot, instant)
        return instant

    # ------------------------------------------------------------ beginning

    def _load(self) -> tuple[Any, Mapping[str, bytes]]:
        """Load the saved state and the programs. Blocking."""
        settings = self.settings
        programs = shipped_programs() if settings.programs is None else settings.programs
        if settings.state is None:
            return None, programs

        self._state_file = StateFile(settings.state, max_bytes=settings.limits.state_bytes)
        return None if settings.reset else self._state_file.load(), programs

    def _make(self, saved: Any, programs: Mapping[str, bytes]) -> Node:
        """Create the node. Called in its thread."""
        settings, wall = self.settings, self._wall()
        if saved is None:
            unix = wall if settings.start_time is None else float(settings.start_time)
            ledger = Ledger(unix=int(unix), history=settings.limits.history)
            start = Instant(FIRST_SLOT, int(unix))
        else:
            ledger, start, unix = self._go_on(saved, wall)
        authority = None if settings.upgrade_authority is None else read_address(settings.upgrade_authority)
        for text, elf in programs.items():
            address = read_address(text)
            if ledger.account(address) is None:
                ledger.install(address, elf, authority=authority)
            elif not ledger.has_program(address, elf):
                self.differing.append(text)
        steady = None if settings.manual_clock else self._steady()
        self._clock = ChainClock(start.slot, unix, slot_ms=settings.slot_ms, steady=steady)
        ledger.begin_slot(start)
        ledger.take_events()
        return Node(
            ledger,
            settings.limits,
            admin=settings.allow_faults,
            save=self._save_now if self._state_file else None,
            providers=lambda: [(provider.rpc_place, provider.ws_place) for provider in tuple(self.providers)],
        )

    def _go_on(self, saved: Any, wall: float) -> tuple[Ledger, Instant, float]:
        assert self._state_file is not None, "what is saved came from a store"
        try:
            ledger = restore(saved, history=self.settings.limits.history)
        except WireError as error:
            raise self._state_file.unusable(error) from error

        self.restored = True
        if self.settings.manual_clock:
            return ledger, Instant(ledger.slot, ledger.unix), float(ledger.unix)

        missed = max(0.0, wall - ledger.unix)
        slots = max(1, int(missed * 1000 / self.settings.slot_ms) + 1)
        return ledger, Instant(ledger.slot + slots, int(ledger.unix + missed)), ledger.unix + missed

    # ------------------------------------------------------------ while it runs

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(self._clock.until_next_slot())
            await self._begin_slot(self._clock.follow(self._steady()))

    async def _keep_saved(self) -> None:
        while True:
            await asyncio.sleep(self.settings.save_seconds)
            await self._save_changes()

    async def _save_changes(self) -> None:
        try:
            if await self._on_ledger(lambda ledger: ledger.changes) != self._saved_changes:
                await self.save()
        except UserError as error:
            logger.error("%s", error)  # noqa: TRY400  # the sentence is enough

    def _save_now(self) -> None:
        """Save, in the node's thread, for `psyche_saveState`."""
        assert self._state_file is not None, "served only where there is a store"
        self._state_file.save(take_snapshot(self._engine.node.ledger))

    async def _save_at_end(self) -> None:
        if self._state_file is not None:
            self._saved_changes = -1  # the time and the blockhashes always change
            await self._save_changes()

    async def _close_doors(self) -> None:
        for provider in self.providers:
            await provider.close()


def read_address(text: str) -> Pubkey:
    """Parse an address in base58. Raises ConfigError."""
    try:
        return Pubkey.from_string(text)
    except ValueError as error:
        message = f"an address is base58 of 32 bytes, got {text!r}"
        raise ConfigError(message) from error


def _ending(work: Coroutine[Any, Any, None]) -> Callable[[], Coroutine[Any, Any, None]]:
    """Start work in the background; calling the result stops it."""
    task = asyncio.create_task(work)
    task.add_done_callback(_report)

    async def end() -> None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task

    return end


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("the chain's clock or its saving failed", exc_info=task.exception())
