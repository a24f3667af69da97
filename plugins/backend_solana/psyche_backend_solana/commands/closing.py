"""Before a paid run is closed: its treasurer is told what slashed members are owed no more.

Decided: everybody slashed and not settled yet is settled, in as many transactions as that takes; who has no participant's account
gets one, paid by the owner, for an account that is not there cannot remember. Refuses while anybody is owed anything, before it
sends the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from solders.account import Account as ChainAccount
from solders.pubkey import Pubkey

from psyche_backend_solana.commands.authority import TreasurerRun
from psyche_backend_solana.commands.desk import CALL_SECONDS, Desk
from psyche_backend_solana.layouts import treasurer
from psyche_backend_solana.rpc import methods
from psyche_core.coordinator.state import Account, CoordinatorState
from psyche_core.errors import BackendError, UserError, WireError

_Item = TypeVar("_Item")

_READ_AT_ONCE = 100
_MADE_AT_ONCE = 8
"""Participants made in one transaction: two addresses each, of which some 25 fit."""


@dataclass(frozen=True, slots=True)
class Slashed:
    """A slashed member. participant: its account of this run, None without one."""

    account: Account
    address: Pubkey
    participant: treasurer.Participant | None

    @property
    def user(self) -> Pubkey:
        """Whose account it is."""
        return Pubkey(self.account.signer)

    @property
    def forgiven(self) -> int:
        """Units it is owed less than if it had not been slashed."""
        claimed = 0 if self.participant is None else self.participant.claimed
        return min(self.account.slashed, self.account.earned - claimed)

    @property
    def settled(self) -> bool:
        """Whether the run knows."""
        return self.forgiven == (0 if self.participant is None else self.participant.forgiven)


async def settle_slashed(desk: Desk, paying: TreasurerRun, state: CoordinatorState) -> int:
    """Settle every slashed member of a halted run; how many were. Raises UserError while a member is owed, CommandRefused."""
    slashed = await _slashed(desk, paying, [account for account in state.accounts if account.slashed])
    earned = sum(account.earned for account in state.accounts)
    owed = earned - paying.run.claimed - sum(member.forgiven for member in slashed)
    if owed:
        message = f"{owed} units are still owed to members of the run: have them claimed (treasurer-claim-rewards), then close it"
        raise UserError(message)

    open_ = [member for member in slashed if not member.settled]
    unknown = [member for member in open_ if member.participant is None]
    for part in _parts(unknown, _MADE_AT_ONCE):
        create = [treasurer.participant_create(desk.payer, member.user, treasury=paying.treasury) for member in part]
        await desk.send(*create)
    for part in _parts(open_, treasurer.MOST_SETTLED):
        show = [member.address for member in part]
        await desk.send(treasurer.run_settle(desk.payer, treasury=paying.treasury, show=show))
    return len(open_)


async def _slashed(desk: Desk, paying: TreasurerRun, accounts: Sequence[Account]) -> list[Slashed]:
    """The members with what their participants' accounts say. Raises BackendError."""
    found: list[Slashed] = []
    run, program = paying.treasury.run, desk.programs.treasurer
    for part in _parts(accounts, _READ_AT_ONCE):
        addresses = [treasurer.participant_address(run, Pubkey(account.signer), program=program) for account in part]
        read = await methods.accounts(desk.rpc, addresses, timeout=CALL_SECONDS)
        for account, address, content in zip(part, addresses, read, strict=True):
            participant = None if content is None else _participant(content, program)
            if participant is not None and participant.run_created != paying.run.created:
                participant = None  # of a run that had this index before
            found.append(Slashed(account, address, participant))
    return found


def _participant(read: methods.AccountRead, program: Pubkey) -> treasurer.Participant | None:
    """A participant's account; None where nothing but lamports lie there."""
    if not read.data:
        return None
    try:
        return treasurer.parse_participant(ChainAccount(read.lamports, read.data, read.owner), program=program)
    except WireError as error:
        raise BackendError(str(error)) from error


def _parts(items: Sequence[_Item], size: int) -> list[Sequence[_Item]]:
    return [items[first : first + size] for first in range(0, len(items), size)]
