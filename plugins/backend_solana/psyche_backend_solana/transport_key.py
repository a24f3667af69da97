"""Our transport key in a run, when no key file was given.

The key follows from the wallet, the run's name and the account that holds the run's state. That account is a different one for a
run made again under the same name, and on another chain; so a signature for one run is worth nothing in another. The account is
looked up on the chain first. This runs in a thread of its own, because the client has not begun yet.
"""

from __future__ import annotations

import anyio

from psyche_backend_solana.rpc.client import Rpc
from psyche_backend_solana.runs import find_run
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
