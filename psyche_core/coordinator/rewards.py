"""Rewards (F12): what an epoch pays to whom, and the accounts that hold it over the whole run.

An epoch's pool is shared in proportion to accepted rounds among all its clients except the ejected ones. Clients that left are
included. Each epoch is paid once, at the end of its cooldown, at the rates that were fixed when it began. The reason for its end
does not matter. An epoch abandoned in warmup pays nobody. Where shares are checked, nobody is paid before it has passed a check.
Fractions of a point are not paid out. A balance cannot exceed 64 bits.
Accounts stay until they are settled. A run holds at most MAX_ACCOUNTS of them: a client that could not be paid is
rejected when it joins, never after it has worked. The backend decides what a point is worth.

Only the owner reports that a balance was paid (on a chain, its treasurer program, which knows what it paid). Then it is removed,
so that a long run has room for new clients, but only if its signer can no longer earn or be slashed: it is not in the last epoch
and not pending. A signer that returns later starts at 0 points, so a record of paid amounts must delete the old amount too.
"""

from __future__ import annotations

from dataclasses import replace

from psyche_core.coordinator.commands import Outcome, RewardsShared, SetFutureEpochRates, Settle
from psyche_core.coordinator.state import MAX_ACCOUNTS, Account, Client, CoordinatorState, Epoch, EpochRates
from psyche_core.errors import CoordinatorError
from psyche_core.types import ClientState

MAX_POINTS = 2**64 - 1


def set_future_epoch_rates(state: CoordinatorState, command: SetFutureEpochRates) -> Outcome:
    """Set the rates of the epochs that start later. The running epoch keeps its rates.

    Raises CoordinatorError (ConfigSanityCheckFailed) if a rate is not an unsigned 64-bit integer.
    """
    rates = state.future_rates
    wanted = EpochRates(
        earning_total_shared=_rate("earning_total_shared", command.earning_total_shared, kept=rates.earning_total_shared),
        slashing_per_client=_rate("slashing_per_client", command.slashing_per_client, kept=rates.slashing_per_client),
    )
    return (state, ()) if wanted == rates else (replace(state, future_rates=wanted), ())


def _rate(name: str, wanted: int | None, *, kept: int) -> int:
    if wanted is None:
        return kept
    if type(wanted) is not int or not 0 <= wanted <= MAX_POINTS:
        raise CoordinatorError("ConfigSanityCheckFailed", f"{name} must be a number of points of 64 bits, got {wanted!r:.40}")

    return wanted


def rewards_shared(state: CoordinatorState) -> Outcome:
    """Pay the epoch that ends now, and record the slashing of its ejected clients. Must be called exactly once per epoch."""
    earned, slashed = _earned(state), _slashed(state.epoch)
    if not earned and not slashed:
        return state, ()

    accounts = {account.signer: account for account in state.accounts}
    for slot, client in enumerate(state.epoch.clients):
        if slot in earned or slot in slashed:
            account = accounts.get(client.id.signer, Account(client.id.signer))
            accounts[account.signer] = replace(
                account,
                earned=min(account.earned + earned.get(slot, 0), MAX_POINTS),
                slashed=min(account.slashed + slashed.get(slot, 0), MAX_POINTS),
            )
    event = RewardsShared(epoch=state.progress.epoch, earned=tuple(earned.items()), slashed=tuple(slashed.items()))
    return replace(state, accounts=tuple(accounts[signer] for signer in sorted(accounts))), (event,)


def _earned(state: CoordinatorState) -> dict[int, int]:
    """Map slots to the points they earn; slots that earn nothing are left out."""
    known = {account.signer for account in state.accounts if account.earned}
    checked = state.config.verification_percent > 0
    rounds = {
        slot: client.accepted_rounds
        for slot, client in enumerate(state.epoch.clients)
        if _is_paid(client, checked=checked, known=client.id.signer in known)
    }
    total = sum(rounds.values())
    points = {slot: state.epoch.rates.earning_total_shared * own // total for slot, own in rounds.items() if own}
    return {slot: share for slot, share in points.items() if share}


def _is_paid(client: Client, *, checked: bool, known: bool) -> bool:
    """Whether an epoch pays a client. checked: the run checks shares. known: the run has paid the client's signer before.

    Who has left with a strike earns nothing, whether it withdrew or was lost: else a cheat would leave when it is first checked,
    and be paid for all that it has not trained. New keys cost nothing, so in a run that checks shares it would also leave just
    before, and come back as somebody else. Hence an epoch pays who is new, or has left, only if it has passed a check since the
    epoch began. Who was paid before and stays to the end is paid without: not all are drawn in a short epoch.
    """
    passed = not checked or bool(client.standing.high)
    if client.state is ClientState.Healthy:
        return passed or known

    return client.state is not ClientState.Ejected and client.standing.strikes == 0 and passed


def _slashed(epoch: Epoch) -> dict[int, int]:
    """Map slots to the points they are slashed; slots that are not slashed are left out.

    Only a proof that its own signatures make costs a member what it earned in earlier epochs. Strikes do not: how strict checks
    are, and on which data, is the owner's choice, who would take back with it what is owed.
    """
    rate = epoch.rates.slashing_per_client
    return {slot: rate for slot, client in enumerate(epoch.clients) if rate and _is_slashed(client)}


def _is_slashed(client: Client) -> bool:
    return client.state is ClientState.Ejected and not client.standing.ejected


def signers_without_account(state: CoordinatorState) -> set[bytes]:
    """Return the signers of this epoch's clients and of pending members that have no account but may need one when paid."""
    waiting = {client.id.signer for client in state.epoch.clients} | {member.signer for member in state.pending}
    return waiting - {account.signer for account in state.accounts}


def has_account_for(state: CoordinatorState, signer: bytes) -> bool:
    """Whether a signer has an account, or there is room for one in addition to all accounts that may still be needed."""
    if any(account.signer == signer for account in state.accounts):
        return True

    return len(state.accounts) + len(signers_without_account(state) | {signer}) <= MAX_ACCOUNTS


def settle(state: CoordinatorState, command: Settle) -> Outcome:
    """Remove a signer's balance. Raises CoordinatorError (InvalidSettlement)."""
    signer = command.signer
    member = any(client.id.signer == signer for client in state.epoch.clients)
    if member or any(waiting.signer == signer for waiting in state.pending):
        message = f"{signer.hex()} is in the epoch or pending: it may still earn or be slashed"
        raise CoordinatorError("InvalidSettlement", message)

    accounts = tuple(account for account in state.accounts if account.signer != signer)
    if len(accounts) == len(state.accounts):
        raise CoordinatorError("InvalidSettlement", f"{signer.hex()} has no balance")

    return replace(state, accounts=accounts), ()
