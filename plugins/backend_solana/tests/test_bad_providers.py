"""The backend on the real programs, with providers that die, lose and lie silent: whole rounds all the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from model_runs import OWNER, all_programs, backend_at, make_run_at, wallet_of

from psyche_backend_solana.backend import SolanaBackend
from psyche_backend_solana.localnet.chain import LocalChain
from psyche_backend_solana.localnet.settings import ChainSettings
from psyche_backend_solana.rpc.endpoints import Endpoint
from psyche_core.coordinator.commands import Equivocation, SignedResult, WarmupWitness, Witness
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import CommandRefused
from psyche_core.testing.backend import START_TIME, small_state, until
from psyche_core.types import ClientState, RunState, WitnessStatement, bitmap
from psyche_core.wire.messages import commitment_hash, sign_commitment
from psyche_core.wire.signing import SecretKey

pytestmark = pytest.mark.anyio
KEYS = [SecretKey(bytes([number]) * 32) for number in (1, 2)]
TIMEOUT = 60.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Scene:
    chain: LocalChain
    backends: list[SolanaBackend]


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    """A run of two members on a chain with two providers."""
    airdrops = {str(wallet.pubkey): 10**11 for wallet in (OWNER, *(wallet_of(key) for key in KEYS))}
    settings = ChainSettings(manual_clock=True, start_time=START_TIME, airdrops=airdrops, programs=all_programs())
    async with AsyncExitStack() as stack:
        chain = await stack.enter_async_context(LocalChain(settings))
        await chain.open_provider()
        endpoints = tuple(Endpoint(provider.rpc_url, provider.ws_url) for provider in chain.providers)
        await make_run_at(endpoints[0], small_state())
        backends = [await stack.enter_async_context(backend_at(endpoints, key, retry_seconds=60)) for key in KEYS]
        yield Scene(chain, backends)


async def said(backend: SolanaBackend, command: Any, *, known_already: str) -> None:
    """Say it until it is known. A second saying may be refused because the first one arrived."""
    with anyio.fail_after(TIMEOUT):
        while True:
            try:
                await backend.send(command, timeout=10)
            except TimeoutError:
                continue
            except CommandRefused as refusal:
                if refusal.code != known_already:
                    raise
            return


async def play_a_round(scene: Scene, *, midway: Any = None) -> CoordinatorState:
    for number, backend in enumerate(scene.backends):
        await backend.join(b"address %d" % number, timeout=TIMEOUT)
    for backend in scene.backends:
        await until(backend, lambda update: len(update.addresses) == 2)
    await scene.chain.advance(3)
    for slot, backend in enumerate(scene.backends):
        await until(backend, lambda update: update.state.run_state is not RunState.WaitingForMembers)
        await said(backend, WarmupWitness(backend.identity, 0, slot, b"m" * 32), known_already="InvalidWitness")
    if midway is not None:
        await midway()
    for slot, backend in enumerate(scene.backends):
        await until(backend, lambda update: update.state.run_state.active)
        statement = WitnessStatement(0, 0, slot, bitmap([]), bytes(320), bytes(32), bytes(32))
        await said(backend, Witness(backend.identity, statement), known_already="DuplicateWitness")
    await scene.chain.advance(6)
    heights = [
        await until(backend, lambda update: update.state.current_round is not None and update.state.current_round.height == 1)
        for backend in scene.backends
    ]
    assert heights[0].state == heights[1].state
    return heights[0].state


async def test_one_of_two_providers_dies_midway_and_nothing_is_lost() -> None:
    async with scene() as played:
        await play_a_round(played, midway=played.chain.providers[0].close)


async def test_providers_that_lose_requests_answers_and_transactions() -> None:
    async with scene() as played:
        for provider in played.chain.providers:
            provider.faults.set(drop_share=0.1, lose_answer_share=0.1, swallow_share=0.2)
        await play_a_round(played)


async def test_a_provider_whose_websockets_are_silent_and_one_that_is_rate_limited() -> None:
    async with scene() as played:
        played.chain.providers[0].faults.set(http_status=429)
        played.chain.providers[1].faults.set(websocket="silent")
        await play_a_round(played)
        played.chain.providers[1].faults.clear()  # else the chain's end waits for the sockets' good-byes


async def test_blockhashes_that_expire_at_once_are_replaced() -> None:
    async with scene() as played:
        (first, _) = played.backends
        for provider in played.chain.providers:
            provider.faults.set(swallow_share=1.0)

        async def mend() -> None:
            await anyio.sleep(1.0)
            await played.chain.expire_blockhashes()
            await played.chain.advance_slots(200)
            for provider in played.chain.providers:
                provider.faults.clear()

        async with anyio.create_task_group() as group:
            group.start_soon(mend)
            await first.join(b"a", timeout=TIMEOUT)
        await until(first, lambda update: update.state.pending == (first.identity,))


async def test_a_member_that_signed_twice_is_ejected_on_the_chain() -> None:
    """The whole way of a proof: signatures verified by the Ed25519 program, commitments computed again by ours."""
    async with scene() as played:
        first, second = played.backends
        state = await play_a_round(played)
        current = state.current_round
        assert current is not None
        slot = state.slot_of(second.identity)
        assert slot is not None

        def signed(content: bytes) -> SignedResult:
            commitment = commitment_hash(
                state.instance,
                epoch=state.progress.epoch,
                step=current.step,
                seed=current.seed,
                share=shares(state, current)[slot],
                trainer=second.identity.signer,
                payload_hash=content,
            )
            return SignedResult(content, sign_commitment(KEYS[1], state.instance, commitment))

        one, other = signed(b"1" * 32), signed(b"2" * 32)
        place = (state.progress.epoch, current.height, slot)
        with pytest.raises(CommandRefused, match="InvalidEvidence"):
            await first.send(Equivocation(first.identity, *place, one, one), timeout=TIMEOUT)
        await first.send(Equivocation(first.identity, *place, one, other), timeout=TIMEOUT)
        await until(first, lambda update: update.state.epoch.clients[slot].state is ClientState.Ejected)
