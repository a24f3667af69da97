"""Commands that only read: a run, a member, all runs, whether somebody may join."""

from __future__ import annotations

import json
from typing import Any

import click
from solders.pubkey import Pubkey

from psyche_backend_solana.commands.authority import find_treasurer
from psyche_backend_solana.commands.context import (
    ADDRESS,
    CALL_SECONDS,
    RUN,
    CommandContext,
    Outcome,
    command,
    example,
    plain,
    run_id_option,
    treasurer_index_option,
)
from psyche_backend_solana.commands.run_facts import claimed_by, described, funds, membership, reference_run, runs_on_chain
from psyche_backend_solana.lookup.runs import coordinator_account, find_authorization
from psyche_backend_solana.rpc import methods
from psyche_backend_solana.settings import ChainSettings
from psyche_core.errors import CommandRefused
from psyche_core.option_groups import GroupedCommand, option
from psyche_core.text_safety import printable
from psyche_core.types import RunState

_HIDDEN = (RunState.Finished, RunState.Paused)


@click.command(
    "json-dump-run",
    cls=GroupedCommand,
    epilog=example("run-manager json-dump-run", "-r first-light", "-r consilience-40b --program reference"),
)
@run_id_option
@treasurer_index_option
@option(
    "--program",
    type=click.Choice(["psyche", "reference"]),
    default="psyche",
    show_default=True,
    group=RUN,
    help="Program of the run: ours, or the reference implementation's, whose runs can only be read.",
)
@command(ChainSettings)
async def json_dump_run(context: CommandContext, run_id: str, treasurer_index: int | None, program: str) -> Outcome:
    """Print everything on the chain about a run, as JSON."""
    if program == "reference":
        return _as_json(await reference_run(context, run_id))

    found = await context.run(run_id)
    account = await coordinator_account(context.rpc, found.run)
    facts: dict[str, Any] = {
        "run_id": run_id,
        "instance": found.run.instance,
        "account": found.run.account,
        "main_authority": found.instance.main_authority,
        "join_authority": found.instance.join_authority,
        **described(account),
    }
    paying = await find_treasurer(context, found, treasurer_index)
    if paying is not None:
        facts["treasurer"] = await funds(context, paying, account.state)
    return _as_json(facts)


@click.command(
    "json-dump-user", cls=GroupedCommand, epilog=example("run-manager json-dump-user", "-r first-light --address WALLET")
)
@run_id_option
@treasurer_index_option
@option("--address", "--wallet", "--user", "address", type=ADDRESS, required=True, group=RUN, help="The member's wallet.")
@command(ChainSettings)
async def json_dump_user(context: CommandContext, run_id: str, treasurer_index: int | None, address: Pubkey) -> Outcome:
    """Print everything on the chain about one member of a run, as JSON."""
    found = await context.run(run_id)
    state = (await coordinator_account(context.rpc, found.run)).state
    facts: dict[str, Any] = {"run_id": run_id, "address": address, **membership(state, address)}
    facts["lamports"] = await methods.balance(context.rpc, address, timeout=CALL_SECONDS)
    paying = await find_treasurer(context, found, treasurer_index)
    if paying is not None:
        claimed = await claimed_by(context, paying, address)
        facts["treasurer"] = {"claimed": claimed, "claimable": max(0, facts["earned"] - facts["slashed"] - claimed)}
    return _as_json(facts)


@click.command("list-runs", cls=GroupedCommand, epilog=example("run-manager list-runs", "", "--all --json", "--address WALLET"))
@option("--authorizer", type=ADDRESS, group=RUN, help="Only runs for which this wallet grants the right to join.")
@option("--all", "every", is_flag=True, group=RUN, help="Also runs that are paused, finished or not configured yet.")
@option("--address", "--wallet", "address", type=ADDRESS, group=RUN, help="Only runs that this wallet may join.")
@command(ChainSettings)
async def list_runs(context: CommandContext, authorizer: Pubkey | None, every: bool, address: Pubkey | None) -> Outcome:
    """List the runs on a chain, those that wait for members first.

    With --address only those that a wallet may join, by the grant for everybody or by one for this wallet.
    """
    rows = await runs_on_chain(context)
    if address is not None:
        rows = [row for row in rows if await _may_join(context, row["join_authority"], address)]
    if authorizer is not None:
        rows = [row for row in rows if row["join_authority"] == authorizer]
    if not every:
        rows = [row for row in rows if row["run_state"] not in ("Uninitialized", *(phase.name for phase in _HIDDEN))]
    lines = [
        f"{printable(row['run_id'], at_most=64):<32}  {row['run_state']:<18}  step {row['step']}/{row['total_steps']}, "
        f"{row['members']} members  {printable(row['name'], at_most=64)}".rstrip()
        for row in rows
    ]
    return Outcome("\n".join(lines) or "no run can be joined; --all also lists the others", {"runs": rows})


async def _may_join(context: CommandContext, join_authority: Pubkey, address: Pubkey) -> bool:
    try:
        await find_authorization(context.rpc, join_authority, address, programs=context.programs, timeout=CALL_SECONDS)
    except CommandRefused:
        return False

    return True


@click.command("can-join", cls=GroupedCommand, epilog=example("run-manager can-join", "-r first-light --address WALLET"))
@run_id_option
@option("--authorizer", type=ADDRESS, group=RUN, help="Wallet whose authorization names the joining wallet as a delegate.")
@option(
    "--address", "--wallet", "--user", "address", type=ADDRESS, required=True, group=RUN, help="The wallet that wants to join."
)
@command(ChainSettings)
async def can_join(context: CommandContext, run_id: str, authorizer: Pubkey | None, address: Pubkey) -> Outcome:
    """Check whether a wallet may join a run, and print what is missing. Exit code 1 if it may not."""
    found = await context.run(run_id)
    grantees = None if authorizer is None else (authorizer,)
    at = await find_authorization(
        context.rpc, found.instance.join_authority, address, grantees=grantees, programs=context.programs, timeout=CALL_SECONDS
    )
    state = (await coordinator_account(context.rpc, found.run)).state
    phase = "Uninitialized" if state is None else state.run_state.name
    funds_there = await methods.balance(context.rpc, address, timeout=CALL_SECONDS)
    if not funds_there:
        message = f"the wallet {address} is authorized, but has no SOL to pay fees with; send it some"
        raise CommandRefused("NoFunds", message)

    sentence = f"the wallet {address} can join {run_id!r} (now {phase})"
    return Outcome(sentence, {"run_id": run_id, "address": address, "authorization": at, "run_state": phase})


def _as_json(facts: dict[str, Any]) -> Outcome:
    return Outcome(json.dumps(plain(facts), indent=2), facts)
