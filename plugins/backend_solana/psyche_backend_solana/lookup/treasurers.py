"""Finds who pays a run and who owns it, from the address that the run's own instance names.

Anybody may take any number for a treasurer's run, so a run is not found by its number. A run's instance names its main authority,
which is a wallet or the treasurer's run that owns it for a wallet. That account is accepted only when it is a run of the
treasurer's program, at the address of its own number, and names this instance and this state account. Anything else raises
BackendError.
"""

from __future__ import annotations

from dataclasses import dataclass

from solders.account import Account
from solders.pubkey import Pubkey

from psyche_backend_solana.layouts import treasurer
from psyche_backend_solana.lookup.cluster import refuse_shared_ids
from psyche_backend_solana.lookup.runs import RunFound
from psyche_backend_solana.programs.in_use import Programs
from psyche_backend_solana.rpc import methods
from psyche_backend_solana.rpc.client import Rpc
from psyche_core.errors import BackendError, CommandRefused, WireError

CALL_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class TreasurerRun:
    """A run of the treasurer: the contents of its account, and its addresses."""

    run: treasurer.Run
    treasury: treasurer.Treasury


async def treasurer_of(rpc: Rpc, found: RunFound, *, programs: Programs, timeout: float = CALL_SECONDS) -> TreasurerRun | None:
    """The treasurer's run that owns a run; None if a wallet owns it.

    Raises BackendError if the account belongs to another run.
    """
    address = found.instance.main_authority
    read = await methods.account(rpc, address, timeout=timeout)
    if read is None or read.owner != programs.treasurer:
        return None

    await refuse_shared_ids(rpc, programs, "treasurer", timeout=timeout)
    try:
        run = treasurer.parse_run(Account(read.lamports, read.data, read.owner), program=programs.treasurer)
    except WireError as error:
        raise BackendError(str(error)) from error

    here = (treasurer.run_address(run.index, program=programs.treasurer), run.instance, run.coordinator)
    if here != (address, found.run.instance, found.run.account):
        message = (
            f"the run {found.instance.run_id!r} names the treasurer's run {address} as its owner, which pays another run "
            f"({run.instance}); it can neither be paid nor pay"
        )
        raise BackendError(message)

    treasury = treasurer.Treasury(
        address, run.vault, run.mint, run.instance, run.coordinator, programs.treasurer, programs.coordinator
    )
    return TreasurerRun(run, treasury)


async def check_owner(
    rpc: Rpc, found: RunFound, wanted: Pubkey | None, *, programs: Programs, timeout: float = CALL_SECONDS
) -> None:
    """Check that the required wallet owns a run, directly or through the treasurer. wanted: None accepts any owner.

    Raises CommandRefused (`OtherOwner`), BackendError.
    """
    if wanted is None or found.instance.main_authority == wanted:
        return

    paying = await treasurer_of(rpc, found, programs=programs, timeout=timeout)
    owner = found.instance.main_authority if paying is None else paying.run.main_authority
    if owner != wanted:
        message = (
            f"the run {found.instance.run_id!r} belongs to {owner}, expected {wanted} (--owner): a run's name belongs to whoever "
            "took it first; ask the run's organizers for its name and owner"
        )
        raise CommandRefused("OtherOwner", message)
