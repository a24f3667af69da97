"""The programs at addresses of one's own: written by the command, put on a chain, and used for all that there is."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from click.testing import CliRunner
from model_runs import QUICK, TIMEOUT
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from plugins.backend_solana.tests.commands.shell import said
from psyche_backend_solana.backend import SolanaBackend
from psyche_backend_solana.hooks import psyche_register_commands
from psyche_backend_solana.layouts import tokens
from psyche_backend_solana.localnet.chain import LocalChain
from psyche_backend_solana.localnet.settings import ChainSettings
from psyche_backend_solana.programs import load
from psyche_backend_solana.programs.addresses import PROGRAMS, TOKEN
from psyche_backend_solana.programs.in_use import Programs
from psyche_backend_solana.rpc.endpoints import Endpoint
from psyche_backend_solana.wallet import Wallet
from psyche_core.testing.backend import until
from psyche_core.wire.signing import SecretKey

pytestmark = pytest.mark.anyio
RUN_MANAGER, SOLANA = psyche_register_commands()
START = 1_700_000_000
KNOWN = {("coordinator", "authorizer"), ("treasurer", "coordinator"), ("bond", "coordinator"), ("bond", "authorizer")}
"""Which program knows the address of which."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_a_program_holds_the_addresses_it_knows_once_and_whole(name: str) -> None:
    """So that exchanging 32 bytes is all there is to do; no instruction holds a part of one."""
    content = load(name)
    for other, address in PROGRAMS.items():
        times = int((name, other) in KNOWN)
        assert content.count(bytes(address)) == times
        for start in range(0, 32, 4):
            assert content.count(bytes(address)[start : start + 4]) == times


def invoke(command: Any, *words: str, environment: dict[str, str] | None = None, code: int = 0) -> str:
    result = CliRunner(env=environment or {}).invoke(command.load(), words)
    return said(result, code)


class Place:
    """A chain with nothing but programs at addresses of their owner's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        words = ("programs", "--keypairs", str(folder / "keys"), "--out", str(folder / "so"), "--json")
        self.ids = {name: row["address"] for name, row in json.loads(invoke(SOLANA, *words)).items()}
        assert {name: row["address"] for name, row in json.loads(invoke(SOLANA, *words)).items()} == self.ids
        self.elfs = {address: (folder / "so" / f"{name}.so").read_bytes() for name, address in self.ids.items()}
        self.environment = {f"PSYCHE_{name.upper()}_PROGRAM_ID": address for name, address in self.ids.items()}
        self.owner = Wallet.generate()
        self.owner.save(folder / "owner.json")

    async def __call__(self, *words: str) -> str:
        more = () if words[0].startswith("json-dump") else ("-w", str(self.folder / "owner.json"))
        return await anyio.to_thread.run_sync(lambda: invoke(RUN_MANAGER, *words, *more, environment=self.environment))


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[tuple[Place, LocalChain]]:
    made = Place(tmp_path)
    async with LocalChain(ChainSettings(start_time=START, slot_ms=50, programs=made.elfs)) as chain:
        made.environment["PSYCHE_RPC"] = chain.rpc_url
        await chain.airdrop(str(made.owner.pubkey), 10**11)
        yield made, chain


async def test_a_paid_run_lives_at_them(place: tuple[Place, LocalChain]) -> None:
    at, chain = place
    assert not set(at.ids.values()) & {str(address) for address in PROGRAMS.values()}
    for name in PROGRAMS:
        assert (at.folder / "keys" / f"{name}.json").stat().st_mode & 0o077 == 0
    mint, owner = Pubkey.new_unique(), at.owner.pubkey
    await chain.set_account(str(mint), Account(10**9, struct.pack("<I32sQBBI32s", 0, bytes(32), 0, 6, 1, 0, bytes(32)), TOKEN))
    held = struct.pack("<32s32sQI32sBIQQI32s", bytes(mint), bytes(owner), 10**7, 0, bytes(32), 1, 0, 0, 0, 0, bytes(32))
    await chain.set_account(str(tokens.associated(owner, mint)), Account(10**9, held, TOKEN))
    config = Path(__file__).parents[3] / "examples" / "solana_testnet" / "state.toml"

    await at("create-run", "-r", "own", "--treasurer-collateral-mint", str(mint))
    await at("update-config", "-r", "own", "--config-path", str(config))
    await at("treasurer-top-up-rewards", "-r", "own", "--collateral-amount", "2")
    await at("join-authorization-create", "--authorizer", "1" * 32)
    await at("set-paused", "-r", "own", "--resume")
    dump = json.loads(await at("json-dump-run", "-r", "own", "--owner", str(owner)))
    assert (dump["run_state"], dump["treasurer"]["held"]) == ("WaitingForMembers", 2_000_000)
    addresses: dict[str, Any] = {name: Pubkey.from_string(address) for name, address in at.ids.items()}
    programs = Programs(**addresses)
    member = Wallet(Keypair())
    await chain.airdrop(str(member.pubkey), 10**9)
    endpoint = Endpoint(chain.rpc_url, chain.ws_url)
    async with SolanaBackend(
        "own",
        endpoints=(endpoint,),
        wallet=member,
        key=SecretKey(bytes([3]) * 32),
        programs=programs,
        owner=owner,
        intervals=QUICK,
    ) as backend:
        await backend.join(b"here", timeout=TIMEOUT)
        update = await until(backend, lambda update: len(update.addresses) == 1)
        assert update.addresses == {bytes(member.pubkey): b"here"}


def test_addresses_of_ones_own_need_a_folder_for_the_programs(tmp_path: Path) -> None:
    assert "--out FOLDER" in invoke(SOLANA, "programs", "--keypairs", str(tmp_path), code=2)
    assert list(tmp_path.iterdir()) == []
