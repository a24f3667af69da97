"""Makes a run on a local chain with ordinary transactions: a token, the run, its pay, the right to join, and its start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, create_account

from psyche_backend_solana.layouts import authorizer, coordinator, tokens, treasurer
from psyche_backend_solana.layouts.coordinator_accounts import ACCOUNT_BYTES
from psyche_backend_solana.programs.addresses import COORDINATOR, TOKEN
from psyche_backend_solana.rpc import methods
from psyche_backend_solana.rpc.client import Rpc
from psyche_backend_solana.sending.sender import Sender
from psyche_backend_solana.wallet import Wallet
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import CommandRefused

SEND_SECONDS = 30.0
TREASURER_INDEX = 0
TOKEN_DECIMALS = 6
EPOCH_UNITS = 1_000_000
"""Amount that an epoch pays all its workers together: one token."""
SUPPLY_UNITS = 10_000 * EPOCH_UNITS
"""Number of epochs for which the vault has enough tokens."""


async def make_run(
    sender: Sender, rpc: Rpc, state: CoordinatorState, *, wallets: Sequence[Pubkey] | None = None
) -> tuple[coordinator.Run, treasurer.Treasury]:
    """Create and start a run with a state's configuration, paid in a new token.

    wallets: those that may join; None for everybody. The sender's wallet owns the run and pays. Raises CommandRefused if a
    program refuses, BackendError and TimeoutError.
    """
    owner = sender.payer
    mint = await _make_token(sender, rpc)
    account = Wallet(Keypair())
    run = coordinator.Run(coordinator.instance_address(state.run_id)[0], account.pubkey)
    treasury = treasurer.Treasury.of(TREASURER_INDEX, mint=mint, instance=run.instance, coordinator=run.account)
    lamports = await methods.rent_exempt(rpc, ACCOUNT_BYTES, timeout=SEND_SECONDS)
    space = CreateAccountParams(
        from_pubkey=owner, to_pubkey=account.pubkey, lamports=lamports, space=ACCOUNT_BYTES, owner=COORDINATOR
    )
    made = treasurer.run_create(
        owner,
        treasury,
        index=TREASURER_INDEX,
        main_authority=owner,
        join_authority=owner,
        run_id=state.run_id,
        client_version="",
    )
    await sender.send(create_account(space), made, signers=[account], timeout=SEND_SECONDS)
    wanted = coordinator.Update(config=state.config, model=state.model, progress=state.progress)
    commands = [
        *coordinator.staged_update(run, wanted, authority=owner),
        coordinator.set_future_epoch_rates(run, authority=owner, earning_total_shared=EPOCH_UNITS),
    ]
    for command in commands:
        await sender.send(treasurer.run_update(owner, treasury, command=command), timeout=SEND_SECONDS)
    source = tokens.associated(owner, mint)
    await sender.send(treasurer.top_up(owner, source, treasury=treasury, amount=SUPPLY_UNITS), timeout=SEND_SECONDS)
    for wallet in (authorizer.EVERYBODY,) if wallets is None else wallets:
        await _let_join(sender, owner, wallet)
    start = coordinator.set_paused(run, authority=owner, paused=False)
    await sender.send(treasurer.run_update(owner, treasury, command=start), timeout=SEND_SECONDS)
    return run, treasury


async def _make_token(sender: Sender, rpc: Rpc) -> Pubkey:
    """Create a token and put its whole supply into our own account."""
    owner, mint = sender.payer, Wallet(Keypair())
    rent = await methods.rent_exempt(rpc, tokens.MINT_BYTES, timeout=SEND_SECONDS)
    space = CreateAccountParams(from_pubkey=owner, to_pubkey=mint.pubkey, lamports=rent, space=tokens.MINT_BYTES, owner=TOKEN)
    await sender.send(
        create_account(space),
        tokens.initialize_mint(mint.pubkey, authority=owner, decimals=TOKEN_DECIMALS),
        tokens.create_associated(owner, owner, mint=mint.pubkey),
        tokens.mint_to(mint.pubkey, tokens.associated(owner, mint.pubkey), authority=owner, amount=SUPPLY_UNITS),
        signers=[mint],
        timeout=SEND_SECONDS,
    )
    return mint.pubkey


async def let_only_join(
    sender: Sender, wallets: Sequence[Pubkey], *, given: Iterable[tuple[Pubkey, authorizer.Authorization]]
) -> None:
    """Let these wallets join runs of the sender's, and nobody else. given: authorizations of the chain, by their addresses."""
    owner = sender.payer
    for address, right in given:
        ours = right.active and right.grantor == owner and right.scope == authorizer.JOIN_SCOPE
        if ours and right.grantee not in wallets:
            await sender.send(authorizer.grantor_update(owner, address, active=False), timeout=SEND_SECONDS)
    for wallet in wallets:
        await _let_join(sender, owner, wallet)


async def _let_join(sender: Sender, owner: Pubkey, grantee: Pubkey) -> None:
    address = authorizer.address(owner, grantee)
    switch_on = authorizer.grantor_update(owner, address, active=True)
    try:
        await sender.send(authorizer.create(owner, owner, grantee=grantee), switch_on, timeout=SEND_SECONDS)
    except CommandRefused as refusal:
        if refusal.code != "AlreadyExists":
            raise
        await sender.send(switch_on, timeout=SEND_SECONDS)
