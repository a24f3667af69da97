"""`psyche solana create-token`: creates a token for paying a run's members, if there is none yet."""

from __future__ import annotations

import click
from solders.keypair import Keypair
from solders.system_program import CreateAccountParams, create_account

from psyche_backend_solana.commands.context import CALL_SECONDS, CommandContext, Outcome, command, example
from psyche_backend_solana.commands.token_amounts import units_of
from psyche_backend_solana.layouts import tokens
from psyche_backend_solana.programs.addresses import TOKEN
from psyche_backend_solana.rpc import methods
from psyche_backend_solana.wallet import Wallet
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
