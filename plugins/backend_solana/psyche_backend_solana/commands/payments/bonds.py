"""`psyche solana bond`: tokens that members put down before they join a run, and lose when it ejects them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche_backend_solana.commands.context import (
    ADDRESS,
    CommandContext,
    Outcome,
    command,
    example,
    run_id_option,
)
from psyche_backend_solana.commands.payments import bond_texts as texts
from psyche_backend_solana.commands.payments.bond_reads import (
    bond_held_by,
    burned_by,
    held_by,
    run_with_bonds,
    state_of,
    terms_for,
)
from psyche_backend_solana.commands.token_amounts import amount_of, decimals, mint_at, must_hold, units_of
from psyche_backend_solana.layouts import bond as layout
from psyche_backend_solana.layouts import coordinator, tokens
from psyche_backend_solana.lookup.bonds import TermsFound, addresses, convicted
from psyche_backend_solana.lookup.runs import coordinator_account
from psyche_backend_solana.sending.sender import Sent
from psyche_backend_solana.settings import ChainSettings
from psyche_core.errors import CommandRefused, UserError
from psyche_core.option_groups import GroupedCommand, options_of

_option = options_of("Bond")

_DAY = 86_400
MOST_TICKS = 4
"""Ticks that one withdrawal sends: from any phase of an epoch to its end there are no more."""
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
    found = await run_with_bonds(context, run_id)
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
    sentence = f"members of {run_id!r} join with a bond of {amount} tokens now; {texts.lost_for(_grounds(strikes))}"
    warnings = texts.warnings((await coordinator_account(context.rpc, found.run)).state)
    facts = {"terms": at, "units": units, "warnings": warnings, "signature": sent.signature}
    return Outcome(texts.warned(sentence, warnings), facts)


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
    terms = await terms_for(context, run_id)
    bonds = terms.bonds
    if mint not in (None, bonds.mint):
        message = f"bonds for {run_id!r} are tokens of {bonds.mint} now, not of {mint}; nothing was deposited"
        raise UserError(message)
    if waiting not in (None, bonds.waiting):
        message = (
            f"bonds for {run_id!r} wait {texts.duration(bonds.waiting)} now (--waiting {bonds.waiting}), not {waiting} s; "
            "nothing was deposited"
        )
        raise UserError(message)

    places = await decimals(context, bonds.mint)
    if units_of(amount, places) != bonds.amount:
        message = f"a bond for {run_id!r} has {amount_of(bonds.amount, places)} tokens, not {amount}; nothing was deposited"
        raise UserError(message)
    if layout.Ground.Strikes in bonds.grounds and not strikes:
        message = (
            f"bonds for {run_id!r} are also lost for two failed checks in an epoch, by thresholds that its owner sets; "
            "nothing was deposited; agree with --for-strikes"
        )
        raise UserError(message)

    held = await held_by(context, terms, context.payer)
    if held is not None:
        raise UserError(texts.no_deposit(held, run_id))

    own = await must_hold(context, bonds.mint, bonds.amount, places=places, purpose="a bond")
    put = layout.deposit(context.payer, own, terms=terms.terms, amount=bonds.amount, waiting=bonds.waiting, grounds=bonds.grounds)
    sent = await context.send(put)
    sentence = (
        f"{amount} tokens of {bonds.mint} are this wallet's bond for {run_id!r}, and it may join; "
        f"{texts.lost_for(bonds.grounds)}; it is paid back {texts.duration(bonds.waiting)} after the first `withdraw` at the "
        f"earliest; the terms are in {terms.terms.bonds}, which a withdrawal needs once the run is closed"
    )
    warnings = texts.warnings(await state_of(context, terms))
    at = terms.terms.bond(context.payer)
    facts = {"terms": terms.terms.bonds, "bond": at, "units": bonds.amount, "warnings": warnings, "signature": sent.signature}
    return Outcome(texts.warned(sentence, warnings), facts)


@bond.command("withdraw", cls=GroupedCommand, epilog=example("solana bond withdraw", "-r first-light -w wallet.json"))
@run_id_option
@_terms_option
@command()
async def withdraw(context: CommandContext, run_id: str, at: Pubkey | None) -> Outcome:
    """Have this wallet's bond back. The first call ends its right to join; repeat it when the waiting time is over.

    Where the epoch has ended but no member has told the run, it does that, too, as `psyche run-manager tick` would.
    """
    burned = await burned_by(context, run_id, at)
    if burned is not None:
        return await _closed_burned(context, run_id, burned)

    terms = await terms_for(context, run_id, at, closed=True)
    held = await bond_held_by(context, terms, context.payer, run_id)
    if held.state is layout.BondState.Active:
        return await _began(context, terms, run_id)

    return await _paid(context, terms, held)


@bond.command("show", cls=GroupedCommand, epilog=example("solana bond show", "-r first-light", "-r first-light --address WALLET"))
@run_id_option
@_terms_option
@_option("--address", type=ADDRESS, help="Also print the bond of this wallet.")
@command(ChainSettings)
async def show(context: CommandContext, run_id: str, at: Pubkey | None, address: Pubkey | None) -> Outcome:
    """Print a run's terms for bonds."""
    terms = await terms_for(context, run_id, at, closed=True)
    bonds = terms.bonds
    mint = await mint_at(context, bonds.mint)
    facts: dict[str, Any] = {"terms": terms.terms.bonds} | {
        name: getattr(bonds, name) for name in layout.Bonds.__slots__ if name not in ("bump", "grounds")
    }
    facts |= {"grounds": texts.names(bonds.grounds), "mint_authority": mint.authority, "freeze_authority": mint.freeze_authority}
    sentence = (
        f"members of {run_id!r} put {amount_of(bonds.amount, mint.decimals)} tokens of {bonds.mint} down, and have them back "
        f"{texts.duration(bonds.waiting)} after they gave up the right to join, when the epoch is over; "
        f"{texts.lost_for(bonds.grounds)}; {texts.issuer_can(mint)}; {texts.counted(bonds.held, 'bond')} "
        f"{'is' if bonds.held == 1 else 'are'} held"
    )
    if address is not None:
        held = await bond_held_by(context, terms, address, run_id)
        free = texts.free_from(held, bonds) if held.state is layout.BondState.Leaving else None
        facts["bond"] = {"user": address, "state": held.state.name, "units": held.amount, "since": held.since, "free": free}
        sentence += f"; that of {address} is {held.state.name}"
        if free is not None:
            sentence += f", and free from {texts.utc(free)}"
    facts["warnings"] = warnings = texts.warnings(await state_of(context, terms))
    return Outcome(texts.warned(sentence, warnings), facts)


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
    terms = await terms_for(context, run_id)
    state = await state_of(context, terms)
    guilty: Sequence[Pubkey] = () if state is None else convicted(state, terms.bonds.grounds)
    if address is not None:
        if address not in guilty:
            grounds = ", ".join(texts.names(terms.bonds.grounds))
            message = (
                f"the run {run_id!r} does not show {address} as ejected on a ground of its terms ({grounds}); check --address"
            )
            raise CommandRefused("NotEjected", message)
        guilty = (address,)
    burned = []
    for user in guilty:
        held = await held_by(context, terms, user)
        if held is None or held.state is layout.BondState.Forfeited:
            continue
        sent = await context.send(layout.forfeit(user, terms=terms.terms))
        burned.append({"user": user, "units": held.amount, "signature": sent.signature})
    if not burned:
        return Outcome(f"no member that {run_id!r} has ejected has a bond that is not burned yet", {"burned": []})

    return Outcome(f"{texts.counted(len(burned), 'bond')} burned", {"burned": burned})


@bond.command("close", cls=GroupedCommand, epilog=example("solana bond close", "-r first-light -w owner.json"))
@run_id_option
@_terms_option
@command()
async def close(context: CommandContext, run_id: str, at: Pubkey | None) -> Outcome:
    """Close a run's terms, while nobody has a bond by them. Their rent goes to this wallet, which set them."""
    terms = await terms_for(context, run_id, at, closed=True)
    sent = await context.send(layout.close(context.payer, context.payer, terms=terms.terms))
    return Outcome(f"the terms for bonds of {run_id!r} were closed", {"terms": terms.terms.bonds, "signature": sent.signature})


def _grounds(strikes: bool) -> layout.Ground:
    return layout.Ground.Signatures | layout.Ground.Strikes if strikes else layout.Ground.Signatures


async def _closed_burned(context: CommandContext, run_id: str, terms: Pubkey) -> Outcome:
    sent = await context.send(layout.close_burned(context.payer, terms, program=context.programs.bond))
    sentence = f"the forfeited bond for {run_id!r} was closed; its tokens were burned, its rent is this wallet's again"
    return Outcome(sentence, {"units": 0, "signature": sent.signature})


async def _began(context: CommandContext, terms: TermsFound, run_id: str) -> Outcome:
    sent = await context.send(layout.withdraw_begin(context.payer, terms=terms.terms))
    held = await bond_held_by(context, terms, context.payer, run_id)
    free = texts.free_from(held, terms.bonds)
    sentence = (
        f"this wallet cannot join {run_id!r} any more; if it is a member, leave with `psyche run-manager withdraw`; repeat this "
        f"command when the waiting time is over, at {texts.utc(free)}, and the epoch, too"
    )
    return Outcome(sentence, {"waiting": terms.bonds.waiting, "free": free, "signature": sent.signature})


async def _paid(context: CommandContext, terms: TermsFound, held: layout.Bond) -> Outcome:
    own = tokens.associated(context.payer, terms.bonds.mint)
    made = tokens.create_associated(context.payer, context.payer, mint=terms.bonds.mint)
    try:
        sent = await _sent_with_ticks(context, terms, made, layout.withdraw(context.payer, own, terms=terms.terms))
    except CommandRefused as refusal:
        if refusal.code != "TooEarly":
            raise
        free = texts.utc(texts.free_from(held, terms.bonds))
        raise CommandRefused(refusal.code, f"{refusal}; the bond is free from {free}") from refusal

    paid = amount_of(held.amount, await decimals(context, terms.bonds.mint))
    return Outcome(f"{paid} tokens were paid to {own}", {"units": held.amount, "account": own, "signature": sent.signature})


async def _sent_with_ticks(context: CommandContext, terms: TermsFound, *instructions: Instruction) -> Sent:
    """Send a withdrawal. Where the epoch keeps the bond, and a tick is due that nobody has sent, tick first."""
    for _ in range(MOST_TICKS):
        try:
            return await context.send(*instructions)
        except CommandRefused as refusal:
            if refusal.code != "StillMember" or terms.run is None:
                raise
            try:
                await context.send(coordinator.tick(terms.run, user=context.payer))
            except CommandRefused:  # nothing is due, or a member was faster
                raise refusal from None
    return await context.send(*instructions)
