"""Commands that only read: a run, a member, all runs, whether somebody may join."""

from __future__ import annotations

import json
from typing import Any

import click
from solders.account import Account
from solders.pubkey import Pubkey

from psyche_backend_solana.commands.authority import TreasurerRun, find_treasurer
from psyche_backend_solana.commands.context import (
    ADDRESS,
    CALL_SECONDS,
    CommandContext,
    Outcome,
    command,
    example,
    plain,
    run_id_option,
    treasurer_index_option,
)
from psyche_backend_solana.commands.participants import read_participants
from psyche_backend_solana.layouts import reference, tokens
from psyche_backend_solana.layouts.coordinator import Run
from psyche_backend_solana.layouts.coordinator_accounts import INSTANCE_BYTES, INSTANCE_MAGIC, CoordinatorAccount
from psyche_backend_solana.lookup.runs import coordinator_account, find_authorization, read_coordinator, read_instance
from psyche_backend_solana.programs.addresses import COORDINATOR
from psyche_backend_solana.rpc import methods
from psyche_backend_solana.settings import ChainSettings
from psyche_core.config.run_config import to_plain
from psyche_core.config.sentences import printable
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import AccessRefused, BackendError, CommandRefused, WireError
from psyche_core.types import RunState

_HIDDEN = (RunState.Finished, RunState.Paused)


@click.command(
    "json-dump-run", epilog=example("run-manager json-dump-run", "-r first-light", "-r consilience-40b --program reference")
)
@run_id_option
@treasurer_index_option
@click.option(
    "--program",
    type=click.Choice(["psyche", "reference"]),
    default="psyche",
    show_default=True,
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


@click.command("json-dump-user", epilog=example("run-manager json-dump-user", "-r first-light --address WALLET"))
@run_id_option
@treasurer_index_option
@click.option("--address", "--wallet", "--user", "address", type=ADDRESS, required=True, help="The member's wallet.")
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


@click.command("list-runs", epilog=example("run-manager list-runs", "", "--all --json", "--address WALLET"))
@click.option("--authorizer", type=ADDRESS, help="Only runs for which this wallet grants the right to join.")
@click.option("--all", "every", is_flag=True, help="Also runs that are paused, finished or not configured yet.")
@click.option("--address", "--wallet", "address", type=ADDRESS, help="Only runs that this wallet may join.")
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


@click.command("can-join", epilog=example("run-manager can-join", "-r first-light --address WALLET"))
@run_id_option
@click.option("--authorizer", type=ADDRESS, help="Wallet whose authorization names the joining wallet as a delegate.")
@click.option("--address", "--wallet", "--user", "address", type=ADDRESS, required=True, help="The wallet that wants to join.")
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
        message = f"the wallet {address} is authorized, but has no SOL to pay fees with"
        raise CommandRefused("NoFunds", message)

    sentence = f"the wallet {address} can join {run_id!r} (now {phase})"
    return Outcome(sentence, {"run_id": run_id, "address": address, "authorization": at, "run_state": phase})


def _as_json(facts: dict[str, Any]) -> Outcome:
    return Outcome(json.dumps(plain(facts), indent=2), facts)


async def reference_run(context: CommandContext, run_id: str) -> dict[str, Any]:
    """A run of the other implementation. Raises AccessRefused (WrongRun), BackendError."""
    program = reference.PROGRAM_ID if context.programs.coordinator == COORDINATOR else context.programs.coordinator
    address = Pubkey.find_program_address([b"coordinator", run_id.encode()[:64]], program)[0]
    try:
        read = await methods.account(context.rpc, address, timeout=CALL_SECONDS)
        if read is None or read.owner != program:
            message = f"the program {program} has no run {run_id!r} at {context.rpc.current.name}"
            raise AccessRefused("WrongRun", message)

        instance = reference.parse_instance(read.data)
        kept = await methods.account(context.rpc, instance["account"], timeout=CALL_SECONDS)
        if kept is None or kept.owner != program:
            message = f"the account {instance['account']} of the run {run_id!r} is gone"
            raise BackendError(message)

        return {**instance, "instance": address, **reference.parse_account(kept.data)}
    except WireError as error:
        raise BackendError(str(error)) from error


def described(account: CoordinatorAccount) -> dict[str, Any]:
    """The contents of the account of a run's state."""
    facts: dict[str, Any] = {
        "nonce": account.nonce,
        "version": account.version,
        "client_version": account.client_version,
        "name": account.metadata.name,
        "description": account.metadata.description,
        "num_parameters": account.metadata.num_parameters,
        "vocab_size": account.metadata.vocab_size,
        "run_state": "Uninitialized",
    }
    state = account.state
    if state is None:
        return facts

    current = state.current_round
    return facts | {
        "run_state": state.run_state.name,
        "since": state.since,
        "pending_pause": state.pending_pause,
        "progress": {"epoch": state.progress.epoch, "step": state.progress.step, "data_index": state.progress.data_index},
        "round": None
        if current is None
        else {"height": current.height, "step": current.step, "statements": len(current.statements)},
        "clients": [
            {
                "slot": slot,
                "address": Pubkey(client.id.signer),
                "p2p": client.id.p2p,
                "state": client.state.name,
                "accepted_rounds": client.accepted_rounds,
            }
            for slot, client in enumerate(state.epoch.clients)
        ],
        "pending": [{"address": Pubkey(member.signer), "p2p": member.p2p} for member in state.pending],
        "rates": {
            "earning_total_shared": state.epoch.rates.earning_total_shared,
            "slashing_per_client": state.epoch.rates.slashing_per_client,
        },
        "future_rates": {
            "earning_total_shared": state.future_rates.earning_total_shared,
            "slashing_per_client": state.future_rates.slashing_per_client,
        },
        "accounts": [{"address": Pubkey(one.signer), "earned": one.earned, "slashed": one.slashed} for one in state.accounts],
        "lost_samples": state.lost_samples,
        "config": to_plain(state.config),
        "model": to_plain(state.model),
    }


def membership(state: CoordinatorState | None, address: Pubkey) -> dict[str, Any]:
    """The entries of a run's state for one wallet."""
    signer = bytes(address)
    balance = next((one for one in state.accounts if one.signer == signer), None) if state is not None else None
    slot = next((at for at, client in enumerate(state.epoch.clients) if client.id.signer == signer), None) if state else None
    return {
        "pending": state is not None and any(member.signer == signer for member in state.pending),
        "slot": slot,
        "state": state.epoch.clients[slot].state.name if state is not None and slot is not None else None,
        "earned": 0 if balance is None else balance.earned,
        "slashed": 0 if balance is None else balance.slashed,
    }


async def funds(context: CommandContext, paying: TreasurerRun, state: CoordinatorState | None) -> dict[str, Any]:
    """The amounts that a run's treasurer has, owes and lacks."""
    read = await methods.account(context.rpc, paying.treasury.vault, timeout=CALL_SECONDS)
    held = 0 if read is None else tokens.parse(Account(read.lamports, read.data, read.owner)).amount
    earned = sum(max(0, one.earned - one.slashed) for one in state.accounts) if state is not None else 0
    owed = max(0, earned - paying.run.claimed)
    rate = 0 if state is None else state.future_rates.earning_total_shared
    return {
        "run": paying.treasury.run,
        "index": paying.run.index,
        "main_authority": paying.run.main_authority,
        "mint": paying.run.mint,
        "vault": paying.treasury.vault,
        "held": held,
        "claimed": paying.run.claimed,
        "owed": owed,
        "missing": max(0, owed - held),
        "surplus": max(0, held - owed),
        "epochs_funded": max(0, held - owed) // rate if rate else None,
    }


async def claimed_by(context: CommandContext, paying: TreasurerRun, user: Pubkey) -> int:
    """Units that a run's treasurer has paid to a user."""
    participant = (await read_participants(context, paying, [user]))[0]
    return 0 if participant is None else participant.claimed


async def runs_on_chain(context: CommandContext) -> list[dict[str, Any]]:
    """All runs of the coordinator program, those that wait for members first. Malformed accounts are left out."""
    await context.check_ids("coordinator")
    program = context.programs.coordinator
    found = await methods.program_accounts(
        context.rpc, program, begins_with=INSTANCE_MAGIC, size=INSTANCE_BYTES, timeout=CALL_SECONDS
    )
    rows = []
    for address, read in found.items():
        try:
            instance = read_instance(read, program=program)
            kept = await methods.account(context.rpc, instance.account, timeout=CALL_SECONDS)
            if kept is None:
                continue
            account = read_coordinator(kept, Run(address, instance.account, program))
            state = account.state
        except (BackendError, WireError):
            continue  # a malformed account must not hide the others
        rows.append(
            {
                "run_id": instance.run_id,
                "name": account.metadata.name,
                "run_state": "Uninitialized" if state is None else state.run_state.name,
                "members": 0 if state is None else len(state.pending),
                "step": 0 if state is None else state.progress.step,
                "total_steps": 0 if state is None else state.config.total_steps,
                "client_version": account.client_version,
                "join_authority": instance.join_authority,
            }
        )
    return sorted(rows, key=lambda row: (row["run_state"] != "WaitingForMembers", row["run_id"]))
