"""A run on a local chain in this process, for `psyche server run --backend solana` and for a testnet.

There is no server besides the chain. The owner (the server's key) makes the run with ordinary transactions, lets everybody join,
or the wallets of --allow-list, and starts it. After that it only watches, and ticks when the members have not ticked for a long
time. The run pays its members in a token that is made for it; at its end the owner has all members paid. The chain has two RPC
providers. A rehearsal may close one of them, where only this machine can reach them. With a state folder the chain is saved
there, and a run found there continues. A chain has no data server, so the run must name another source of training data.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Self

import anyio
import anyio.to_thread
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_backend_solana.following.chain_clock import ChainClock
from psyche_backend_solana.following.watcher import AccountReading, Watcher, WatcherIntervals
from psyche_backend_solana.hosting.allowed_wallets import read_wallets
from psyche_backend_solana.hosting.new_run import SEND_SECONDS, TREASURER_INDEX, let_only_join, make_run
from psyche_backend_solana.layouts import authorizer, coordinator, tokens, treasurer
from psyche_backend_solana.layouts.beacon import Beacon
from psyche_backend_solana.localnet.chain import LocalChain
from psyche_backend_solana.localnet.settings import LAMPORTS_PER_SOL, ChainSettings
from psyche_backend_solana.lookup.runs import find_run
from psyche_backend_solana.programs.addresses import AUTHORIZER
from psyche_backend_solana.programs.in_use import Programs
from psyche_backend_solana.rpc.client import Rpc
from psyche_backend_solana.rpc.endpoints import Endpoint
from psyche_backend_solana.rpc.failures import RpcError
from psyche_backend_solana.sending import ticker
from psyche_backend_solana.sending.sender import Sender
from psyche_backend_solana.wallet import Wallet
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import BackendError, CommandRefused, UserError, WireError
from psyche_core.hookspecs import ServerContext
from psyche_core.interfaces.backend import BackendServer
from psyche_core.state_events import events_between
from psyche_core.types import RunState
from psyche_core.wire.signing import SecretKey

logger: logging.Logger = logging.getLogger("psyche.backend.solana")

STATE_FILE = "chain.cbor"
THIS_MACHINE = ("127.0.0.1", "::1", "localhost")
OWNER_LAMPORTS = 1000 * LAMPORTS_PER_SOL
FAREWELL_SECONDS = 10.0
"""Seconds that the chain continues after the run's end, so that its members can see the end."""


class LocalRun(BackendServer):
    """A run on a local chain. Entering starts the chain, and creates the run or finds a saved one."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._owner = Wallet(Keypair.from_seed((context.key or SecretKey.generate()).seed))
        state = None if context.state_dir is None else context.state_dir / STATE_FILE
        rehearsing = context.host in THIS_MACHINE  # no faults on a run that other machines can reach
        self._chain = LocalChain(ChainSettings(host=context.host, rpc_port=context.port, state=state, allow_faults=rehearsing))
        self._stack = AsyncExitStack()
        self._state = context.state
        self._nonce = -1
        self._beacon = Beacon()
        self._clock: ChainClock | None = None
        self._turn = ticker.TickSchedule()
        self._finished = anyio.Event()
        self._state_file = state
        self._continues = False

    async def __aenter__(self) -> Self:
        """Start. Raises UserError if a port, the saved chain or the run's files cannot be used."""
        context = self._context
        if context.data is not None:
            message = (
                "the backend solana serves no training data; set data_location in the run file to Local, Http or another that "
                "needs no data server"
            )
            raise UserError(message)
        if context.opening is not None:
            message = (
                "the backend solana uses the run's configuration unchanged; leave out --init-warmup-time and --init-min-clients"
            )
            raise UserError(message)

        allowed = None if context.allow_list is None else await anyio.to_thread.run_sync(read_wallets, context.allow_list)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._chain)
            await self._chain.open_provider()
            await self._chain.airdrop(str(self._owner.pubkey), OWNER_LAMPORTS)
            self._rpc = Rpc([Endpoint(provider.rpc_url, provider.ws_url) for provider in self._chain.providers])
            stack.push_async_callback(self._rpc.aclose)
            self._sender = Sender(self._rpc, self._owner)
            found = await self._found()
            self._continues = found is not None
            if found is not None and allowed is not None:
                await let_only_join(self._sender, allowed, given=await self._authorizations())
            made = found or await make_run(self._sender, self._rpc, context.state, wallets=allowed)
            self._run, self._treasury = made
            self._watcher = Watcher(
                self._rpc,
                self._run,
                on_reading=self._see,
                on_clock=self._note_clock,
                intervals=WatcherIntervals(calm=1.0, alert=0.2),
            )
            await self._watcher.read()
            self._stack = stack.pop_all()
        return self

    @property
    def address(self) -> str:
        """The chain's first RPC endpoint; its websockets are at the next port, and `getClusterNodes` names the other."""
        return self._chain.rpc_url

    @property
    def continued_from(self) -> Path | None:
        """File with the chain from which the run continues; None for a run that begins."""
        return self._state_file if self._continues else None

    @property
    def state(self) -> CoordinatorState:
        """The newest known state."""
        return self._state

    async def serve(self) -> None:
        """Watch the run, and tick if no member does, until it is finished."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watcher.run)
            tasks.start_soon(self._keep_time)
            await self._finished.wait()
            try:
                await self._pay_everybody()
            except (BackendError, RpcError, TimeoutError) as error:
                logger.warning("not all members were paid; they can claim their earnings themselves: %s", error)
            await anyio.sleep(FAREWELL_SECONDS)
            tasks.cancel_scope.cancel()

    async def aclose(self) -> None:
        """Stop and save; idempotent."""
        with anyio.CancelScope(shield=True):
            await self._stack.aclose()

    async def _found(self) -> tuple[coordinator.Run, treasurer.Treasury] | None:
        """The run, if the chain was restored with one; else None."""
        try:
            found = await find_run(self._rpc, self._context.state.run_id, programs=Programs(own_chain=True))
        except CommandRefused as refusal:
            if refusal.code == "WrongRun":
                return None
            raise
        address = treasurer.run_address(TREASURER_INDEX)
        account = await self._chain.account(str(address))
        paying = None if account is None else treasurer.parse_run(account)
        if paying is None or found.instance.main_authority != address or paying.main_authority != self._owner.pubkey:
            message = (
                f"the saved chain has a run {self._context.state.run_id!r} of another owner; "
                "use the key it was made with, or another --save-state-dir"
            )
            raise UserError(message)

        return found.run, treasurer.Treasury(address, paying.vault, paying.mint, paying.instance, paying.coordinator)

    async def _authorizations(self) -> list[tuple[Pubkey, authorizer.Authorization]]:
        found = []
        for address, account in await self._chain.program_accounts(str(AUTHORIZER)):
            with suppress(WireError):  # anybody can give an account to the program
                found.append((address, authorizer.parse(account)))
        return found

    async def _pay_everybody(self) -> None:
        """Have each member's earnings paid to the member's own account, which the owner may also request."""
        treasury, owner = self._treasury, self._owner.pubkey
        paying = await self._chain.account(str(treasury.run))
        assert paying is not None, "it was made or found at the start"
        run = treasurer.parse_run(paying)
        for account in self._state.accounts:
            user = Pubkey(account.signer)
            held = await self._chain.account(str(treasurer.participant_address(treasury.run, user)))
            participant = treasurer.participant_in(run, held)
            paid = 0 if participant is None else participant.claimed
            units = max(0, account.earned - account.slashed) - paid
            if units <= 0:
                continue
            instructions = [tokens.create_associated(owner, user, mint=treasury.mint)]
            if participant is None:
                instructions.append(treasurer.participant_create(owner, user, treasury=treasury))
            own = tokens.associated(user, treasury.mint)
            claim = treasurer.participant_claim(owner, user, destination=own, treasury=treasury, amount=units)
            await self._sender.send(*instructions, claim, timeout=SEND_SECONDS)
            if self._context.on_paid is not None:
                self._context.on_paid(account.signer, units)

    def _see(self, reading: AccountReading) -> None:
        state = reading.state
        if state is None:
            return

        before, self._state, self._nonce, self._beacon = self._state, state, reading.account.nonce, reading.account.beacon
        if self._context.on_event is not None and state != before:
            self._context.on_event(state, events_between(before, state))
        if state.run_state is RunState.Finished:
            self._finished.set()

    def _note_clock(self, clock: ChainClock) -> None:
        self._clock = clock

    async def _keep_time(self) -> None:
        """Tick like an outsider: only if a tick has been due for a while."""
        while True:
            await anyio.sleep(0.5)
            clock, local = self._clock, anyio.current_time()
            if clock is None or self._state.run_state.halted:
                continue
            now, signer = clock.now(local), bytes(self._owner.pubkey)
            if not self._turn.comes(self._state, self._nonce, signer=signer, now=now, local=local, beacon=self._beacon):
                continue
            try:
                await self._sender.send(coordinator.tick(self._run, user=self._owner.pubkey), timeout=SEND_SECONDS)
            except (BackendError, RpcError, TimeoutError) as error:
                logger.info("a tick was refused: %s", error)
            self._watcher.refresh()
