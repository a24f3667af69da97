"""Points of a run that pays no money: its members' reputation, kept in the run's state (`psyche server run --points-per-epoch`).

The coordinator counts points and says for what (`psyche_core.coordinator.rewards`). Here is what the owner decides: how many an
epoch shares, and whose balance goes when there is no room for newcomers. On a chain points are worth money, and a balance goes
once it was paid out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio

from psyche_core.coordinator.commands import SetFutureEpochRates, Settle
from psyche_core.coordinator.rewards import signers_without_account
from psyche_core.coordinator.state import MAX_ACCOUNTS, Account, CoordinatorState
from psyche_core.errors import ConfigError, CoordinatorError
from psyche_core.interfaces.backend import BackendServer, OwnerControl

ROOM: Final = 64
"""Balances that are kept free for newcomers; so many members can join at once without being refused."""


def check_points(server: BackendServer, *, backend: str) -> None:
    """Raise ConfigError for a server that takes no commands of an owner. It need not be entered. backend: its name."""
    if not callable(getattr(server, "submit", None)):
        message = (
            f"--points-per-epoch: a server of the backend {backend} takes no rates from here; set them with its own commands"
        )
        raise ConfigError(message)


def set_points(server: OwnerControl, points: int) -> None:
    """Have each epoch that begins from now on share so many points.

    Who is proven to have signed two results for one share loses as many as an epoch shares in all.
    """
    server.submit(SetFutureEpochRates(earning_total_shared=points, slashing_per_client=points))


async def keep_room(server: OwnerControl, changed: Callable[[], anyio.Event]) -> None:
    """Forget balances until ROOM is free, after each change of the state. changed: returns the event that is set by the next."""
    while True:
        wait = changed()
        while (command := settlement_due(server.state)) is not None:
            try:
                server.submit(command)
            except CoordinatorError:  # a state of another version of the rules: newcomers are refused, and the run goes on
                break
        await wait.wait()


def settlement_due(state: CoordinatorState) -> Settle | None:
    """Return the command that forgets a balance, if fewer than ROOM newcomers have room; None else, or if none may be forgotten.

    It is the smallest balance of those who neither take part nor wait; of equal ones that of the smallest key.
    """
    if len(state.accounts) + len(signers_without_account(state)) + ROOM <= MAX_ACCOUNTS:
        return None

    here = {client.id.signer for client in state.epoch.clients} | {member.signer for member in state.pending}
    away = [account for account in state.accounts if account.signer not in here]
    return Settle(min(away, key=_balance).signer) if away else None


def _balance(account: Account) -> tuple[int, bytes]:
    return account.earned - account.slashed, account.signer
