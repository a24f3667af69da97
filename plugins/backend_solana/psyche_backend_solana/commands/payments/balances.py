"""The command that frees balances which were paid out. A run holds a limited number of balances, and each new member needs one.

Anybody may use it, because the earned and the claimed amount are removed together. A member keeps its balance while it is in the
last epoch, pending, or owes for slashed points.
"""

from __future__ import annotations

import click
from solders.pubkey import Pubkey

from psyche_backend_solana.commands.authority import the_treasurer
from psyche_backend_solana.commands.context import (
    CommandContext,
    Outcome,
    command,
    example,
    run_id_option,
    treasurer_index_option,
)
from psyche_backend_solana.commands.participants import parts, read_participants
from psyche_backend_solana.layouts import treasurer
from psyche_backend_solana.lookup.runs import coordinator_account
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import UserError
from psyche_core.option_groups import GroupedCommand

_FREED_AT_ONCE = 12
"""Number of balances freed in one transaction: each adds an address and an instruction."""


@click.command(
    "treasurer-free-balances",
    cls=GroupedCommand,
    epilog=example("run-manager treasurer-free-balances", "-r first-light -w wallet.json"),
)
@run_id_option
@treasurer_index_option
@command()
async def free_balances(context: CommandContext, run_id: str, treasurer_index: int | None) -> Outcome:
    """Free the balances of members that left and were paid everything, so that new members have room."""
    found = await context.run(run_id)
    paying = await the_treasurer(context, found, treasurer_index)
    state = (await coordinator_account(context.rpc, found.run)).state
    accounts = () if state is None else state.accounts
    users = [Pubkey(account.signer) for account in accounts]
    gone = []
    for account, user, participant in zip(accounts, users, await read_participants(context, paying, users), strict=True):
        settled = participant is not None and participant.claimed == account.earned - account.slashed
        if settled and state is not None and not _is_member(state, account.signer):
            gone.append(user)
    if not gone:
        message = (
            f"no balance of {run_id!r} can be freed: all members that have one are in the run, or not paid out; "
            "treasurer-pay-members pays them"
        )
        raise UserError(message)

    signatures = []
    for part in parts(gone, _FREED_AT_ONCE):
        sent = await context.send(*(treasurer.run_release(user, treasury=paying.treasury) for user in part))
        signatures.append(sent.signature)
    sentence = f"{len(gone)} balances of {run_id!r} are freed"
    return Outcome(sentence, {"members": [str(user) for user in gone], "signatures": signatures})


def _is_member(state: CoordinatorState, signer: bytes) -> bool:
    members = (*state.pending, *(client.id for client in state.epoch.clients))
    return any(member.signer == signer for member in members)
