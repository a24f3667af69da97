"""Runs on a model chain, and backends for their members."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

from model_chain import ModelChain
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, create_account

from psyche_backend_solana.backend import PollIntervals, SolanaBackend
from psyche_backend_solana.following.watcher import WatcherIntervals
from psyche_backend_solana.layouts import authorizer
from psyche_backend_solana.layouts import coordinator as program
from psyche_backend_solana.layouts.coordinator_accounts import ACCOUNT_BYTES
from psyche_backend_solana.programs.addresses import COORDINATOR, PROGRAMS
from psyche_backend_solana.programs.in_use import Programs
from psyche_backend_solana.rpc.client import Rpc
from psyche_backend_solana.rpc.endpoints import Endpoint
from psyche_backend_solana.sending.sender import Sender
from psyche_backend_solana.wallet import Wallet
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.wire.signing import SecretKey

TIMEOUT = 20.0
QUICK = PollIntervals(tick=0.02, addresses=1.0, renewals=0.05, authorization=0.2, watcher=WatcherIntervals(calm=0.2, alert=0.05))
OWNER = Wallet(Keypair.from_seed(bytes([200]) * 32))


def all_programs() -> dict[str, bytes]:
    """The programs for a local chain, as they were built last."""
    folder = files("psyche_backend_solana.programs")
    return {str(PROGRAMS[name]): (folder / f"{name}.so").read_bytes() for name in PROGRAMS}


def wallet_of(key: SecretKey) -> Wallet:
    return Wallet(Keypair.from_seed(key.seed))


async def make_run(chain: ModelChain, state: CoordinatorState, *, members: Iterable[Pubkey] | None = None) -> program.Run:
    """A run that waits for its members, made by its owner's transactions; members None: everybody may join."""
    chain.fund(OWNER.pubkey)
    return await make_run_at(chain.providers[0].endpoint, state, members=members)


async def make_run_at(
    endpoint: Endpoint,
    state: CoordinatorState,
    *,
    members: Iterable[Pubkey] | None = None,
    join_authority: Pubkey | None = None,
) -> program.Run:
    """The same on any chain where OWNER has money. join_authority: None for OWNER; of another one OWNER grants nothing."""
    big = Keypair()
    run = program.Run(program.instance_address(state.run_id)[0], big.pubkey())
    async with Rpc([endpoint]) as rpc:
        sender = Sender(rpc, OWNER)
        space = create_account(
            CreateAccountParams(
                from_pubkey=OWNER.pubkey, to_pubkey=big.pubkey(), lamports=2 * 10**9, space=ACCOUNT_BYTES, owner=COORDINATOR
            )
        )
        made = program.init(
            run,
            payer=OWNER.pubkey,
            run_id=state.run_id,
            main_authority=OWNER.pubkey,
            join_authority=join_authority or OWNER.pubkey,
        )
        await sender.send(space, made, signers=[Wallet(big)], timeout=TIMEOUT)
        wanted = program.Update(config=state.config, model=state.model)
        for instruction in program.staged_update(run, wanted, authority=OWNER.pubkey):
            await sender.send(instruction, timeout=TIMEOUT)
        await sender.send(program.set_paused(run, authority=OWNER.pubkey, paused=False), timeout=TIMEOUT)
        for grantee in [authorizer.EVERYBODY] if members is None else members:
            at = authorizer.address(OWNER.pubkey, grantee)
            await sender.send(
                authorizer.create(OWNER.pubkey, OWNER.pubkey, grantee=grantee),
                authorizer.grantor_update(OWNER.pubkey, at, active=True),
                timeout=TIMEOUT,
            )
    return run


def backend_of(
    chain: ModelChain,
    key: SecretKey,
    *,
    run_id: str = "conformance",
    retry_seconds: float = 10.0,
    grantees: tuple[Pubkey, ...] | None = None,
    owner: Pubkey | None = None,
    programs: Programs | None = None,
    intervals: PollIntervals = QUICK,
) -> SolanaBackend:
    """A backend of the wallet with that key, which is its transport's key, too."""
    if wallet_of(key).pubkey not in chain.accounts:
        chain.fund(wallet_of(key).pubkey)
    endpoints = tuple(provider.endpoint for provider in chain.providers)
    return SolanaBackend(
        run_id,
        endpoints=endpoints,
        wallet=wallet_of(key),
        key=key,
        programs=programs,
        grantees=grantees,
        owner=owner,
        retry_seconds=retry_seconds,
        intervals=intervals,
    )


def backend_at(
    endpoints: tuple[Endpoint, ...],
    key: SecretKey,
    *,
    run_id: str = "conformance",
    retry_seconds: float = 10.0,
    grantees: tuple[Pubkey, ...] | None = None,
    intervals: PollIntervals = QUICK,
) -> SolanaBackend:
    """The same on any chain."""
    return SolanaBackend(
        run_id,
        endpoints=endpoints,
        wallet=wallet_of(key),
        key=key,
        grantees=grantees,
        retry_seconds=retry_seconds,
        intervals=intervals,
    )
