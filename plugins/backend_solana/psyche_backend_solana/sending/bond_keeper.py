"""Sees to it that the bonds of ejected members are burned. Docs: docs/how-to/solana-bonds.md.

Anybody may send a forfeiture, and each costs its sender a fee. Members take turns as they do with ticks (`ticker`): the first in
an order that all compute equally sends at once, each next one only if the bond is still there some time later. So usually one fee
is paid, and no accomplice can keep a bond. A run whose join authority is no account of terms costs one reading, when it first
ejects somebody.
"""

from __future__ import annotations

import logging

import anyio
from solders.pubkey import Pubkey

from psyche_backend_solana.layouts import bond
from psyche_backend_solana.lookup.bonds import TermsFound, bond_of, convicted, terms_of_run
from psyche_backend_solana.lookup.runs import RunFound, checked_ids
from psyche_backend_solana.programs.in_use import Programs
from psyche_backend_solana.rpc.client import Rpc
from psyche_backend_solana.rpc.failures import RpcError
from psyche_backend_solana.sending import ticker
from psyche_backend_solana.sending.sender import Sender
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import BackendError, CommandRefused, ConfigError
from psyche_core.types import ClientState

logger: logging.Logger = logging.getLogger("psyche.backend.solana")

CALL_SECONDS = 15.0
SEND_SECONDS = 60.0
AGAIN_SECONDS = 5.0
"""First pause after a failure of the chain or of the endpoints; it doubles."""
LONGEST_AGAIN_SECONDS = 80.0


class BondKeeper:
    """Burns bonds of members that a run ejects, for one wallet."""

    def __init__(self, rpc: Rpc, found: RunFound, sender: Sender, *, programs: Programs) -> None:
        self._rpc = rpc
        self._found = found
        self._sender = sender
        self._programs = programs
        self._state: CoordinatorState | None = None
        self._done: set[Pubkey] = set()
        self._news = anyio.Event()

    def note(self, state: CoordinatorState) -> None:
        """Take the newest state. Wakes `keep` when it shows a member as ejected that was not looked after yet."""
        self._state = state
        ejected = _ejected(state)
        self._done &= ejected  # a key that is ejected again, in a later epoch, may have another bond
        if ejected - self._done:
            self._news.set()

    async def keep(self) -> None:
        """Look after ejected members until cancelled."""
        pause = AGAIN_SECONDS
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            try:
                await self._look()
                pause = AGAIN_SECONDS
            except ConfigError as error:
                logger.warning("bonds of ejected members are left to others: %s", error)
                self._done |= set() if self._state is None else _ejected(self._state)
            except (BackendError, RpcError, TimeoutError) as error:
                logger.warning("cannot see to the bonds of ejected members, trying again in %g s: %s", pause, error)
                await anyio.sleep(pause)
                pause = min(2 * pause, LONGEST_AGAIN_SECONDS)
                self._news.set()

    async def _look(self) -> None:
        state = self._state
        assert state is not None, "there is news only after a state"
        new = _ejected(state) - self._done
        if not new:
            return

        terms = await terms_of_run(self._rpc, self._found, programs=self._programs, timeout=CALL_SECONDS)
        if terms is not None:
            await checked_ids(self._rpc, self._programs, "bond", "authorizer", timeout=CALL_SECONDS)
            for user in convicted(state, terms.bonds.grounds):
                if user in new and user != self._sender.payer:
                    await self._forfeit(terms, user, state)
        self._done |= new

    async def _forfeit(self, terms: TermsFound, user: Pubkey, state: CoordinatorState) -> None:
        turn = int.from_bytes(bytes(user)[:8], "little")
        await anyio.sleep(ticker.tick_delay(state, turn, bytes(self._sender.payer)))
        held = await bond_of(self._rpc, terms.terms.bonds, user, program=self._programs.bond, timeout=CALL_SECONDS)
        if held is None or held.state is bond.BondState.Forfeited:
            return

        try:
            await self._sender.send(bond.forfeit(user, terms=terms.terms), timeout=SEND_SECONDS)
        except CommandRefused as refusal:
            logger.info("the bond of %s was not burned by us: %s", user, refusal)
            return
        logger.info("burned the bond of %s, which the run has ejected", user)


def _ejected(state: CoordinatorState) -> set[Pubkey]:
    return {Pubkey(client.id.signer) for client in state.epoch.clients if client.state is ClientState.Ejected}
