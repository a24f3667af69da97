"""Removes balances that were paid out, so that a long run has room for new clients.

Only the owner reports that a balance was paid (on a chain, its treasurer program, which knows what it paid). A balance is removed
only if its signer can no longer earn or be slashed: it is not in the last epoch and not pending. A signer that returns later
starts at 0 points, so a record of paid amounts must delete the old amount too.
"""

from __future__ import annotations

from dataclasses import replace

from psyche_core.coordinator.commands import Outcome, Settle
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import CoordinatorError


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
