"""`psyche solana bond`: tokens that members put down before they join a run, and lose when it ejects them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from solders.account import Account
from solders.pubkey import Pubkey

from psyche_backend_solana.commands.context import (
    ADDRESS,
    CALL_SECONDS,
    CommandContext,
    Outcome,
    command,
    example,
    run_id_option,
)
from psyche_backend_solana.commands.token_amounts import amount_of, decimals, units_of
from psyche_backend_solana.layouts import bond as layout
from psyche_backend_solana.layouts import coordinator, tokens
from psyche_backend_solana.lookup.bonds import TermsFound, addresses, bond_of, convicted, terms_of_closed, terms_of_run
from psyche_backend_solana.lookup.runs import RunFound, coordinator_account, read_instance
from psyche_backend_solana.rpc import methods
from psyche_backend_solana.settings import ChainSettings
from psyche_core.errors import CommandRefused, UserError
from psyche_core.option_groups import GroupedCommand, options_of

_option = options_of("Bond")

_DAY = 86_400
_STRIKES_HELP = "The bond is also lost for two failed checks in an epoch, which a member that restarts twice may get."


_terms_option = _option(
    "--terms", "at", type=ADDRESS, help="Account of the terms, as `deposit` printed it. Only needed for a closed run."
)


@click.group("bond", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def bond() -> None:
    """Bonds: tokens that members put down before they join, and that are burned when the run ejects them."""


@bond.command(
    "create",
    cls=GroupedCommand,
    epilog=example("solana bond create", "-r first-light --mint TOKEN --amount 50 --waiting 3600 -w owner.json"),
)
@run_id_option
@_option("--mint", type=ADDRESS, required=True, help="Token of the bonds.")
@_option("--amount", required=True, help="Tokens that each member puts down, as a decimal number.")
@_option(
    "--waiting",
    type=click.IntRange(0, layout.MAX_WAITING),
    default=_DAY,
    show_default=True,
    help="Seconds from the end of the right to join until a bond is paid back.",
)
@_option("--for-strikes", "strikes", is_flag=True, help=_STRIKES_HELP)
@command()
async def create(context: CommandContext, run_id: str, mint: Pubkey, amount: str, waiting: int, strikes: bool) -> Outcome:
    """Set a run's terms, which then do not change. The run was created with `create-run --with-bonds` by this wallet."""
    found = await _run(context, run_id)
    at = layout.bonds_address(context.payer, found.run.instance, program=context.programs.bond)
    if found.instance.join_authority != at:
        message = (
            f"the run {run_id!r} has the join authority {found.instance.join_authority}, not this wallet's terms for bonds "
            f"({at}); a run takes bonds only if it was created for it: `psyche run-manager create-run --with-bonds`"
        )
        raise UserError(message)

    units = units_of(amount, await decimals(context, mint))
    made = layout.create(
        context.payer,
        context.payer,
        terms=addresses(found, mint, at, programs=context.programs),
        amount=units,
        waiting=waiting,
        grounds=_grounds(strikes),
    )
    sent = await context.send(made)
    sentence = f"members of {run_id!r} join with a bond of {amount} tokens now; {_lost(_grounds(strikes))}"
    return Outcome(sentence, {"terms": at, "units": units, "signature": sent.signature})


@bond.command("deposit", cls=GroupedCommand, epilog=example("solana bond deposit", "-r first-light --amount 50 -w wallet.json"))
@run_id_option
@_option("--amount", required=True, help="Tokens of the bond, as `show` prints them. Another amount is refused.")
@_option("--mint", type=ADDRESS, help="Token that you agree to. Another one is refused. Default: whatever the terms name.")
@_option(
    "--waiting",
    type=click.IntRange(0, layout.MAX_WAITING),
    help="Seconds of waiting that you agree to. Other terms are refused. Default: whatever the terms say.",
)
@_option("--for-strikes", "strikes", is_flag=True, help="Agree to terms by which the bond is also lost for two failed checks.")
@command()
async def deposit(
    context: CommandContext, run_id: str, amount: str, mint: Pubkey | None, waiting: int | None, strikes: bool
) -> Outcome:
    """Put a bond down for this wallet, which may join the run then.

    An owner may exchange terms by which nobody has a bond. --mint and --waiting name those that you have read.
    """
    terms = await _terms(context, run_id)
    if mint not in (None, terms.bonds.mint):
        message = f"bonds for {run_id!r} are tokens of {terms.bonds.mint} now, not of {mint}; nothing was deposited"
        raise UserError(message)
    if waiting not in (None, terms.bonds.waiting):
        message = f"bonds for {run_id!r} wait {terms.bonds.waiting} s now, not {waiting}; nothing was deposited"
        raise UserError(message)

    places = await decimals(context, terms.bonds.mint)
    if units_of(amount, places) != terms.bonds.amount:
        message = f"a bond for {run_id!r} has {amount_of(terms.bonds.amount, places)} tokens, not {amount}; nothing was deposited"
        raise UserError(message)
    if layout.Ground.Strikes in terms.bonds.grounds and not strikes:
        message = (
            f"bonds for {run_id!r} are also lost for two failed checks in an epoch, by thresholds that its owner sets; "
            "nothing was deposited; agree with --for-strikes"
        )
        raise UserError(message)

    held = await bond_of(context.rpc, terms.terms, context.payer, timeout=CALL_SECONDS)
    if held is not None:
        raise UserError(_not_again(held, run_id))

    own = tokens.associated(context.payer, terms.bonds.mint)
    read = await methods.account(context.rpc, own, timeout=CALL_SECONDS)
    there = 0 if read is None else tokens.parse(Account(read.lamports, read.data, read.owner)).amount
    if there < terms.bonds.amount:
        has = amount_of(there, places) if there else "no"
        message = (
            f"this wallet ({context.payer}) has {has} tokens of {terms.bonds.mint}; a bond needs {amount}; send it the rest and "
            "repeat"
        )
        raise UserError(message)

    bonds = terms.bonds
    put = layout.deposit(context.payer, own, terms=terms.terms, amount=bonds.amount, waiting=bonds.waiting, grounds=bonds.grounds)
    sent = await context.send(put)
    sentence = (
        f"{amount} tokens of {bonds.mint} are this wallet's bond for {run_id!r}, and it may join; {_lost(bonds.grounds)}; it is "
        f"paid back {bonds.waiting} s after the first `withdraw` at the earliest; the terms are in {terms.terms.bonds}, which a "
        "withdrawal needs once the run is closed"
    )
    at = terms.terms.bond(context.payer)
    return Outcome(sentence, {"terms": terms.terms.bonds, "bond": at, "units": bonds.amount, "signature": sent.signature})


@bond.command("withdraw", cls=GroupedCommand, epilog=example("solana bond withdraw", "-r first-light -w wallet.json"))
@run_id_option
@_terms_option
@command()
async def withdraw(context: CommandContext, run_id: str, at: Pubkey | None) -> Outcome:
    """Have this wallet's bond back. The first call ends its right to join; repeat it when the waiting time is over."""
    terms = await _terms(context, run_id, at, closed=True)
    held = await _held(context, terms, context.payer, run_id)
    own = tokens.associated(context.payer, terms.bonds.mint)
    if held.state is layout.BondState.Active:
        sent = await context.send(layout.withdraw_begin(context.payer, terms=terms.terms))
        sentence = (
            f"this wallet cannot join {run_id!r} any more; if it is a member, leave with `psyche run-manager withdraw`; repeat "
            f"this command in {terms.bonds.waiting} s, when the epoch is over, too"
        )
        return Outcome(sentence, {"waiting": terms.bonds.waiting, "signature": sent.signature})

    made = tokens.create_associated(context.payer, context.payer, mint=terms.bonds.mint)
    sent = await context.send(made, layout.withdraw(context.payer, own, terms=terms.terms))
    if held.state is layout.BondState.Forfeited:
        sentence = f"the forfeited bond for {run_id!r} was closed; its tokens were burned, its rent is this wallet's again"
        return Outcome(sentence, {"units": 0, "signature": sent.signature})

    paid = amount_of(held.amount, await decimals(context, terms.bonds.mint))
    return Outcome(f"{paid} tokens were paid to {own}", {"units": held.amount, "account": own, "signature": sent.signature})


@bond.command("show", cls=GroupedCommand, epilog=example("solana bond show", "-r first-light", "-r first-light --address WALLET"))
@run_id_option
@_terms_option
@_option("--address", type=ADDRESS, help="Also print the bond of this wallet.")
@command(ChainSettings)
async def show(context: CommandContext, run_id: str, at: Pubkey | None, address: Pubkey | None) -> Outcome:
    """Print a run's terms for bonds."""
    terms = await _terms(context, run_id, at, closed=True)
    bonds = terms.bonds
    text = amount_of(bonds.amount, await decimals(context, bonds.mint))
    facts: dict[str, Any] = {"terms": terms.terms.bonds} | {
        name: getattr(bonds, name) for name in layout.Bonds.__slots__ if name not in ("bump", "grounds")
    }
    facts["grounds"] = _named(bonds.grounds)
    sentence = (
        f"members of {run_id!r} put {text} tokens of {bonds.mint} down, and have them back {bonds.waiting} s after they gave up "
        f"the right to join, when the epoch is over; {_lost(bonds.grounds)}; {bonds.held} bonds are held"
    )
    if address is not None:
        held = await _held(context, terms, address, run_id)
        facts["bond"] = {"user": address, "state": held.state.name, "units": held.amount, "since": held.since}
        sentence += f"; that of {address} is {held.state.name}"
    return Outcome(sentence, facts)


@bond.command(
    "forfeit",
    cls=GroupedCommand,
    epilog=example("solana bond forfeit", "-r first-light -w wallet.json", "-r first-light --address WALLET -w wallet.json"),
)
@run_id_option
@_option("--address", type=ADDRESS, help="Only the bond of this wallet. Default: of all whom the run shows as ejected.")
@command()
async def forfeit(context: CommandContext, run_id: str, address: Pubkey | None) -> Outcome:
    """Burn bonds of members that the run has ejected. Anybody may do that, until the next epoch begins; nobody gains by it."""
    found = await _run(context, run_id)
    terms = await _terms(context, run_id)
    state = (await coordinator_account(context.rpc, found.run)).state
    guilty: Sequence[Pubkey] = () if state is None else convicted(state, terms.bonds.grounds)
    if address is not None:
        if address not in guilty:
            grounds = ", ".join(_named(terms.bonds.grounds))
            message = (
                f"the run {run_id!r} does not show {address} as ejected on a ground of its terms ({grounds}); check --address"
            )
            raise CommandRefused("NotEjected", message)
        guilty = (address,)
    burned = []
    for user in guilty:
        held = await bond_of(context.rpc, terms.terms, user, timeout=CALL_SECONDS)
        if held is None or held.state is layout.BondState.Forfeited:
            continue
        sent = await context.send(layout.forfeit(user, terms=terms.terms))
        burned.append({"user": user, "units": held.amount, "signature": sent.signature})
    if not burned:
        return Outcome(f"no member that {run_id!r} has ejected has a bond that is not burned yet", {"burned": []})

    return Outcome(f"{len(burned)} bonds were burned", {"burned": burned})


@bond.command("close", cls=GroupedCommand, epilog=example("solana bond close", "-r first-light -w owner.json"))
@run_id_option
@_terms_option
@command()
async def close(context: CommandContext, run_id: str, at: Pubkey | None) -> Outcome:
    """Close a run's terms, while nobody has a bond by them. Their rent goes to this wallet, which set them."""
    terms = await _terms(context, run_id, at, closed=True)
    sent = await context.send(layout.close(context.payer, context.payer, terms=terms.terms))
    return Outcome(f"the terms for bonds of {run_id!r} were closed", {"terms": terms.terms.bonds, "signature": sent.signature})


def _grounds(strikes: bool) -> layout.Ground:
    return layout.Ground.Signatures | layout.Ground.Strikes if strikes else layout.Ground.Signatures


def _named(grounds: layout.Ground) -> list[str]:
    return [ground.name.lower() for ground in layout.Ground if ground in grounds and ground.name is not None]


def _lost(grounds: layout.Ground) -> str:
    """What costs a member its bond, as a clause."""
    texts = {
        layout.Ground.Signatures: "two signed results for one share",
        layout.Ground.Strikes: "two failed checks in an epoch",
    }
    return f"it is burned for {' or '.join(texts[ground] for ground in layout.Ground if ground in grounds)}"


def _not_again(held: layout.Bond, run_id: str) -> str:
    if held.state is layout.BondState.Active:
        return f"this wallet has a bond for {run_id!r} already, and may join"

    ended = "was forfeited" if held.state is layout.BondState.Forfeited else "is being withdrawn"
    return f"this wallet's bond for {run_id!r} {ended}; end that with `psyche solana bond withdraw`, then deposit again"


async def _run(context: CommandContext, run_id: str) -> RunFound:
    await context.check_ids("bond", "authorizer")
    return await context.run(run_id)


async def _terms(context: CommandContext, run_id: str, at: Pubkey | None = None, *, closed: bool = False) -> TermsFound:
    """Terms of a run. closed: the run may be closed; then `at` is the account of its terms. Raises UserError, BackendError.

    A closed run's name may be somebody else's by now, so of a run with another join authority `at` says nothing new.
    """
    instance, _ = coordinator.instance_address(run_id, program=context.programs.coordinator)
    if closed and await _is_gone(context, instance, at):
        await context.check_ids("bond", "authorizer")
        if at is None:
            message = f"there is no run {run_id!r}; if it was closed, give --terms and the address that `deposit` printed"
            raise UserError(message)

        terms = await terms_of_closed(context.rpc, at, instance, programs=context.programs, timeout=CALL_SECONDS)
        if terms is None:
            message = f"{at} holds no terms for bonds of the run {run_id!r}; check --terms, -r and --rpc"
            raise UserError(message)

        return terms

    found = await _run(context, run_id)
    terms = await terms_of_run(context.rpc, found, programs=context.programs, timeout=CALL_SECONDS)
    if terms is None or at not in (None, terms.terms.bonds):
        message = (
            f"the run {run_id!r} takes no bonds; if it was created with --with-bonds, its owner has not yet set their terms "
            "with `psyche solana bond create`"
        )
        raise UserError(message)

    return terms


async def _is_gone(context: CommandContext, instance: Pubkey, at: Pubkey | None) -> bool:
    """Whether a run is closed, or, where `at` names terms, has none by these any more."""
    read = await methods.account(context.rpc, instance, timeout=CALL_SECONDS)
    return read is None or (at is not None and read_instance(read, program=context.programs.coordinator).join_authority != at)


async def _held(context: CommandContext, terms: TermsFound, user: Pubkey, run_id: str) -> layout.Bond:
    held = await bond_of(context.rpc, terms.terms, user, timeout=CALL_SECONDS)
    if held is None:
        message = f"the wallet {user} has no bond for {run_id!r}; `psyche solana bond deposit` puts one down"
        raise UserError(message)

    return held
