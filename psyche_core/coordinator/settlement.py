"""Frees balances that were paid out, so that a long run can take new clients.

Only the owner says that a balance was paid (on a chain, its treasurer, which knows what it paid). A balance is freed only when
its signer can neither earn nor be slashed any more: it is neither in the last epoch nor pending. A signer that returns begins at
0, so whoever records what was paid must forget the old amount.
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
