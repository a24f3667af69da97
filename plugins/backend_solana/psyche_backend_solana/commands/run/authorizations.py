"""Commands about who may join: the run's join authority grants, a granted wallet names delegates."""

from __future__ import annotations

import contextlib
from typing import Any

import click
from solders.account import Account
from solders.pubkey import Pubkey

from psyche_backend_solana.commands.context import ADDRESS, CALL_SECONDS, CommandContext, Outcome, command, example
from psyche_backend_solana.commands.run_facts import own_runs_with_bonds
from psyche_backend_solana.layouts import authorizer as layout
from psyche_backend_solana.rpc import methods
from psyche_backend_solana.rpc.failures import RpcError
from psyche_backend_solana.settings import ChainSettings
from psyche_core.errors import BackendError, UserError, WireError
from psyche_core.option_groups import GroupedCommand, options_of

_option = options_of("Authorization")

DELEGATES_AT_ONCE = 25
"""Number of delegates that fit into one transaction."""

_ADDS = ("--delegates-added", "--delegate-added")
_GRANTEE = "Wallet that may join and name delegates; 11111111111111111111111111111111 for everybody."
_LIMIT = (
    "Most members that may wait by this grant at once; 0 for no limit. A grant for everybody admits while fewer "
    "members than this wait by any grant."
)


@click.command(
    "join-authorization-create",
    cls=GroupedCommand,
    epilog=example("run-manager join-authorization-create", "--authorizer WALLET -w join-authority.json"),
)
@_option("--authorizer", "grantee", type=ADDRESS, required=True, help=_GRANTEE)
@_option("--limit", type=click.IntRange(0, 2**16 - 1), help=_LIMIT)
@command()
async def create(context: CommandContext, grantee: Pubkey, limit: int | None) -> Outcome:
    """Let a wallet join all runs whose join authority is this wallet. Repeating it changes only the limit."""
    at = layout.address(context.payer, grantee, program=context.programs.authorizer)
    present = await _read(context, at)
    if present is not None and present.active and limit in (None, present.limit):
        return await _granted(context, grantee, "already", {"authorization": at, "active": True})

    switch = layout.grantor_update(context.payer, at, active=True, limit=limit, program=context.programs.authorizer)
    made = layout.create(context.payer, context.payer, grantee=grantee, program=context.programs.authorizer)
    sent = await context.send(*((switch,) if present is not None else (made, switch)))
    return await _granted(context, grantee, "now", {"authorization": at, "active": True, "signature": sent.signature})


async def _granted(context: CommandContext, grantee: Pubkey, when: str, facts: dict[str, Any]) -> Outcome:
    bonded: list[str] = []
    with contextlib.suppress(RpcError, BackendError):  # many providers list no accounts; the grant is made all the same
        bonded = await own_runs_with_bonds(context)
    if not bonded:
        return Outcome(f"{_whose(grantee)} may join {when}", facts)

    sentence = (
        f"{_whose(grantee)} may join the runs whose join authority is this wallet ({context.payer}); bonds, and not this grant, "
        f"decide who joins {', '.join(map(repr, bonded))}"
    )
    return Outcome(sentence, {**facts, "not_for": bonded})


@click.command(
    "join-authorization-delete",
    cls=GroupedCommand,
    epilog=example("run-manager join-authorization-delete", "--authorizer WALLET -w join-authority.json"),
)
@_option("--authorizer", "grantee", type=ADDRESS, required=True, help=_GRANTEE)
@command()
async def delete(context: CommandContext, grantee: Pubkey) -> Outcome:
    """Revoke a grant and close its account. The wallet and its delegates can join no further epoch."""
    at = layout.address(context.payer, grantee, program=context.programs.authorizer)
    if await _read(context, at) is None:
        message = (
            f"there is no authorization by {context.payer} for {_whose(grantee)}; "
            "check --authorizer, and that -w is the wallet that granted it"
        )
        raise UserError(message)

    off = layout.grantor_update(context.payer, at, active=False, program=context.programs.authorizer)
    closed = layout.close(context.payer, context.payer, authorization=at, program=context.programs.authorizer)
    sent = await context.send(off, closed)
    return Outcome(f"{_whose(grantee)} may no longer join", {"authorization": at, "signature": sent.signature})


class _Delegate(GroupedCommand):
    """Takes several wallets after one `--delegates-added`, as in the Rust program's manuals."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before each wallet."""
        words: list[str] = []
        adds = False
        for word in args:
            if adds and not word.startswith("-") and words[-1] not in _ADDS:
                words.append(_ADDS[0])
            adds = word in _ADDS or (adds and not word.startswith("-"))
            words.append(word)
        return super().parse_args(ctx, words)


@click.command(
    "join-authorization-delegate",
    cls=_Delegate,
    epilog=example(
        "run-manager join-authorization-delegate", "--join-authority OWNER --delegates-added WALLET WALLET -w master.json"
    ),
)
@_option("--join-authority", type=ADDRESS, required=True, help="Wallet that granted ours the right to join.")
@_option(
    "--delegates-clear",
    is_flag=False,
    flag_value="true",
    default="false",
    type=click.BOOL,
    metavar="[true|false]",
    help="First remove all existing delegates. The word may be left out.",
)
@_option(
    *_ADDS,
    "added",
    type=ADDRESS,
    multiple=True,
    help="Wallet that may join for us; several may follow, and it may be repeated.",
)
@command()
async def delegate(context: CommandContext, join_authority: Pubkey, delegates_clear: bool, added: tuple[Pubkey, ...]) -> Outcome:
    """Let other wallets join with the right granted to this wallet."""
    if not added and not delegates_clear:
        message = "nothing to do: give --delegates-added WALLET, or --delegates-clear"
        raise UserError(message)

    at = layout.address(join_authority, context.payer, program=context.programs.authorizer)
    if await _read(context, at) is None:
        message = (
            f"{join_authority} has granted this wallet ({context.payer}) nothing; ask for join-authorization-create, or check -w"
        )
        raise UserError(message)

    chunks = [added[start : start + DELEGATES_AT_ONCE] for start in range(0, len(added), DELEGATES_AT_ONCE)] or [()]
    for number, chunk in enumerate(chunks):
        clear = delegates_clear and number == 0
        sent = await context.send(
            layout.grantee_update(
                context.payer, context.payer, authorization=at, add=chunk, clear=clear, program=context.programs.authorizer
            )
        )
    present = await _read(context, at)
    delegates = () if present is None else present.delegates
    facts = {"authorization": at, "delegates": delegates, "signature": sent.signature}
    return Outcome(f"{len(delegates)} wallets may join for {context.payer}", facts)


@click.command(
    "join-authorization-read",
    cls=GroupedCommand,
    epilog=example("run-manager join-authorization-read", "--join-authority OWNER --authorizer WALLET"),
)
@_option("--join-authority", type=ADDRESS, required=True, help="Wallet that grants.")
@_option(
    "--authorizer",
    "grantee",
    type=ADDRESS,
    help="Wallet whose grant is read. Default: the grant for everybody.",
)
@command(ChainSettings)
async def read(context: CommandContext, join_authority: Pubkey, grantee: Pubkey | None) -> Outcome:
    """Print a grant: whether it is active, and its delegates."""
    whom = grantee or layout.EVERYBODY
    at = layout.address(join_authority, whom, program=context.programs.authorizer)
    present = await _read(context, at)
    facts: dict[str, Any] = {"authorization": at, "grantor": join_authority, "grantee": whom, "exists": present is not None}
    if present is None:
        return Outcome(f"{join_authority} has granted {_whose(whom)} nothing", facts)

    facts |= {"active": present.active, "delegates": present.delegates, "limit": present.limit}
    state = "active" if present.active else "switched off"
    return Outcome(f"the grant for {_whose(whom)} is {state}, with {len(present.delegates)} delegates", facts)


async def _read(context: CommandContext, address: Pubkey) -> layout.Authorization | None:
    await context.check_ids("authorizer")
    found = await methods.account(context.rpc, address, timeout=CALL_SECONDS)
    if found is None:
        return None

    try:
        return layout.parse(Account(found.lamports, found.data, found.owner), program=context.programs.authorizer)
    except WireError as error:
        raise BackendError(str(error)) from error


def _whose(grantee: Pubkey) -> str:
    return "everybody" if grantee == layout.EVERYBODY else f"the wallet {grantee}"
