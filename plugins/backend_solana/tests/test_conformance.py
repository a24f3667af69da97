"""The contract of backends, on the real programs in a local chain, and on a model chain that needs neither."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
from model_chain_rpc import open_chain
from model_runs import OWNER, all_programs, backend_at, backend_of, make_run, make_run_at, wallet_of

from psyche_backend_solana.localnet.chain import LocalChain
from psyche_backend_solana.localnet.settings import ChainSettings
from psyche_backend_solana.rpc.endpoints import Endpoint
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.testing.backend import BackendConformance, BackendHarness
from psyche_core.wire.signing import SecretKey


class TestSolanaBackend(BackendConformance):
    renewals = 12  # each waits for the chain

    @asynccontextmanager
    async def harness(self, state: CoordinatorState, keys: Sequence[SecretKey]) -> AsyncIterator[BackendHarness]:
        wallets = [OWNER, *(wallet_of(key) for key in keys)]
        airdrops = {str(wallet.pubkey): 10**11 for wallet in wallets}
        settings = ChainSettings(manual_clock=True, start_time=state.since, airdrops=airdrops, programs=all_programs())
        async with AsyncExitStack() as stack:
            chain = await stack.enter_async_context(LocalChain(settings))
            endpoint = Endpoint(chain.rpc_url, chain.ws_url)
            await make_run_at(endpoint, state)
            backends = [await stack.enter_async_context(backend_at((endpoint,), key, run_id=state.run_id)) for key in keys[:2]]
            group = await stack.enter_async_context(anyio.create_task_group())

            def pass_time(seconds: int) -> None:
                group.start_soon(chain.advance, seconds)

            yield BackendHarness(backends, pass_time)
            group.cancel_scope.cancel()


class TestSolanaBackendOnAModelChain(BackendConformance):
    renewals = 12  # each waits for the chain

    @asynccontextmanager
    async def harness(self, state: CoordinatorState, keys: Sequence[SecretKey]) -> AsyncIterator[BackendHarness]:
        async with open_chain(unix=state.since) as chain, AsyncExitStack() as stack:
            await make_run(chain, state)
            backends = [await stack.enter_async_context(backend_of(chain, key, run_id=state.run_id)) for key in keys[:2]]

            def pass_time(seconds: int) -> None:
                chain.unix += seconds
                chain.next_slot()

            yield BackendHarness(backends, pass_time)
