"""Sends commands as a run's owner: directly, or through the treasurer's run that owns the run.

The run's main authority, a wallet or the treasurer's run, decides which of the two is used. The user need not specify it, and a
treasurer's number is not trusted, because anybody can take any number. If the wallet is not the owner, nothing is sent.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche_backend_solana.commands.context import CALL_SECONDS, CommandContext
from psyche_backend_solana.layouts import treasurer
from psyche_backend_solana.lookup.runs import RunFound
from psyche_backend_solana.lookup.treasurers import TreasurerRun, treasurer_of
from psyche_backend_solana.rpc import methods
from psyche_core.errors import BackendError, UserError

__all__ = ["Owner", "TreasurerRun", "default_index", "find_treasurer", "free_index", "owner_of", "the_treasurer"]

_ATTEMPTS = 16


@dataclass(frozen=True, slots=True)
class Owner:
    """How to command a run. treasury: addresses if the treasurer owns it, else None."""

    found: RunFound
    treasury: treasurer.Treasury | None = None

    def as_owner(self, context: CommandContext, instruction: Instruction) -> Instruction:
        """The instruction that sends a coordinator's instruction as this owner."""
        if self.treasury is None:
            return instruction

        return treasurer.run_update(context.payer, self.treasury, command=instruction)


def default_index(run_id: str, attempt: int = 0) -> int:
    """Return the number to try for a name's treasurer: 8 bytes of SHA-256 of the name and, from attempt 1 on, the attempt."""
    name = run_id.encode() + (attempt.to_bytes(4, "little") if attempt else b"")
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "little")


async def free_index(context: CommandContext, run_id: str) -> int:
    """A free number. Anybody may take any number, so the name's number is only the first to try. Raises BackendError."""
    numbers = [default_index(run_id, attempt) for attempt in range(_ATTEMPTS)]
    addresses = [treasurer.run_address(number, program=context.programs.treasurer) for number in numbers]
    found = await methods.accounts(context.rpc, addresses, timeout=CALL_SECONDS)
    free = [number for number, read in zip(numbers, found, strict=True) if read is None or not read.data]
    if not free:
        message = f"the treasurer's numbers that follow from {run_id!r} are all taken; give one with --treasurer-index"
        raise BackendError(message)

    return free[0]


async def find_treasurer(context: CommandContext, found: RunFound, index: int | None) -> TreasurerRun | None:
    """Return the treasurer's run that pays a run; None if there is none. index: the number that the user gave.

    Raises BackendError, and UserError if the number differs.
    """
    paying = await treasurer_of(context.rpc, found, programs=context.programs, timeout=CALL_SECONDS)
    if index is not None and (paying is None or paying.run.index != index):
        pays = "no treasurer" if paying is None else f"the treasurer's run {paying.run.index}"
        message = f"{pays} pays the run {found.instance.run_id!r}, and not number {index}; leave --treasurer-index out"
        raise UserError(message)

    return paying


async def the_treasurer(context: CommandContext, found: RunFound, index: int | None) -> TreasurerRun:
    """Like `find_treasurer`, but raises UserError if there is none."""
    paying = await find_treasurer(context, found, index)
    if paying is None:
        message = f"no treasurer pays the run {found.instance.run_id!r}: it was created without --treasurer-collateral-mint"
        raise UserError(message)

    return paying


async def owner_of(context: CommandContext, run_id: str, index: int | None) -> Owner:
    """Return how our wallet commands a run. Raises UserError if it is not the owner, CommandRefused (WrongRun)."""
    found = await context.run(run_id)
    authority = found.instance.main_authority
    if authority == context.payer:
        return Owner(found)

    paying = await find_treasurer(context, found, index)
    _expect(context, run_id, authority if paying is None else paying.run.main_authority)
    return Owner(found, None if paying is None else paying.treasury)


def _expect(context: CommandContext, run_id: str, owner: Pubkey) -> None:
    if owner != context.payer:
        message = f"the run {run_id!r} belongs to {owner}, this wallet is {context.payer}; use the owner's wallet"
        raise UserError(message)
