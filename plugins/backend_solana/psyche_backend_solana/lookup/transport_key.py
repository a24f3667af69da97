"""Derives our transport key in a run if no key file was given.

The key follows from the wallet, the run's name and the account that holds the run's state. That account differs for a run that
is created again under the same name, and on another chain; so a signature for one run is invalid in another. The account is
looked up on the chain first. This runs in a separate thread, because the client has not started yet.
"""

from __future__ import annotations

import anyio

from psyche_backend_solana.lookup.runs import find_run
from psyche_backend_solana.rpc.client import Rpc
from psyche_backend_solana.settings import SolanaSettings
from psyche_core.wire.signing import SecretKey

FIND_SECONDS = 20.0


def transport_key(run_id: str, settings: SolanaSettings) -> SecretKey:
    """Find the run and derive the key. Blocks. Raises CommandRefused (WrongRun), UserError for a wallet, BackendError."""
    wallet = settings.wallet()

    async def account() -> bytes:
        async with Rpc(settings.endpoints()) as rpc:
            found = await find_run(rpc, run_id, programs=settings.programs, timeout=FIND_SECONDS)
        return bytes(found.run.account)

    return wallet.p2p_key(run_id, anyio.run(account))
