"""Commands about the treasurer: deposit the tokens that a run pays, claim one's earnings, pay all members."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import click
from solders.account import Account
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche_backend_solana.commands.authority import TreasurerRun, owner_of, the_treasurer
from psyche_backend_solana.commands.context import (
    CALL_SECONDS,
    RUN,
    CommandContext,
    Outcome,
    command,
    example,
    run_id_option,
    treasurer_index_option,
)
from psyche_backend_solana.commands.participants import parts, read_participants
from psyche_backend_solana.commands.run_facts import membership
from psyche_backend_solana.commands.token_amounts import decimals, units_of
from psyche_backend_solana.layouts import tokens, treasurer
from psyche_backend_solana.lookup.runs import coordinator_account
from psyche_backend_solana.rpc import methods
from psyche_core.coordinator.state import Account as Balance
from psyche_core.errors import UserError
from psyche_core.option_groups import GroupedCommand, option

_PAID_AT_ONCE = 4
"""Members paid in one transaction: each adds three addresses and three instructions, and seven do not fit."""


@click.command(
    "treasurer-top-up-rewards",
    cls=GroupedCommand,
    epilog=example("run-manager treasurer-top-up-rewards", "-r first-light --collateral-amount 1000.5 -w wallet.json"),
)
@run_id_option
@treasurer_index_option
@option("--collateral-amount", "amount", required=True, group=RUN, help="Tokens to deposit, as a decimal number.")
@command()
async def top_up(context: CommandContext, run_id: str, treasurer_index: int | None, amount: str) -> Outcome:
    """Deposit tokens of this wallet into the vault from which a run's members are paid."""
    paying = await the_treasurer(context, await context.run(run_id), treasurer_index)
    units = units_of(amount, await decimals(context, paying.run.mint))
    source = tokens.associated(context.payer, paying.run.mint)
    sent = await context.send(treasurer.top_up(context.payer, source, treasury=paying.treasury, amount=units))
    sentence = f"{amount} tokens ({units} units) are in the vault of {run_id!r}"
    return Outcome(sentence, {"vault": paying.treasury.vault, "units": units, "signature": sent.signature})


@click.command(
    "treasurer-claim-rewards",
    cls=GroupedCommand,
    epilog=example("run-manager treasurer-claim-rewards", "-r first-light -w wallet.json"),
)
@run_id_option
@treasurer_index_option
@command()
async def claim(context: CommandContext, run_id: str, treasurer_index: int | None) -> Outcome:
    """Pay this wallet what it has earned and not received yet, as far as the vault has enough."""
    found = await context.run(run_id)
    paying = await the_treasurer(context, found, treasurer_index)
    balance = membership((await coordinator_account(context.rpc, found.run)).state, context.payer)
    participant = (await read_participants(context, paying, [context.payer]))[0]
    due = max(0, balance["earned"] - balance["slashed"] - (0 if participant is None else participant.claimed))
    held = await amount_of(context, paying.treasury.vault)
    units = min(due, held)
    if not units:
        why = "the vault is empty; the owner tops it up" if due else "nothing is owed to this wallet; it earns at an epoch's end"
        message = f"nothing to claim from {run_id!r}: {why}"
        raise UserError(message)

    own = tokens.associated(context.payer, paying.run.mint)
    sent = await context.send(*_payment(context, paying, Due(context.payer, units, known=participant is not None)))
    sentence = f"{units} units were paid to {own}" + (
        f"; {due - units} more are owed when the vault is filled" if due > units else ""
    )
    return Outcome(sentence, {"units": units, "still_owed": due - units, "account": own, "signature": sent.signature})


@click.command(
    "treasurer-pay-members",
    cls=GroupedCommand,
    epilog=example("run-manager treasurer-pay-members", "-r first-light -w owner.json"),
)
@run_id_option
@treasurer_index_option
@command()
async def pay_members(context: CommandContext, run_id: str, treasurer_index: int | None) -> Outcome:
    """Pay every member what it has earned and not claimed, as far as the vault has enough. Only for the run's owner.

    Units go to the members' own accounts. This wallet pays the fees, and the rent of accounts that do not exist yet. If it is
    interrupted, call it again; nobody is paid twice.
    """
    owner = await owner_of(context, run_id, treasurer_index)
    paying = await the_treasurer(context, owner.found, treasurer_index)
    state = (await coordinator_account(context.rpc, owner.found.run)).state
    owed = await _owed(context, paying, () if state is None else state.accounts)
    affordable = _within(owed, await amount_of(context, paying.treasury.vault))
    rest = sum(due.units for due in owed) - sum(due.units for due in affordable)
    if not affordable:
        why = "the vault is empty; top it up" if rest else "nobody is owed anything; members earn at an epoch's end"
        message = f"nobody can be paid by {run_id!r}: {why}"
        raise UserError(message)

    signatures = []
    with click.progressbar(
        length=len(affordable), label="paying members", file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as bar:
        for part in parts(affordable, _PAID_AT_ONCE):
            sent = await context.send(*(instruction for due in part for instruction in _payment(context, paying, due)))
            signatures.append(sent.signature)
            bar.update(len(part))

    paid = sum(due.units for due in affordable)
    several = f"{len(affordable)} members were" if len(affordable) > 1 else "1 member was"
    sentence = f"{several} paid {paid} units" + (f"; {rest} more are owed when the vault is filled" if rest else "")
    members = {str(due.user): due.units for due in affordable}
    return Outcome(sentence, {"units": paid, "still_owed": rest, "members": members, "signatures": signatures})


@dataclass(frozen=True, slots=True)
class Due:
    """A payment that is due. units: amount for a user. known: whether the user has a participant's account for the run."""

    user: Pubkey
    units: int
    known: bool


async def _owed(context: CommandContext, paying: TreasurerRun, accounts: Sequence[Balance]) -> list[Due]:
    """The members that are owed something. Raises BackendError."""
    users = [Pubkey(account.signer) for account in accounts]
    found = []
    for account, user, participant in zip(accounts, users, await read_participants(context, paying, users), strict=True):
        units = account.earned - account.slashed - (0 if participant is None else participant.claimed)
        if units > 0:
            found.append(Due(user, units, known=participant is not None))
    return found


def _within(owed: Sequence[Due], held: int) -> list[Due]:
    """The payments that the held amount covers, in order; the last one may be partial."""
    found = []
    for due in owed:
        units = min(due.units, held)
        if not units:
            break
        held -= units
        found.append(replace(due, units=units))
    return found


def _payment(context: CommandContext, paying: TreasurerRun, due: Due) -> list[Instruction]:
    """The instructions that pay one member and create missing accounts."""
    treasury = paying.treasury
    made = [] if due.known else [treasurer.participant_create(context.payer, due.user, treasury=treasury)]
    own = tokens.associated(due.user, treasury.mint)
    claimed = treasurer.participant_claim(context.payer, due.user, destination=own, treasury=treasury, amount=due.units)
    return [tokens.create_associated(context.payer, due.user, mint=treasury.mint), *made, claimed]


async def amount_of(context: CommandContext, address: Pubkey) -> int:
    """Units in a token account; 0 if it does not exist."""
    read = await methods.account(context.rpc, address, timeout=CALL_SECONDS)
    return 0 if read is None else tokens.parse(Account(read.lamports, read.data, read.owner)).amount
