"""Balances that were paid out: freed, so that a long run has room for newcomers.

Decided: only the owner says that a balance was paid (on a chain its treasurer does, which knows what it paid); it is freed only
when its signer can neither earn nor be slashed any more, being neither in the last epoch nor pending. Who comes back begins at 0,
so what was paid has to be forgotten where it is remembered.
"""

from __future__ import annotations

from dataclasses import replace

from psyche_core.coordinator.commands import Outcome, Settle
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import CoordinatorError


def settle(state: CoordinatorState, command: Settle) -> Outcome:
    """Free a signer's balance. Raises CoordinatorError (InvalidSettlement)."""
    signer = command.signer
    member = any(client.id.signer == signer for client in state.epoch.clients)
    if member or any(waiting.signer == signer for waiting in state.pending):
        message = f"{signer.hex()} is in the epoch or pending: it may still earn or be slashed"
        raise CoordinatorError("InvalidSettlement", message)

    accounts = tuple(account for account in state.accounts if account.signer != signer)
    if len(accounts) == len(state.accounts):
        raise CoordinatorError("InvalidSettlement", f"{signer.hex()} has no balance")

    return replace(state, accounts=accounts), ()
