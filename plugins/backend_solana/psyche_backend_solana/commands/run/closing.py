"""Computes what closing a run gives back, and settles slashed members before a paid run is closed.

Settling a member records with the treasurer the amount that the member is no longer owed.

All slashed members that are not settled yet are settled, in as many transactions as needed. A member without a participant's
account gets one, paid by the owner, because the amount is recorded there. The account is created and settled in one transaction:
a member can close an account that is only created, and the owner would pay for it again. If any member is still owed something,
nothing is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from solders.account import Account as ChainAccount
from solders.pubkey import Pubkey

from psyche_backend_solana.commands.authority import Owner, TreasurerRun
from psyche_backend_solana.commands.context import CALL_SECONDS, CommandContext
from psyche_backend_solana.commands.participants import parts, read_participants
from psyche_backend_solana.layouts import tokens, treasurer
from psyche_backend_solana.layouts.coordinator_accounts import OLD_ACCOUNT_BYTES
from psyche_backend_solana.rpc import methods
from psyche_core.coordinator.state import Account, CoordinatorState
from psyche_core.errors import UserError

_MADE_AT_ONCE = 7
"""Participants created and settled in one transaction: two addresses each, of which about 25 fit."""


@dataclass(frozen=True, slots=True)
class Slashed:
    """A slashed member. participant: its participant's account for this run; None if it has none."""

    account: Account
    participant: treasurer.Participant | None

    @property
    def user(self) -> Pubkey:
        """The member's wallet."""
        return Pubkey(self.account.signer)

    @property
    def forgiven(self) -> int:
        """Units that it is no longer owed because it was slashed."""
        claimed = 0 if self.participant is None else self.participant.claimed
        return min(self.account.slashed, self.account.earned - claimed)

    @property
    def settled(self) -> bool:
        """Whether the run has recorded it."""
        return self.forgiven == (0 if self.participant is None else self.participant.forgiven)


@dataclass(frozen=True, slots=True)
class Refund:
    """What closing a run returns. lamports: of its accounts. units: smallest units in its vault; None without a treasurer."""

    lamports: int
    units: int | None = None


async def refund_of(context: CommandContext, owner: Owner) -> Refund:
    """Return what closing gives back, if nobody deposits or takes out anything until then. Raises BackendError."""
    run, treasury = owner.found.run, owner.treasury
    closed = [run.account, run.instance] if treasury is None else [run.account, run.instance, treasury.run, treasury.vault]
    found = await methods.accounts(context.rpc, closed, data_slice=(0, tokens.ACCOUNT_BYTES), timeout=CALL_SECONDS)
    lamports = sum(read.lamports for read in found if read is not None)
    vault = None if treasury is None else found[-1]
    if vault is None:
        return Refund(lamports, None if treasury is None else 0)
    return Refund(lamports, tokens.parse(ChainAccount(vault.lamports, vault.data, vault.owner)).amount)


async def is_old(context: CommandContext, account: Pubkey) -> bool:
    """Whether a run's account has an older version, which can only be closed. Raises BackendError."""
    read = await methods.account(context.rpc, account, timeout=CALL_SECONDS)
    return read is not None and len(read.data) in OLD_ACCOUNT_BYTES.values()


async def settle_slashed(context: CommandContext, paying: TreasurerRun, state: CoordinatorState) -> int:
    """Settle every slashed member of a halted run; return their number. Raises UserError if a member is owed, CommandRefused."""
    slashed = await _slashed(context, paying, [account for account in state.accounts if account.slashed])
    earned = sum(account.earned for account in state.accounts)
    owed = earned - paying.run.claimed - sum(member.forgiven for member in slashed)
    if owed:
        message = f"{owed} units are still owed to members of the run: pay them (treasurer-pay-members), then close it"
        raise UserError(message)

    open_ = [member for member in slashed if not member.settled]
    for part in parts([member for member in open_ if member.participant is None], _MADE_AT_ONCE):
        await _settle(context, paying, part)
    for part in parts([member for member in open_ if member.participant is not None], treasurer.MOST_SETTLED):
        await _settle(context, paying, part)
    return len(open_)


async def _settle(context: CommandContext, paying: TreasurerRun, members: Sequence[Slashed]) -> None:
    """Settle members in one transaction, and create missing accounts. Raises CommandRefused."""
    treasury = paying.treasury
    create = [
        treasurer.participant_create(context.payer, member.user, treasury=treasury)
        for member in members
        if member.participant is None
    ]
    show = [treasurer.participant_address(treasury.run, member.user, program=context.programs.treasurer) for member in members]
    await context.send(*create, treasurer.run_settle(context.payer, treasury=treasury, show=show))


async def _slashed(context: CommandContext, paying: TreasurerRun, accounts: Sequence[Account]) -> list[Slashed]:
    """The slashed members with the contents of their participants' accounts. Raises BackendError."""
    participants = await read_participants(context, paying, [Pubkey(account.signer) for account in accounts])
    return [Slashed(account, participant) for account, participant in zip(accounts, participants, strict=True)]
