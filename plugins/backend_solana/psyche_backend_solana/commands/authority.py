"""Speaking as a run's owner: directly, or through the treasurer that owns the run for us.

Decided: which of the two it is follows from the run itself, whose main authority is either a wallet or the treasurer's run;
nobody has to say it. Refuses before anything is sent when the wallet is not the owner.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from solders.account import Account
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche_backend_solana.commands.desk import CALL_SECONDS, Desk
from psyche_backend_solana.layouts import treasurer
from psyche_backend_solana.rpc import methods
from psyche_backend_solana.runs import RunFound
from psyche_core.errors import BackendError, UserError, WireError


@dataclass(frozen=True, slots=True)
class Owner:
    """How to command a run. treasury: where the treasurer owns it."""

    found: RunFound
    treasury: treasurer.Treasury | None = None

    def say(self, desk: Desk, instruction: Instruction) -> Instruction:
        """An instruction of the coordinator, as this owner gives it."""
        if self.treasury is None:
            return instruction

        return treasurer.run_update(desk.payer, self.treasury, command=instruction)


@dataclass(frozen=True, slots=True)
class TreasurerRun:
    """A run of the treasurer: what its account says, and its addresses."""

    run: treasurer.Run
    treasury: treasurer.Treasury


def default_index(run_id: str) -> int:
    """The treasurer's number for a run: the first 8 bytes of SHA-256 of its name, little-endian."""
    return int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:8], "little")


async def find_treasurer(desk: Desk, run_id: str, index: int | None) -> TreasurerRun | None:
    """The treasurer's run for a run, None when there is none. Raises BackendError."""
    number = default_index(run_id) if index is None else index
    address = treasurer.run_address(number, program=desk.programs.treasurer)
    read = await methods.account(desk.rpc, address, timeout=CALL_SECONDS)
    if read is None:
        return None

    try:
        run = treasurer.parse_run(Account(read.lamports, read.data, read.owner), program=desk.programs.treasurer)
    except WireError as error:
        raise BackendError(str(error)) from error

    treasury = treasurer.Treasury(address, run.vault, run.mint, run.instance, run.coordinator, desk.programs.treasurer)
    return TreasurerRun(run, treasury)


async def the_treasurer(desk: Desk, run_id: str, index: int | None) -> TreasurerRun:
    """The same, where there must be one. Raises UserError."""
    found = await find_treasurer(desk, run_id, index)
    if found is None:
        message = (
            f"no treasurer pays the run {run_id!r}: it was made without --treasurer-collateral-mint, "
            "or with another --treasurer-index"
        )
        raise UserError(message)

    return found


async def owner_of(desk: Desk, run_id: str, index: int | None) -> Owner:
    """How our wallet commands a run. Raises UserError when it does not own it, CommandRefused (WrongRun)."""
    found = await desk.run(run_id)
    authority = found.instance.main_authority
    if authority == desk.payer:
        return Owner(found)

    paying = await find_treasurer(desk, run_id, index)
    if paying is not None and paying.treasury.run == authority:
        _expect(desk, run_id, paying.run.main_authority)
        return Owner(found, paying.treasury)

    _expect(desk, run_id, authority)
    return Owner(found)


def _expect(desk: Desk, run_id: str, owner: Pubkey) -> None:
    if owner != desk.payer:
        message = f"the run {run_id!r} belongs to {owner}, this wallet is {desk.payer}; use the owner's wallet"
        raise UserError(message)
