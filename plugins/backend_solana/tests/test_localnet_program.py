"""`psyche solana localnet`: its options, its sentences, and ports that cannot be had."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from localnet_parts import MANUAL, Rpc
from solders.keypair import Keypair

from psyche_backend_solana.localnet import LocalChain
from psyche_backend_solana.localnet.program import localnet, read_airdrop, read_settings
from psyche_backend_solana.programs import load
from psyche_backend_solana.programs.addresses import AUTHORIZER
from psyche_core.errors import ConfigError, UserError

ADDRESS = str(Keypair.from_seed(bytes(32)).pubkey())


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def options(*arguments: str) -> dict[str, Any]:
    """What click makes of a command line, without running it."""
    given = localnet.make_context("localnet", list(arguments)).params
    faults = ("latency_ms", "drop_share", "lose_answer_share", "swallow_share", "expire_blockhashes_after", "providers")
    return {name: value for name, value in given.items() if name not in faults}


def test_options_become_settings(tmp_path: Path) -> None:
    elf = tmp_path / "own.so"
    elf.write_bytes(load("authorizer"))
    own = str(Keypair().pubkey())
    settings = read_settings(
        options("--rpc-port", "0", "--slot-ms", "50", "--airdrop", f"{ADDRESS}:1.5", "--program", own, str(elf), "--no-programs")
    )
    assert (settings.rpc_port, settings.ws_port, settings.slot_ms) == (0, None, 50)
    assert settings.airdrops == {ADDRESS: 1_500_000_000}
    assert settings.programs == {own: load("authorizer")}
    assert str(AUTHORIZER) in (read_settings(options()).programs or {})


@pytest.mark.parametrize(
    "text", ["", "x", ADDRESS, f"{ADDRESS}:", f"{ADDRESS}:0", f"{ADDRESS}:-1", f"{ADDRESS}:1e-10", ":5", "x:nan"]
)
def test_a_bad_airdrop_is_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match="--airdrop is ADDRESS:SOL"):
        read_airdrop(text)


def test_help_teaches_and_mistakes_are_told_before_anything_runs() -> None:
    runner = CliRunner()
    shown = runner.invoke(localnet, ["--help"]).output
    for word in ("Ctrl-C", "--state", "--airdrop", "Faults, for tests:", "8899"):
        assert word in shown
    assert isinstance(runner.invoke(localnet, ["--providers", "0"]).exception, ConfigError)
    assert isinstance(runner.invoke(localnet, ["--rpc-port", "99999"]).exception, ConfigError)


async def test_ports_and_addresses_that_cannot_be_used() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{port}"):
            async with LocalChain(replace(MANUAL, rpc_port=port)):
                pass
    with pytest.raises(ConfigError, match="an address is base58"):
        async with LocalChain(replace(MANUAL, airdrops={"nobody": 1})):
            pass
    with pytest.raises(UserError, match="cannot be loaded"):
        async with LocalChain(replace(MANUAL, programs={ADDRESS: b"no ELF"})):
            pass
    with pytest.raises(UserError, match="cannot be given"):
        async with LocalChain(replace(MANUAL, airdrops={ADDRESS: 2**63})):
            pass


async def test_websockets_are_where_clients_look_for_them() -> None:
    async with LocalChain(MANUAL) as chain, Rpc(chain.rpc_url) as rpc:
        rpc_port, ws_port = (int(url.rpartition(":")[2]) for url in (chain.rpc_url, chain.ws_url))
        assert ws_port == rpc_port + 1
        assert await rpc("getHealth") == "ok"
    async with LocalChain(replace(MANUAL, rpc_port=rpc_port)) as chain:  # at once, at the same port
        assert chain.rpc_url.endswith(f":{rpc_port}")
        await chain.aclose()
        await chain.aclose()
