"""Reads what a treasurer's run has paid its members so far.

Many accounts are read in one call. The callers compute what a member is owed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from solders.account import Account
from solders.pubkey import Pubkey

from psyche_backend_solana.commands.authority import TreasurerRun
from psyche_backend_solana.commands.context import CALL_SECONDS, CommandContext
from psyche_backend_solana.layouts import treasurer
from psyche_backend_solana.rpc import methods
from psyche_core.errors import BackendError, WireError

_Item = TypeVar("_Item")

_READ_AT_ONCE = 100


async def read_participants(
    context: CommandContext, paying: TreasurerRun, users: Sequence[Pubkey]
) -> list[treasurer.Participant | None]:
    """The participants' accounts of these users in a run; None for a user without one. Raises BackendError."""
    found: list[treasurer.Participant | None] = []
    for part in parts(users, _READ_AT_ONCE):
        addresses = [
            treasurer.participant_address(paying.treasury.run, user, program=context.programs.treasurer) for user in part
        ]
        read = await methods.accounts(context.rpc, addresses, timeout=CALL_SECONDS)
        found.extend(_participant(content, paying, context.programs.treasurer) for content in read)
    return found


def parts(items: Sequence[_Item], size: int) -> list[Sequence[_Item]]:
    """Items in lists of at most `size`, in order."""
    return [items[first : first + size] for first in range(0, len(items), size)]


def _participant(read: methods.AccountRead | None, paying: TreasurerRun, program: Pubkey) -> treasurer.Participant | None:
    account = None if read is None else Account(read.lamports, read.data, read.owner)
    try:
        return treasurer.participant_in(paying.run, account, program=program)
    except WireError as error:
        raise BackendError(str(error)) from error
