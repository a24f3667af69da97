"""`psyche solana create-token` and `send-tokens`: a token of one's own, for pay or for bonds, and who has how much of it."""

from __future__ import annotations

import click
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, create_account

from psyche_backend_solana.commands.context import ADDRESS, CALL_SECONDS, CommandContext, Outcome, command, example
from psyche_backend_solana.commands.token_amounts import decimals as decimals_of
from psyche_backend_solana.commands.token_amounts import must_hold, units_of
from psyche_backend_solana.layouts import tokens
from psyche_backend_solana.programs.addresses import SYSTEM, TOKEN
from psyche_backend_solana.rpc import methods
from psyche_backend_solana.wallet import Wallet
from psyche_core.errors import UserError
from psyche_core.option_groups import GroupedCommand, options_of

_option = options_of("Token")

MOST_DECIMALS = 9


@click.command(
    "create-token", cls=GroupedCommand, epilog=example("solana create-token", "--supply 1000000 --decimals 6 -w owner.json")
)
@_option("--supply", default="1000000", show_default=True, help="Tokens to create, as a decimal number.")
@_option("--decimals", type=click.IntRange(0, MOST_DECIMALS), default=6, show_default=True, help="Decimals of a token.")
@command()
async def create_token(context: CommandContext, supply: str, decimals: int) -> Outcome:
    """Create a token of SPL Token and give all of it to this wallet, which can create more of it later."""
    units = units_of(supply, decimals)
    mint = Wallet(Keypair())
    rent = await methods.rent_exempt(context.rpc, tokens.MINT_BYTES, timeout=CALL_SECONDS)
    space = CreateAccountParams(
        from_pubkey=context.payer, to_pubkey=mint.pubkey, lamports=rent, space=tokens.MINT_BYTES, owner=TOKEN
    )
    account = tokens.associated(context.payer, mint.pubkey)
    sent = await context.send(
        create_account(space),
        tokens.initialize_mint(mint.pubkey, authority=context.payer, decimals=decimals),
        tokens.create_associated(context.payer, context.payer, mint=mint.pubkey),
        tokens.mint_to(mint.pubkey, account, authority=context.payer, amount=units),
        signers=(mint,),
    )
    sentence = f"created the token {mint.pubkey}; {supply} tokens are in {account}"
    return Outcome(sentence, {"mint": mint.pubkey, "account": account, "units": units, "signature": sent.signature})


@click.command(
    "send-tokens", cls=GroupedCommand, epilog=example("solana send-tokens", "--mint TOKEN --to WALLET --amount 50 -w owner.json")
)
@_option("--mint", type=ADDRESS, required=True, help="The token.")
@_option("--to", type=ADDRESS, required=True, help="Wallet that gets the tokens; this wallet pays for its token account.")
@_option("--amount", required=True, help="Tokens to send, as a decimal number.")
@command()
async def send_tokens(context: CommandContext, mint: Pubkey, to: Pubkey, amount: str) -> Outcome:
    """Send tokens of SPL Token from this wallet to another one."""
    if to == context.payer:
        message = f"--to names this wallet itself ({to}), so nothing was sent; name another one"
        raise UserError(message)

    receiver = await methods.account(context.rpc, to, timeout=CALL_SECONDS)
    if receiver is not None and receiver.owner != SYSTEM:
        message = f"--to {to} is no wallet but an account of the program {receiver.owner}, so nothing was sent; name a wallet"
        raise UserError(message)

    places = await decimals_of(context, mint)
    units = units_of(amount, places)
    own = await must_hold(context, mint, units, places=places, purpose="this transfer")
    account = tokens.associated(to, mint)
    sent = await context.send(
        tokens.create_associated(context.payer, to, mint=mint),
        tokens.transfer(own, account, owner=context.payer, amount=units),
    )
    sentence = f"{amount} tokens of {mint} were sent to {to}"
    return Outcome(sentence, {"mint": mint, "to": to, "account": account, "units": units, "signature": sent.signature})
