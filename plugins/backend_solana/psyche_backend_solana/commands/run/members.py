"""Commands of members, about members, and of anybody: tick, checkpoint, withdraw, expel, close-address."""

from __future__ import annotations

import anyio
import click
from solders.pubkey import Pubkey

from psyche_backend_solana.commands.context import (
    ADDRESS,
    CALL_SECONDS,
    RUN,
    CommandContext,
    Outcome,
    command,
    example,
    run_id_option,
)
from psyche_backend_solana.layouts import address_record, authorizer, coordinator
from psyche_backend_solana.lookup.runs import coordinator_account
from psyche_backend_solana.rpc import methods
from psyche_core.config.run_config import Choice
from psyche_core.errors import CommandRefused, UserError
from psyche_core.option_groups import GroupedCommand, option


@click.command(
    "tick",
    cls=GroupedCommand,
    epilog=example("run-manager tick", "-r first-light -w wallet.json", "-r first-light --count 10 -w wallet.json"),
)
@run_id_option
@option(
    "--ms-interval", type=click.IntRange(1), default=1000, show_default=True, group=RUN, help="Milliseconds between two ticks."
)
@option("--count", type=click.IntRange(1), default=1, show_default=True, group=RUN, help="How many ticks.")
@command()
async def tick(context: CommandContext, run_id: str, ms_interval: int, count: int) -> Outcome:
    """Let a run check the clock. Members do this automatically; anybody may. It costs nothing if nothing is due."""
    found = await context.run(run_id)
    signatures = []
    for number in range(count):
        if number:
            await anyio.sleep(ms_interval / 1000)
        try:
            signatures.append((await context.send(coordinator.tick(found.run, user=context.payer))).signature)
        except CommandRefused as refusal:
            if refusal.code != "NothingDue":
                raise
    state = (await coordinator_account(context.rpc, found.run, timeout=CALL_SECONDS)).state
    phase = "Uninitialized" if state is None else state.run_state.name
    sentence = (
        f"ticked {len(signatures)} times; {run_id!r} is now {phase}"
        if signatures
        else f"nothing is due; {run_id!r} is in {phase}"
    )
    return Outcome(sentence, {"run_state": phase, "signatures": signatures})


@click.command(
    "checkpoint",
    cls=GroupedCommand,
    epilog=example("run-manager checkpoint", "-r first-light --repo owner/model --revision abc123 -w wallet.json"),
)
@run_id_option
@option("--repo", required=True, group=RUN, help="Repository on the Hub that has the model.")
@option("--revision", group=RUN, help="Its commit.")
@command()
async def checkpoint(context: CommandContext, run_id: str, repo: str, revision: str | None) -> Outcome:
    """Report where a run's model is stored. Only for members whose turn it is to store it."""
    found = await context.run(run_id)
    location = Choice("Hub", {"repo_id": repo, **({} if revision is None else {"revision": revision})})
    sent = await context.send(coordinator.checkpoint(found.run, location, user=context.payer))
    return Outcome(
        f"the run {run_id!r} has the model at {repo}", {"repo": repo, "revision": revision, "signature": sent.signature}
    )


@click.command("close-address", cls=GroupedCommand, epilog=example("run-manager close-address", "-r first-light -w wallet.json"))
@run_id_option
@command()
async def close_address(context: CommandContext, run_id: str) -> Outcome:
    """Delete the account with the address of this wallet's client, and get its rent back. A client creates it again."""
    instance, _ = coordinator.instance_address(run_id, program=context.programs.coordinator)
    at = address_record.place(context.payer, instance, program=context.programs.authorizer)
    await context.check_ids("authorizer")
    read = await methods.account(context.rpc, at, timeout=CALL_SECONDS)
    if read is None or read.owner != context.programs.authorizer:
        message = f"there is no address of the wallet {context.payer} for {run_id!r}; check -r and -w"
        raise UserError(message)

    closed = authorizer.close(context.payer, context.payer, authorization=at, program=context.programs.authorizer)
    sent = await context.send(closed)
    sentence = f"the address of the wallet {context.payer} for {run_id!r} is deleted; {read.lamports} lamports were returned"
    return Outcome(sentence, {"account": at, "lamports": read.lamports, "signature": sent.signature})


@click.command("withdraw", cls=GroupedCommand, epilog=example("run-manager withdraw", "-r first-light -w wallet.json"))
@run_id_option
@command()
async def withdraw(context: CommandContext, run_id: str) -> Outcome:
    """Make this wallet leave a run, if its client can no longer do that."""
    found = await context.run(run_id)
    sent = await context.send(coordinator.withdraw(found.run, user=context.payer))
    return Outcome(f"the wallet {context.payer} is no longer a member of {run_id!r}", {"signature": sent.signature})


@click.command(
    "expel", cls=GroupedCommand, epilog=example("run-manager expel", "-r first-light --wallet MEMBER -w join-authority.json")
)
@run_id_option
@option("--wallet", "user", type=ADDRESS, required=True, group=RUN, help="The member's wallet.")
@command()
async def expel(context: CommandContext, run_id: str, user: Pubkey) -> Outcome:
    """Remove a member, as if it had withdrawn. Needs the wallet of the join authority.

    It can join again while it has an authorization; revoke that first, with join-authorization-delete.
    """
    found = await context.run(run_id)
    sent = await context.send(coordinator.expel(found.run, authority=context.payer, user=user))
    return Outcome(f"the wallet {user} is no longer a member of {run_id!r}", {"wallet": user, "signature": sent.signature})
