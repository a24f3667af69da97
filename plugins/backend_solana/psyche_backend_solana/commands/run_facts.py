"""Reads what a chain says about runs and members, as plain values for people and programs."""

from __future__ import annotations

import contextlib
from typing import Any

from solders.account import Account
from solders.pubkey import Pubkey

from psyche_backend_solana.commands.authority import TreasurerRun
from psyche_backend_solana.commands.context import CALL_SECONDS, CommandContext
from psyche_backend_solana.commands.participants import read_participants
from psyche_backend_solana.layouts import bond, reference, tokens
from psyche_backend_solana.layouts.coordinator import Run
from psyche_backend_solana.layouts.coordinator_accounts import INSTANCE_BYTES, INSTANCE_MAGIC, CoordinatorAccount
from psyche_backend_solana.lookup.runs import read_coordinator, read_instance
from psyche_backend_solana.programs.addresses import COORDINATOR
from psyche_backend_solana.rpc import methods
from psyche_core.config.run_config import to_plain
from psyche_core.coordinator.state import Client, CoordinatorState
from psyche_core.errors import AccessRefused, BackendError, WireError
from psyche_core.types import RunState


async def reference_run(context: CommandContext, run_id: str) -> dict[str, Any]:
    """Return a run of the reference implementation. Raises AccessRefused (WrongRun), BackendError."""
    program = reference.PROGRAM_ID if context.programs.coordinator == COORDINATOR else context.programs.coordinator
    address = Pubkey.find_program_address([b"coordinator", run_id.encode()[:64]], program)[0]
    try:
        read = await methods.account(context.rpc, address, timeout=CALL_SECONDS)
        if read is None or read.owner != program:
            message = (
                f"the program {program} has no run {run_id!r} at {context.rpc.current.name}; "
                "check the name, --rpc and the program's id"
            )
            raise AccessRefused("WrongRun", message)

        instance = reference.parse_instance(read.data)
        kept = await methods.account(context.rpc, instance["account"], timeout=CALL_SECONDS)
        if kept is None or kept.owner != program:
            message = f"the account {instance['account']} of the run {run_id!r} is gone; its owner has closed the run"
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
                **_standing(state, client),
            }
            for slot, client in enumerate(state.epoch.clients)
        ],
        "challenges": _challenges(state),
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


def _standing(state: CoordinatorState, client: Client) -> dict[str, Any]:
    """Return what checks found about a member: its strikes in this epoch, and whether its share is checked in any case."""
    current = state.current_round if state.run_state in (RunState.RoundTrain, RunState.RoundWitness) else None
    return {
        "strikes": client.standing.strikes,
        "watched": current is not None and client.standing.watched(current.height),
    }


def _challenges(state: CoordinatorState, *, about: int | None = None) -> list[dict[str, Any]]:
    """Return the checks that have not ended. about: a slot; only the checks in which that member takes part."""

    def wallet(slot: int) -> Pubkey:
        return Pubkey(state.epoch.clients[slot].id.signer)

    return [
        {
            "height": one.height,
            "trainer": wallet(one.trainer),
            "verifier": wallet(one.verifier),
            "judges": [wallet(slot) for slot in one.judges],
            "stage": one.stage.name,
            "since": one.since,
            "complained": one.complained,
        }
        for one in state.epoch.challenges
        if about is None or about in (one.trainer, one.verifier, *one.judges)
    ]


def membership(state: CoordinatorState | None, address: Pubkey) -> dict[str, Any]:
    """The entries of a run's state for one wallet."""
    signer = bytes(address)
    balance = next((one for one in state.accounts if one.signer == signer), None) if state is not None else None
    slot = next((at for at, client in enumerate(state.epoch.clients) if client.id.signer == signer), None) if state else None
    return {
        "pending": state is not None and any(member.signer == signer for member in state.pending),
        "slot": slot,
        "state": state.epoch.clients[slot].state.name if state is not None and slot is not None else None,
        **({"strikes": 0, "watched": False} if state is None or slot is None else _standing(state, state.epoch.clients[slot])),
        "challenges": [] if state is None or slot is None else _challenges(state, about=slot),
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


async def own_runs_with_bonds(context: CommandContext) -> list[str]:
    """Names of this wallet's runs whose join authority is this wallet's account of terms for bonds. Raises RpcError."""
    program = context.programs.coordinator
    found = await methods.program_accounts(
        context.rpc, program, begins_with=INSTANCE_MAGIC, size=INSTANCE_BYTES, timeout=CALL_SECONDS
    )
    names = []
    for address, read in found.items():
        with contextlib.suppress(BackendError):  # a malformed account must not hide the others
            instance = read_instance(read, program=program)
            if instance.join_authority == bond.bonds_address(context.payer, address, program=context.programs.bond):
                names.append(instance.run_id)
    return sorted(names)


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
