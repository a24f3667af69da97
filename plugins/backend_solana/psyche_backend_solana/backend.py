"""A client's connection to a coordinator on Solana.

This module connects five others: `watcher` delivers states, `sender` sends commands, `ticker` decides when to tick,
`bond_keeper` has bonds of ejected members burned, and `address_book` reads the members' transport addresses. If a command makes
a tick due, the tick goes into the same transaction.
There is no session: the membership is on the chain, so nothing is repeated after an outage. The backend closes only when no
endpoint has answered for `retry_seconds`. Its task is a plain asyncio task, as in the TCP backend, so `aclose` may be called from
anywhere.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Self

import anyio
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche_backend_solana.client_version import warning_about
from psyche_backend_solana.following.address_book import AddressBook
from psyche_backend_solana.following.chain_clock import ChainClock
from psyche_backend_solana.following.watcher import AccountReading, Watcher, WatcherIntervals
from psyche_backend_solana.layouts import address_record, coordinator
from psyche_backend_solana.layouts.beacon import Beacon
from psyche_backend_solana.layouts.coordinator import Run
from psyche_backend_solana.lookup.runs import RunFound, checked_ids, find_authorization, find_run
from psyche_backend_solana.lookup.treasurers import check_owner
from psyche_backend_solana.programs.in_use import Programs
from psyche_backend_solana.rpc.client import Rpc, RpcUnavailable
from psyche_backend_solana.rpc.endpoints import Endpoint
from psyche_backend_solana.rpc.failures import RpcError
from psyche_backend_solana.sending import ticker
from psyche_backend_solana.sending.bond_keeper import BondKeeper
from psyche_backend_solana.sending.member_commands import instructions_of, wants_tick
from psyche_backend_solana.sending.sender import OutOfUnits, Sender
from psyche_backend_solana.settings import SolanaSettings
from psyche_backend_solana.wallet import Signer, Wallet
from psyche_core.coordinator.commands import Command
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import BackendClosed, BackendError, CommandRefused
from psyche_core.hookspecs import BackendContext
from psyche_core.interfaces.backend import Backend, StateUpdate, check_client_command
from psyche_core.types import NodeIdentity
from psyche_core.wire.signing import SecretKey

logger: logging.Logger = logging.getLogger("psyche.backend.solana")

FIND_SECONDS = 20.0
"""Maximum seconds for finding the run at the start."""
TICK_SECONDS = 20.0
"""Maximum seconds for one tick's transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollIntervals:
    """Intervals in seconds.

    tick: between checks whether a tick is due. addresses: between reads of missing addresses. watcher: the watcher's.
    renewals: between two reads of all addresses, when one may have changed.
    authorization: how long a missing authorization is searched for, since an endpoint may not yet know a new one.
    """

    tick: float = 0.5
    addresses: float = 20.0
    renewals: float = 5.0
    authorization: float = 10.0
    watcher: WatcherIntervals = field(default_factory=WatcherIntervals)


class SolanaBackend(Backend):
    """The Solana backend of a client. Entering finds the run."""

    def __init__(
        self,
        run_id: str,
        *,
        endpoints: tuple[Endpoint, ...],
        wallet: Signer,
        key: SecretKey,
        programs: Programs | None = None,
        grantees: tuple[Pubkey, ...] | None = None,
        price: int = 0,
        owner: Pubkey | None = None,
        retry_seconds: float = 300.0,
        intervals: PollIntervals | None = None,
        only_reads: bool = False,
    ) -> None:
        """Make a backend; nothing is read before entering.

        wallet: signs and pays. key: our transport's key. grantees: wallets whose authorizations are tried. price: see
        `compute_budget`. owner: required owner of the run. only_reads: never tick, for an observer that pays nothing.
        """
        self._run_id = run_id
        self._endpoints = endpoints
        self._wallet = wallet
        self._key = key
        self._identity = NodeIdentity(bytes(wallet.pubkey), key.public)
        self._programs = programs or Programs()
        self._grantees = grantees
        self._price = price
        self._owner = owner
        self._retry_seconds = retry_seconds
        self._only_reads = only_reads
        self._intervals = intervals or PollIntervals()
        self._turn = ticker.TickSchedule()
        self._published: bytes | None = None
        self._state: CoordinatorState | None = None
        self._nonce = -1
        self._beacon = Beacon()
        self._version_asked = ""
        self._clock: ChainClock | None = None
        self._update: StateUpdate | None = None
        self._unread = False
        self._changed = anyio.Event()
        self._closed: str | None = None
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def from_context(cls, context: BackendContext, *, only_reads: bool = False) -> SolanaBackend:
        """The backend for a context. Raises UserError for a wallet or endpoint that cannot be used.

        only_reads: it only follows the run, with a wallet made for it that is empty.
        """
        settings = context.settings or SolanaSettings()
        assert isinstance(settings, SolanaSettings)
        return cls(
            context.run_id,
            endpoints=settings.endpoints(),
            wallet=Wallet.generate() if only_reads else settings.wallet(),
            key=context.key,
            programs=settings.programs,
            grantees=settings.grantees,
            price=settings.priority_fee,
            owner=settings.wanted_owner,
            retry_seconds=context.retry_seconds,
            only_reads=only_reads,
        )

    async def __aenter__(self) -> Self:
        """Find the run. Raises CommandRefused (WrongRun, OtherOwner), ConfigError, and BackendError if no endpoint answers."""
        self._rpc = Rpc(self._endpoints)
        try:
            self._found: RunFound = await find_run(self._rpc, self._run_id, programs=self._programs, timeout=FIND_SECONDS)
            await check_owner(self._rpc, self._found, self._owner, programs=self._programs, timeout=FIND_SECONDS)
            await checked_ids(self._rpc, self._programs, "authorizer", timeout=FIND_SECONDS)
            self._sender = Sender(self._rpc, self._wallet, price=self._price, programs=self._programs)
            self._bonds = BondKeeper(self._rpc, self._found, self._sender, programs=self._programs)
            self._book = AddressBook(self._rpc, self._run, program=self._programs.authorizer)
            self._watcher = Watcher(
                self._rpc,
                self._run,
                on_reading=self._see,
                on_clock=self._note_clock,
                intervals=self._intervals.watcher,
                give_up_seconds=self._retry_seconds,
            )
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._rpc.aclose()
            raise

        self._task = asyncio.create_task(self._work(), name=f"solana backend {self._identity}")
        return self

    @property
    def identity(self) -> NodeIdentity:
        """Our wallet and our transport's key."""
        return self._identity

    @property
    def _run(self) -> Run:
        return self._found.run

    async def join(self, address: bytes, *, timeout: float) -> None:
        """Ask to be a member of the next epochs.

        Raises CommandRefused (`NotAuthorized`, or the coordinator's), BackendClosed, TimeoutError, ValueError.
        """
        address_record.delegates(self._identity.p2p, address)
        self._expect_open()
        if address == self._published and self._state is not None and self._identity in self._state.pending:
            return

        with anyio.fail_after(timeout):
            authorization = await self._authorization(timeout)
            try:
                missing = await self._book.unwritten(self._identity, address, timeout=timeout)
            except RpcUnavailable as error:
                raise TimeoutError(str(error)) from error
            except RpcError as error:
                raise CommandRefused("NotSent", str(error)) from error
            for instructions in missing:
                await self._submit(*instructions, timeout=timeout)
            proved = coordinator.proved_join(self._run, user=self._wallet.pubkey, authorization=authorization, key=self._key)
            await self._submit(*proved, timeout=timeout)
        self._published = address
        self._book.look_for_renewals()

    async def next_state(self) -> StateUpdate:
        """The newest state not yet returned. Raises BackendClosed after the last one."""
        while not self._unread:
            self._expect_open()
            await self._changed.wait()

        self._expect_open()
        assert self._update is not None
        self._unread = False
        return self._update

    async def send(self, command: Command, *, timeout: float) -> None:
        """Send a command. Raises CommandRefused, BackendClosed, TimeoutError; ValueError for Join or another client's command."""
        allowed = check_client_command(command, self._identity)
        self._expect_open()
        instructions = instructions_of(self._run, allowed, state=self._state)
        if self._state is not None and self._clock is not None:
            now = self._clock.now(anyio.current_time())
            if wants_tick(self._state, allowed, now):
                try:
                    await self._submit(*instructions, coordinator.tick(self._run, user=self._wallet.pubkey), timeout=timeout)
                    return
                except OutOfUnits:
                    logger.info("no room for a tick beside %s", type(command).__name__)
                except CommandRefused as refusal:
                    if refusal.code != "NothingDue":
                        raise
                    logger.info("no tick was due after %s", type(command).__name__)

        try:
            await self._submit(*instructions, timeout=timeout)
        except OutOfUnits as error:
            raise CommandRefused("NotSent", str(error)) from error

    async def aclose(self) -> None:
        """Close the connection; idempotent."""
        self._close("this backend was closed")
        task = self._task
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task])
                await self._rpc.aclose()

    # ------------------------------------------------------------ sending

    async def _authorization(self, timeout: float) -> Pubkey:
        """The authorization for joining. Raises CommandRefused if none appears for a while, TimeoutError.

        The search ends in half of the timeout at the latest: else a caller would learn that there was no answer, and not why.
        """
        give_up = anyio.current_time() + min(self._intervals.authorization, timeout / 2)
        while True:
            try:
                return await find_authorization(
                    self._rpc,
                    self._found.instance.join_authority,
                    self._wallet.pubkey,
                    grantees=self._grantees,
                    programs=self._programs,
                    timeout=timeout,
                )
            except RpcUnavailable as error:
                raise TimeoutError(str(error)) from error
            except CommandRefused:
                if anyio.current_time() >= give_up:
                    raise
                await anyio.sleep(self._intervals.authorization / 10)

    async def _submit(self, *instructions: Instruction, timeout: float) -> None:
        """Send instructions and wait for the result, or until the backend is closed.

        Raises CommandRefused, also for a failure that a retry would repeat (`NotSent`, for example with an empty wallet), and
        OutOfUnits.
        """
        self._expect_open()
        try:
            await self._sender.send(*instructions, timeout=timeout)
        except (CommandRefused, OutOfUnits):
            self._expect_open()
            raise
        except BackendError as error:
            self._expect_open()
            logger.warning("a command was not sent: %s", error)
            raise CommandRefused("NotSent", str(error)) from error
        self._watcher.refresh()

    def _expect_open(self) -> None:
        if self._closed is not None:
            raise BackendClosed(self._closed)

    def _close(self, sentence: str) -> None:
        if self._closed is None:
            self._closed = sentence
        self._changed.set()

    # ------------------------------------------------------------ the background task

    async def _work(self) -> None:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watcher.run)
                if not self._only_reads:
                    group.start_soon(self._take_turns)
                    group.start_soon(self._bonds.keep)
                group.start_soon(self._read_addresses)
        except BaseExceptionGroup as failures:
            closed, rest = failures.split(BackendClosed)
            if rest is not None and (others := rest.split(asyncio.CancelledError)[1]) is not None:
                logger.exception("the Solana backend failed", exc_info=others)
                self._close(f"the Solana backend failed: {others.exceptions[0]!r:.200}")
            elif closed is not None:
                self._close(_innermost(closed))
        finally:
            self._close("the backend's task was cancelled")

    def _note_clock(self, clock: ChainClock) -> None:
        self._clock = clock

    def _see(self, reading: AccountReading) -> None:
        """Handle a newer account. Raises WireError if it cannot be parsed."""
        state = reading.state
        before, self._nonce, self._beacon = self._state, reading.account.nonce, reading.account.beacon
        self._log_version(reading.account.client_version)
        if state is None:
            return  # created, but not configured yet

        self._state = state
        self._bonds.note(state)
        if before == state:
            self._book.look_for_renewals()  # nothing changed: a member may have joined again, with another address
        elif before is None or _members(before) != _members(state):
            self._book.look()
        self._publish()

    def _log_version(self, text: str) -> None:
        """Log that the run asks for another client version, once for each text."""
        if text == self._version_asked:
            return

        self._version_asked = text
        warning = warning_about(text, ours=version("psyche-core"))
        if warning is not None:
            logger.warning(warning)

    def _publish(self) -> None:
        state = self._state
        if state is None:
            return

        members = _members(state)
        addresses = {member.signer: address for member in members if (address := self._book.address(member)) is not None}
        update = StateUpdate(state, addresses)
        if update != self._update:
            self._update = update
            self._unread = True
            self._changed.set()
            self._changed = anyio.Event()

    async def _read_addresses(self) -> None:
        intervals = self._intervals
        await self._book.keep_reading(
            lambda: _members(self._state), self._publish, seldom=intervals.addresses, renewals=intervals.renewals
        )

    async def _take_turns(self) -> None:
        """Tick when it is our turn."""
        while True:
            await anyio.sleep(self._intervals.tick)
            try:
                if self._is_our_turn():
                    await self._tick()
            except (CommandRefused, TimeoutError) as refusal:
                logger.info("a tick was refused: %s", refusal)
            except (BackendError, RpcError) as error:
                logger.warning("cannot tick: %s", error)
                await anyio.sleep(ticker.FIRST_TURN_SECONDS)

    def _is_our_turn(self) -> bool:
        state, clock = self._state, self._clock
        if state is None or clock is None or state.run_state.halted:
            return False

        local = anyio.current_time()
        now, signer = clock.now(local), self._identity.signer
        return self._turn.comes(state, self._nonce, signer=signer, now=now, local=local, beacon=self._beacon)

    async def _tick(self) -> None:
        """Tick if it is also due by the chain's own clock; it is due by our estimate."""
        before = self._nonce
        clock = await self._watcher.read_clock()
        if self._nonce != before or self._state is None or not ticker.wanted(self._state, self._beacon, clock.unix):
            return

        await self._sender.send(coordinator.tick(self._run, user=self._wallet.pubkey), timeout=TICK_SECONDS)
        self._watcher.refresh()


def _members(state: CoordinatorState | None) -> frozenset[NodeIdentity]:
    return frozenset() if state is None else frozenset((*state.pending, *(client.id for client in state.epoch.clients)))


def _innermost(group: BaseExceptionGroup[BackendClosed]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)
