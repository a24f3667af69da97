"""`psyche run-manager mining-pool`: pool collateral, and share the tokens that the pool's authority returns for it."""

from __future__ import annotations

from typing import Any

import click
from solders.account import Account
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche_backend_solana.commands.context import ADDRESS, CALL_SECONDS, CommandContext, Outcome, command, example
from psyche_backend_solana.commands.payments.rewards import amount_of
from psyche_backend_solana.commands.token_amounts import decimals, units_of
from psyche_backend_solana.layouts import mining_pool as layout
from psyche_backend_solana.layouts import tokens
from psyche_backend_solana.rpc import methods
from psyche_backend_solana.settings import ChainSettings
from psyche_core.errors import BackendError, UserError, WireError
from psyche_core.option_groups import GroupedCommand, options_of

_option = options_of("Pool")

_PREFIX = "run-manager mining-pool"

_index = _option("--index", type=click.IntRange(0, 2**64 - 1), required=True, help="Number of the pool.")
_authority = _option(
    "--authority",
    type=ADDRESS,
    required=True,
    help="Wallet that must own the pool. Anybody can take any number, so a pool of another wallet is refused.",
)
_amount = _option("--amount", required=True, help="Tokens, as a decimal number.")


@click.group("mining-pool", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def mining_pool() -> None:
    """Pool collateral, and share its returns."""


@mining_pool.command(
    "create", cls=GroupedCommand, epilog=example(f"{_PREFIX} create", "--index 1 --mint TOKEN -w authority.json")
)
@_index
@_option("--mint", type=ADDRESS, required=True, help="Token that lenders deposit.")
@_option("--metadata", default="", help="Description, at most 400 bytes.")
@command()
async def create(context: CommandContext, index: int, mint: Pubkey, metadata: str) -> Outcome:
    """Create a pool. Nobody can deposit before `update` sets its limits."""
    await context.check_ids("mining_pool")
    program = context.programs.mining_pool
    made = layout.pool_create(context.payer, context.payer, index=index, mint=mint, metadata=metadata, program=program)
    sent = await context.send(made)
    pool = layout.pool_address(index, program=program)
    return Outcome(f"the pool {index} was created: {pool}", {"pool": pool, "signature": sent.signature})


@mining_pool.command(
    "update",
    cls=GroupedCommand,
    epilog=example(f"{_PREFIX} update", "--index 1 --cap 1000000 --lender-cap 5000 -w authority.json"),
)
@_index
@_option("--cap", help="Most tokens that may be deposited in total.")
@_option("--lender-cap", help="Most tokens of one lender.")
@_option("--deposits-frozen/--deposits-open", default=None, help="Stop or resume deposits.")
@_option("--claims-frozen/--claims-open", default=None, help="Stop or resume claims.")
@_option("--metadata", help="Description, at most 400 bytes.")
@command()
async def update(context: CommandContext, index: int, cap: str | None, lender_cap: str | None, **others: Any) -> Outcome:
    """Change a pool's limits, what is frozen, or its description."""
    address, pool = await _pool(context, index)
    places = await decimals(context, pool.collateral_mint)
    changes = {name: value for name, value in others.items() if value is not None}
    changes |= {name: units_of(text, places) for name, text in (("cap", cap), ("lender_cap", lender_cap)) if text is not None}
    if not changes:
        message = "nothing to change: give at least one option"
        raise UserError(message)

    sent = await context.send(layout.pool_update(context.payer, address, program=context.programs.mining_pool, **changes))
    return Outcome(f"the pool {index} has new {', '.join(changes)}", {"pool": address, "signature": sent.signature, **changes})


@mining_pool.command(
    "deposit",
    cls=GroupedCommand,
    epilog=example(f"{_PREFIX} deposit", "--index 1 --authority WALLET --amount 100 -w wallet.json"),
)
@_index
@_authority
@_amount
@command()
async def deposit(context: CommandContext, index: int, authority: Pubkey, amount: str) -> Outcome:
    """Deposit tokens of this wallet into a pool."""
    address, pool = await _pool(context, index)
    if pool.authority != authority:
        message = f"the pool {index} belongs to {pool.authority}, not to {authority}; nothing was deposited"
        raise UserError(message)

    units = units_of(amount, await decimals(context, pool.collateral_mint))
    own = tokens.associated(context.payer, pool.collateral_mint)
    program = context.programs.mining_pool
    lender = layout.lender_address(address, context.payer, program=program)
    made: tuple[Instruction, ...] = ()
    if await methods.account(context.rpc, lender, timeout=CALL_SECONDS) is None:
        made = (layout.lender_create(context.payer, context.payer, pool=address, program=program),)
    put = layout.lender_deposit(context.payer, own, pool=address, vault=pool.collateral_vault, amount=units, program=program)
    sent = await context.send(*made, put)
    return Outcome(f"{amount} tokens ({units} units) are in the pool {index}", {"units": units, "signature": sent.signature})


@mining_pool.command(
    "extract", cls=GroupedCommand, epilog=example(f"{_PREFIX} extract", "--index 1 --amount 100 -w authority.json")
)
@_index
@_amount
@command()
async def extract(context: CommandContext, index: int, amount: str) -> Outcome:
    """Move collateral from a pool to its authority, which is this wallet."""
    address, pool = await _pool(context, index)
    units = units_of(amount, await decimals(context, pool.collateral_mint))
    own = tokens.associated(context.payer, pool.collateral_mint)
    moved = layout.pool_extract(
        context.payer, own, pool=address, vault=pool.collateral_vault, amount=units, program=context.programs.mining_pool
    )
    made = tokens.create_associated(context.payer, context.payer, mint=pool.collateral_mint)
    sent = await context.send(made, moved)
    return Outcome(f"{amount} tokens are at {own}", {"units": units, "account": own, "signature": sent.signature})


@mining_pool.command(
    "open-claims", cls=GroupedCommand, epilog=example(f"{_PREFIX} open-claims", "--index 1 --mint TOKEN -w authority.json")
)
@_index
@_option("--mint", type=ADDRESS, required=True, help="Token that is shared among the lenders.")
@command()
async def open_claims(context: CommandContext, index: int, mint: Pubkey) -> Outcome:
    """Set the token that lenders share, and open their claims. This is permanent and ends deposits."""
    address, _ = await _pool(context, index)
    sent = await context.send(
        layout.pool_claimable(context.payer, context.payer, pool=address, mint=mint, program=context.programs.mining_pool)
    )
    vault = tokens.associated(address, mint)
    return Outcome(f"lenders of the pool {index} share the tokens in {vault}", {"vault": vault, "signature": sent.signature})


@mining_pool.command("open-refunds", cls=GroupedCommand, epilog=example(f"{_PREFIX} open-refunds", "--index 1 -w authority.json"))
@_index
@command()
async def open_refunds(context: CommandContext, index: int) -> Outcome:
    """Give the remaining collateral back to the lenders. This is permanent and ends deposits and extraction."""
    address, _ = await _pool(context, index)
    sent = await context.send(layout.pool_refundable(context.payer, address, program=context.programs.mining_pool))
    return Outcome(f"lenders of the pool {index} can take their share back", {"pool": address, "signature": sent.signature})


@mining_pool.command("claim", cls=GroupedCommand, epilog=example(f"{_PREFIX} claim", "--index 1 -w wallet.json"))
@_index
@command()
async def claim(context: CommandContext, index: int) -> Outcome:
    """Claim this wallet's share of the pool's returns."""
    address, pool = await _pool(context, index)
    if pool.redeemable is None:
        message = f"claims of the pool {index} are not open yet; its owner opens them, and `show` says when they are"
        raise UserError(message)

    mint, vault = pool.redeemable
    lender = await _lender(context, address)
    pot = pool.claimed + await amount_of(context, vault)
    units = layout.share(pot, lender.deposited, pool.deposited) - lender.claimed
    return await _take(context, layout.lender_claim, address, mint=mint, vault=vault, units=units)


@mining_pool.command("refund", cls=GroupedCommand, epilog=example(f"{_PREFIX} refund", "--index 1 -w wallet.json"))
@_index
@command()
async def refund(context: CommandContext, index: int) -> Outcome:
    """Get this wallet's share of the collateral back."""
    address, pool = await _pool(context, index)
    lender = await _lender(context, address)
    pot = pool.refunded + await amount_of(context, pool.collateral_vault)
    units = layout.share(pot, lender.deposited, pool.deposited) - lender.refunded
    return await _take(
        context, layout.lender_refund, address, mint=pool.collateral_mint, vault=pool.collateral_vault, units=units
    )


@mining_pool.command("show", cls=GroupedCommand, epilog=example(f"{_PREFIX} show", "--index 1", "--index 1 --address WALLET"))
@_index
@_option("--address", type=ADDRESS, help="Also print what this lender deposited and received back.")
@command(ChainSettings)
async def show(context: CommandContext, index: int, address: Pubkey | None) -> Outcome:
    """Print a pool, in smallest units."""
    at, pool = await _pool(context, index)
    facts: dict[str, Any] = {"pool": at} | {name: getattr(pool, name) for name in layout.Pool.__slots__ if name != "bump"}
    if address is not None:
        lender = await _lender(context, at, address)
        facts["lender"] = {"deposited": lender.deposited, "claimed": lender.claimed, "refunded": lender.refunded}
    phase = "refunds are open" if pool.refunding else "claims are open" if pool.claiming else "it takes deposits"
    return Outcome(f"the pool {index} holds deposits of {pool.deposited} units from {pool.lenders} lenders; {phase}", facts)


async def _take(context: CommandContext, paying: Any, pool: Pubkey, *, mint: Pubkey, vault: Pubkey, units: int) -> Outcome:
    if units <= 0:
        message = "there is nothing to pay out to this wallet now; `show --address WALLET` prints what it received"
        raise UserError(message)

    own = tokens.associated(context.payer, mint)
    made = tokens.create_associated(context.payer, context.payer, mint=mint)
    taken = paying(context.payer, own, pool=pool, vault=vault, amount=units, program=context.programs.mining_pool)
    sent = await context.send(made, taken)
    return Outcome(f"{units} units were paid to {own}", {"units": units, "account": own, "signature": sent.signature})


async def _pool(context: CommandContext, index: int) -> tuple[Pubkey, layout.Pool]:
    await context.check_ids("mining_pool")
    address = layout.pool_address(index, program=context.programs.mining_pool)
    read = await methods.account(context.rpc, address, timeout=CALL_SECONDS)
    if read is None:
        message = f"there is no pool {index}; check --index and --rpc"
        raise UserError(message)

    try:
        return address, layout.parse_pool(Account(read.lamports, read.data, read.owner), program=context.programs.mining_pool)
    except WireError as error:
        raise BackendError(str(error)) from error


async def _lender(context: CommandContext, pool: Pubkey, user: Pubkey | None = None) -> layout.Lender:
    who = user or context.payer
    at = layout.lender_address(pool, who, program=context.programs.mining_pool)
    read = await methods.account(context.rpc, at, timeout=CALL_SECONDS)
    if read is None:
        message = f"the wallet {who} is not a lender of this pool; check --index, and -w or --address"
        raise UserError(message)

    try:
        return layout.parse_lender(Account(read.lamports, read.data, read.owner), program=context.programs.mining_pool)
    except WireError as error:
        raise BackendError(str(error)) from error
