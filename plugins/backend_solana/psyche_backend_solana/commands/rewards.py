"""Commands about the treasurer: put in what a run pays, and take out what one has earned."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

import click
from solders.account import Account
from solders.pubkey import Pubkey

from psyche_backend_solana.commands.authority import the_treasurer
from psyche_backend_solana.commands.desk import (
    CALL_SECONDS,
    Desk,
    Outcome,
    command,
    example,
    run_id_option,
    treasurer_index_option,
)
from psyche_backend_solana.commands.reading import claimed_by, membership
from psyche_backend_solana.layouts import tokens, treasurer
from psyche_backend_solana.rpc import methods
from psyche_backend_solana.runs import coordinator_account
from psyche_core.errors import BackendError, ConfigError, UserError, WireError


@click.command(
    "treasurer-top-up-rewards",
    epilog=example("run-manager treasurer-top-up-rewards", "-r first-light --collateral-amount 1000.5 -w wallet.json"),
)
@run_id_option
@treasurer_index_option
@click.option("--collateral-amount", "amount", required=True, help="Tokens to put in, with decimals as people write them.")
@command()
async def top_up(desk: Desk, run_id: str, treasurer_index: int | None, amount: str) -> Outcome:
    """Put tokens of this wallet into the vault that a run's members are paid from."""
    paying = await the_treasurer(desk, run_id, treasurer_index)
    units = units_of(amount, await decimals(desk, paying.run.mint))
    source = tokens.associated(desk.payer, paying.run.mint)
    sent = await desk.send(treasurer.top_up(desk.payer, source, treasury=paying.treasury, amount=units))
    sentence = f"{amount} tokens ({units} units) are in the vault of {run_id!r}"
    return Outcome(sentence, {"vault": paying.treasury.vault, "units": units, "signature": sent.signature})


@click.command("treasurer-claim-rewards", epilog=example("run-manager treasurer-claim-rewards", "-r first-light -w wallet.json"))
@run_id_option
@treasurer_index_option
@command()
async def claim(desk: Desk, run_id: str, treasurer_index: int | None) -> Outcome:
    """Have this wallet paid what it has earned and not had yet, as far as the vault reaches."""
    paying = await the_treasurer(desk, run_id, treasurer_index)
    found = await desk.run(run_id)
    balance = membership((await coordinator_account(desk.rpc, found.run)).state, desk.payer)
    due = max(0, balance["earned"] - balance["slashed"] - await claimed_by(desk, paying, desk.payer))
    held = await amount_of(desk, paying.treasury.vault)
    units = min(due, held)
    if not units:
        why = "the vault is empty; the owner tops it up" if due else "nothing is owed to this wallet"
        message = f"nothing to claim from {run_id!r}: {why}"
        raise UserError(message)

    instructions = [tokens.create_associated(desk.payer, desk.payer, mint=paying.run.mint)]
    participant = treasurer.participant_address(paying.treasury.run, desk.payer, program=desk.programs.treasurer)
    if await methods.account(desk.rpc, participant, timeout=CALL_SECONDS) is None:
        instructions.append(treasurer.participant_create(desk.payer, desk.payer, treasury=paying.treasury))
    own = tokens.associated(desk.payer, paying.run.mint)
    paid = treasurer.participant_claim(desk.payer, desk.payer, destination=own, treasury=paying.treasury, amount=units)
    sent = await desk.send(*instructions, paid)
    sentence = f"{units} units were paid to {own}" + (
        f"; {due - units} more are owed when the vault is filled" if due > units else ""
    )
    return Outcome(sentence, {"units": units, "still_owed": due - units, "account": own, "signature": sent.signature})


async def decimals(desk: Desk, mint: Pubkey) -> int:
    """Decimals of a token. Raises BackendError."""
    read = await methods.account(desk.rpc, mint, timeout=CALL_SECONDS)
    if read is None:
        message = f"there is no token {mint}"
        raise BackendError(message)

    try:
        return tokens.parse_mint(Account(read.lamports, read.data, read.owner)).decimals
    except WireError as error:
        raise BackendError(str(error)) from error


async def amount_of(desk: Desk, address: Pubkey) -> int:
    """Units in a token account, 0 when there is none."""
    read = await methods.account(desk.rpc, address, timeout=CALL_SECONDS)
    return 0 if read is None else tokens.parse(Account(read.lamports, read.data, read.owner)).amount


def units_of(text: str, decimals: int) -> int:
    """An amount as people write it, in smallest units. Raises ConfigError."""
    try:
        units = Decimal(text) * 10**decimals
    except InvalidOperation:
        units = Decimal(-1)
    if not units.is_finite() or units <= 0 or units != units.to_integral_value() or units >= 2**64:
        message = f"expected an amount above 0 with at most {decimals} decimals, got {text!r}"
        raise ConfigError(message)

    return int(units)
