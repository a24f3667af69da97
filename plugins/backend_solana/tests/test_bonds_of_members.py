"""Bonds in a run on a local chain, with the real programs and backends of members: who joins, and who loses its bond.

The whole way: a member signs two results, another one proves it, the coordinator ejects it, and a backend has the bond burned.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from model_runs import OWNER, all_programs, backend_at, make_run_at, wallet_of
from solders.account import Account
from solders.pubkey import Pubkey

from psyche_backend_solana.backend import SolanaBackend
from psyche_backend_solana.layouts import bond, coordinator, tokens
from psyche_backend_solana.localnet.chain import LocalChain
from psyche_backend_solana.localnet.settings import ChainSettings
from psyche_backend_solana.lookup.bonds import TermsFound, terms_of_run
from psyche_backend_solana.programs.addresses import TOKEN
from psyche_backend_solana.rpc.client import Rpc
from psyche_backend_solana.rpc.endpoints import Endpoint
from psyche_backend_solana.sending import bond_keeper
from psyche_backend_solana.sending.sender import Sender
from psyche_core.coordinator.commands import Equivocation, SignedResult, WarmupWitness
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import BackendError, CommandRefused
from psyche_core.testing.backend import START_TIME, small_state, until
from psyche_core.types import ClientState, RunState
from psyche_core.wire.messages import commitment_hash, sign_commitment
from psyche_core.wire.signing import SecretKey

pytestmark = pytest.mark.anyio
KEYS = [SecretKey(bytes([number]) * 32) for number in (1, 2, 3)]
TIMEOUT = 60.0
AMOUNT, FUNDS, WAITING = 30, 100, 60
SUPPLY = 10_000
MINT = Pubkey(b"m" * 32)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Scene:
    """A run of three members that takes bonds."""

    chain: LocalChain
    endpoint: Endpoint
    terms: bond.Terms
    backends: list[SolanaBackend]

    async def deposit(self, key: SecretKey) -> None:
        wallet = wallet_of(key)
        async with Rpc([self.endpoint]) as rpc:
            own = tokens.associated(wallet.pubkey, MINT)
            put = bond.deposit(wallet.pubkey, own, terms=self.terms, amount=AMOUNT, waiting=WAITING)
            await Sender(rpc, wallet).send(put, timeout=TIMEOUT)

    async def read(self, address: Pubkey) -> Account:
        found = await self.chain.account(str(address))
        assert found is not None
        return found

    async def held(self, key: SecretKey) -> bond.Bond:
        return bond.parse_bond(await self.read(self.terms.bond(wallet_of(key).pubkey)))

    async def until_forfeited(self, key: SecretKey) -> None:
        with anyio.fail_after(TIMEOUT):
            while (await self.held(key)).state is not bond.BondState.Forfeited:
                await anyio.sleep(0.05)


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    airdrops = {str(wallet.pubkey): 10**11 for wallet in (OWNER, *(wallet_of(key) for key in KEYS))}
    settings = ChainSettings(manual_clock=True, start_time=START_TIME, airdrops=airdrops, programs=all_programs())
    state = small_state(clients=3)
    async with AsyncExitStack() as stack:
        chain = await stack.enter_async_context(LocalChain(settings))
        endpoint = Endpoint(chain.rpc_url, chain.ws_url)
        mint = struct.pack("<I32sQBBI32s", 0, bytes(32), SUPPLY, 6, 1, 0, bytes(32))
        await chain.set_account(str(MINT), Account(10**9, mint, TOKEN))
        for key in KEYS:
            owner = wallet_of(key).pubkey
            fields = (bytes(MINT), bytes(owner), FUNDS, 0, bytes(32), 1, 0, 0, 0, 0, bytes(32))
            held = struct.pack("<32s32sQI32sBIQQI32s", *fields)
            await chain.set_account(str(tokens.associated(owner, MINT)), Account(10**9, held, TOKEN))
        instance, _ = coordinator.instance_address(state.run_id)
        bonds = bond.bonds_address(OWNER.pubkey, instance)
        run = await make_run_at(endpoint, state, members=(), join_authority=bonds)
        terms = bond.terms_of(bonds, mint=MINT, instance=instance, account=run.account)
        async with Rpc([endpoint]) as rpc:
            made = bond.create(OWNER.pubkey, OWNER.pubkey, terms=terms, amount=AMOUNT, waiting=WAITING)
            await Sender(rpc, OWNER).send(made, timeout=TIMEOUT)
        backends = [await stack.enter_async_context(backend_at((endpoint,), key)) for key in KEYS]
        yield Scene(chain, endpoint, terms, backends)


async def into_a_round(played: Scene) -> CoordinatorState:
    for key, backend in zip(KEYS, played.backends, strict=True):
        await played.deposit(key)
        await backend.join(b"address", timeout=TIMEOUT)
    await played.chain.advance(3)
    for slot, backend in enumerate(played.backends):
        await until(backend, lambda update: update.state.run_state is RunState.Warmup)
        await backend.send(WarmupWitness(backend.identity, 0, slot, b"m" * 32), timeout=TIMEOUT)
    update = await until(played.backends[0], lambda update: update.state.run_state is RunState.RoundTrain)
    return update.state


def proof(state: CoordinatorState, by: SolanaBackend, cheat: SolanaBackend, key: SecretKey) -> Equivocation:
    current, slot = state.current_round, state.slot_of(cheat.identity)
    assert current is not None
    assert slot is not None

    def signed(content: bytes) -> SignedResult:
        commitment = commitment_hash(
            state.instance,
            epoch=state.progress.epoch,
            step=current.step,
            seed=current.seed,
            share=shares(state, current)[slot],
            trainer=cheat.identity.signer,
            payload_hash=content,
        )
        return SignedResult(content, sign_commitment(key, state.instance, commitment))

    return Equivocation(by.identity, state.progress.epoch, current.height, slot, signed(b"1" * 32), signed(b"2" * 32))


def shows(cheat: SolanaBackend) -> Callable[[CoordinatorState], bool]:
    def ejected(state: CoordinatorState) -> bool:
        slot = state.slot_of(cheat.identity)
        return slot is not None and state.epoch.clients[slot].state is ClientState.Ejected

    return ejected


async def test_without_a_bond_nobody_joins_and_the_sentence_says_what_to_do() -> None:
    async with scene() as played:
        first = played.backends[0]
        with pytest.raises(CommandRefused, match=r"the run takes a bond.*psyche solana bond deposit"):
            await first.join(b"address", timeout=TIMEOUT)
        await played.deposit(KEYS[0])
        await first.join(b"address", timeout=TIMEOUT)
        await until(first, lambda update: update.state.pending == (first.identity,))


async def test_a_member_that_signed_twice_loses_its_bond_and_nobody_had_to_ask() -> None:
    """The others' backends see the ejection and have the bond burned; the rest keep theirs, and the cheat cannot join again."""
    async with scene() as played:
        first, second, cheat = played.backends
        state = await into_a_round(played)
        await first.send(proof(state, first, cheat, KEYS[2]), timeout=TIMEOUT)
        ejected = shows(cheat)
        await until(second, lambda update: ejected(update.state))
        await played.until_forfeited(KEYS[2])
        assert tokens.parse_mint(await played.read(MINT)).supply == SUPPLY - AMOUNT
        assert tokens.parse(await played.read(played.terms.vault)).amount == 2 * AMOUNT
        for key in KEYS[:2]:
            assert (await played.held(key)).state is bond.BondState.Active
        for key, units in zip(KEYS, (FUNDS - AMOUNT,) * 3, strict=True):
            assert tokens.parse(await played.read(tokens.associated(wallet_of(key).pubkey, MINT))).amount == units
        with pytest.raises(CommandRefused, match="the run takes a bond"):
            await cheat.join(b"elsewhere", timeout=TIMEOUT)


async def test_where_the_first_member_does_not_see_to_it_the_next_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes first in the order of turns, the other one burns the bond when it comes back alone."""
    monkeypatch.setattr("psyche_backend_solana.sending.ticker.FIRST_TURN_SECONDS", 0.2)
    async with scene() as played:
        first, second, cheat = played.backends
        state = await into_a_round(played)
        for sleeper in (second, cheat):
            await sleeper.aclose()
        monkeypatch.setattr("psyche_backend_solana.sending.bond_keeper.BondKeeper.note", lambda *_: None)
        await first.send(proof(state, first, cheat, KEYS[2]), timeout=TIMEOUT)
        ejected = shows(cheat)
        await until(first, lambda update: ejected(update.state))
        await first.aclose()
        assert (await played.held(KEYS[2])).state is bond.BondState.Active
        monkeypatch.undo()
        async with backend_at((played.endpoint,), KEYS[1]):
            await played.until_forfeited(KEYS[2])


async def test_an_endpoint_that_fails_does_not_save_a_bond(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not read is read again."""
    monkeypatch.setattr(bond_keeper, "AGAIN_SECONDS", 0.05)
    failures: list[tuple[Any, ...]] = []

    async def failing(*given: Any, **more: Any) -> TermsFound | None:
        if len(failures) < 4:
            failures.append(given)
            message = "no endpoint answers"
            raise BackendError(message)
        return await terms_of_run(*given, **more)

    monkeypatch.setattr(bond_keeper, "terms_of_run", failing)
    async with scene() as played:
        first, _, cheat = played.backends
        state = await into_a_round(played)
        await first.send(proof(state, first, cheat, KEYS[2]), timeout=TIMEOUT)
        await played.until_forfeited(KEYS[2])
    assert len(failures) == 4
