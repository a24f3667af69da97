"""Reads a run's terms for bonds and its wallets' bonds for the commands, with a sentence for what is missing."""

from __future__ import annotations

from solders.pubkey import Pubkey

from psyche_backend_solana.commands.context import CALL_SECONDS, CommandContext
from psyche_backend_solana.layouts import bond, coordinator
from psyche_backend_solana.lookup.bonds import TermsFound, bond_of, terms_of_closed, terms_of_run
from psyche_backend_solana.lookup.runs import RunFound, coordinator_account, read_instance
from psyche_backend_solana.rpc import methods
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import UserError


async def run_with_bonds(context: CommandContext, run_id: str) -> RunFound:
    """A run, after a check of the programs' addresses. Raises CommandRefused, ConfigError, BackendError."""
    await context.check_ids("bond", "authorizer")
    return await context.run(run_id)


async def terms_for(context: CommandContext, run_id: str, at: Pubkey | None = None, *, closed: bool = False) -> TermsFound:
    """Terms of a run. closed: the run may be closed; then `at` is the account of its terms. Raises UserError, BackendError.

    A closed run's name may be somebody else's by now, so of a run with another join authority `at` says nothing new.
    """
    instance, _ = coordinator.instance_address(run_id, program=context.programs.coordinator)
    authority = await _join_authority(context, instance) if closed else None
    if closed and (authority is None or at not in (None, authority)):
        await context.check_ids("bond", "authorizer")
        if at is None:
            message = f"there is no run {run_id!r}; if it was closed, give --terms and the address that `deposit` printed"
            raise UserError(message)

        terms = await terms_of_closed(context.rpc, at, instance, programs=context.programs, timeout=CALL_SECONDS)
        if terms is None:
            message = f"{at} holds no terms for bonds of the run {run_id!r}; check --terms, -r and --rpc"
            raise UserError(message)

        return terms

    found = await run_with_bonds(context, run_id)
    terms = await terms_of_run(context.rpc, found, programs=context.programs, timeout=CALL_SECONDS)
    if terms is None:
        message = (
            f"the run {run_id!r} takes no bonds; if it was created with --with-bonds, its owner has not yet set their terms "
            "with `psyche solana bond create`"
        )
        raise UserError(message)

    return terms


async def held_by(context: CommandContext, terms: TermsFound, user: Pubkey) -> bond.Bond | None:
    """A user's bond; None if it has none. Raises BackendError."""
    return await bond_of(context.rpc, terms.terms.bonds, user, program=context.programs.bond, timeout=CALL_SECONDS)


async def bond_held_by(context: CommandContext, terms: TermsFound, user: Pubkey, run_id: str) -> bond.Bond:
    """A user's bond. Raises UserError if it has none, BackendError."""
    held = await held_by(context, terms, user)
    if held is None:
        message = f"the wallet {user} has no bond for {run_id!r}; `psyche solana bond deposit` puts one down"
        raise UserError(message)

    return held


async def burned_by(context: CommandContext, run_id: str, at: Pubkey | None) -> Pubkey | None:
    """The terms, closed or not, by which this wallet has a burned bond; None if it has none. Raises BackendError.

    at: account of the terms; None for the run's join authority.
    """
    await context.check_ids("bond")
    if at is None:
        instance, _ = coordinator.instance_address(run_id, program=context.programs.coordinator)
        at = await _join_authority(context, instance)
    if at is None:
        return None

    held = await bond_of(context.rpc, at, context.payer, program=context.programs.bond, timeout=CALL_SECONDS)
    return at if held is not None and held.state is bond.BondState.Forfeited else None


async def state_of(context: CommandContext, terms: TermsFound) -> CoordinatorState | None:
    """The state of the run of these terms; None if the run is closed or has no configuration yet. Raises BackendError."""
    return None if terms.run is None else (await coordinator_account(context.rpc, terms.run)).state


async def _join_authority(context: CommandContext, instance: Pubkey) -> Pubkey | None:
    """The join authority of a run; None if there is no such run."""
    read = await methods.account(context.rpc, instance, timeout=CALL_SECONDS)
    return None if read is None else read_instance(read, program=context.programs.coordinator).join_authority
