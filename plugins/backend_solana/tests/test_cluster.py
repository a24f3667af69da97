"""The shipped addresses of the programs are for chains of one's own; a member can name its run's owner."""

from __future__ import annotations

from dataclasses import replace

import pytest
from model_chain_rpc import open_chain
from model_runs import OWNER, TIMEOUT, backend_of, make_run, wallet_of
from solders.pubkey import Pubkey

from psyche_backend_solana.lookup.cluster import is_near, refuse_shared_ids
from psyche_backend_solana.programs.in_use import Programs
from psyche_backend_solana.rpc.client import Rpc
from psyche_backend_solana.rpc.endpoints import Endpoint
from psyche_core.errors import CommandRefused, ConfigError
from psyche_core.testing.backend import small_state
from psyche_core.wire.signing import SecretKey

pytestmark = pytest.mark.anyio
KEY = SecretKey(bytes([1]) * 32)
DEVNET = "EtWTRABZaYq6iMfeYKouRu166VU2xqa1wcaWoxPkrZBG"
OWN = Programs(
    coordinator=Pubkey.new_unique(),
    authorizer=Pubkey.new_unique(),
    treasurer=Pubkey.new_unique(),
    mining_pool=Pubkey.new_unique(),
    bond=Pubkey.new_unique(),
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize(
    ("url", "near"),
    [
        ("http://127.0.0.1:8899", True),
        ("http://localhost:8899", True),
        ("http://[::1]:8899", True),
        ("http://10.1.2.3:8899", True),
        ("http://192.168.0.9", True),
        ("https://api.devnet.solana.com", False),
        ("http://8.8.8.8:8899", False),
        ("http://localhost.example.org", False),
    ],
)
def test_an_endpoint_is_near_by_its_address(url: str, near: bool) -> None:
    assert is_near(Endpoint.parse(url)) is near


async def test_the_shipped_addresses_are_refused_on_a_public_cluster_whatever_leads_there() -> None:
    state = small_state()
    async with open_chain(unix=state.since) as chain, Rpc([chain.providers[0].endpoint]) as rpc:
        await make_run(chain, state)
        async with backend_of(chain, KEY):
            pass
        chain.providers[0].genesis = DEVNET  # a tunnel, or a proxy on this machine
        for programs in (Programs(), Programs(own_chain=True)):
            with pytest.raises(ConfigError, match=r"coordinator was used on the public cluster devnet.*--coordinator-program-id"):
                async with backend_of(chain, KEY, programs=programs):
                    pass
        partly = replace(OWN, authorizer=Programs().authorizer)
        with pytest.raises(ConfigError, match="--authorizer-program-id"):
            await refuse_shared_ids(rpc, partly, "coordinator", "authorizer", timeout=TIMEOUT)
        await refuse_shared_ids(rpc, OWN, "coordinator", "authorizer", "treasurer", "mining_pool", "bond", timeout=TIMEOUT)


async def test_far_endpoints_are_taken_for_ones_own_chain_only_when_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psyche_backend_solana.lookup.cluster.is_near", lambda endpoint: False)
    async with open_chain(unix=1) as chain, Rpc([chain.providers[0].endpoint]) as rpc:
        with pytest.raises(ConfigError, match="give --own-chain"):
            await refuse_shared_ids(rpc, Programs(), "coordinator", timeout=TIMEOUT)
        await refuse_shared_ids(rpc, Programs(own_chain=True), "coordinator", timeout=TIMEOUT)


async def test_a_member_that_names_an_owner_joins_no_run_of_another() -> None:
    state = small_state()
    async with open_chain(unix=state.since) as chain:
        await make_run(chain, state)
        async with backend_of(chain, KEY, owner=OWNER.pubkey) as backend:
            await backend.join(b"a", timeout=TIMEOUT)
        with pytest.raises(CommandRefused, match=f"OtherOwner: .*belongs to {OWNER.pubkey}"):
            async with backend_of(chain, KEY, owner=wallet_of(KEY).pubkey):
                pass
