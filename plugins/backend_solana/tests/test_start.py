"""`run-manager --env-file`: what the file may say, which run is taken, when a client is started again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_chain import open_chain
from model_runs import OWNER, make_run, wallet_of

from psyche_backend_solana.commands import start
from psyche_backend_solana.commands.desk import Desk
from psyche_backend_solana.commands.start import (
    Patience,
    check_version,
    choose_run,
    keep_running,
    load_from,
    read_env,
    with_prefix,
)
from psyche_backend_solana.rpc.client import Rpc
from psyche_backend_solana.where import Programs
from psyche_core.errors import CommandRefused, ConfigError, UserError
from psyche_core.testing.backend import small_state
from psyche_core.wire.signing import SecretKey

MEMBER = wallet_of(SecretKey(b"\1" * 32))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_the_file_of_the_guides_is_read() -> None:
    text = """
# Path to your Solana keypair
WALLET_PRIVATE_KEY_PATH=/home/me/psyche-node.json

export RPC="https://api.devnet.solana.com"
WS_RPC='wss://api.devnet.solana.com'
AUTHORIZER=
HF_TOKEN=a=b=c
"""
    said = read_env(text, source="run.env")
    assert said["RPC"] == "https://api.devnet.solana.com"
    assert with_prefix(said) == {
        "PSYCHE_WALLET_PRIVATE_KEY_PATH": "/home/me/psyche-node.json",
        "PSYCHE_RPC": "https://api.devnet.solana.com",
        "PSYCHE_WS_RPC": "wss://api.devnet.solana.com",
        "PSYCHE_AUTHORIZER": "",
        "HF_TOKEN": "a=b=c",
    }
    settings = load_from(with_prefix(said))
    assert settings.endpoints()[0].websocket == "wss://api.devnet.solana.com"
    assert settings.grantees is None


def test_our_own_names_win() -> None:
    assert with_prefix({"PSYCHE_RPC": "http://a:1", "RPC": "http://b:1"})["PSYCHE_RPC"] == "http://a:1"


@pytest.mark.parametrize("line", ["RPC", "= x", "A B=c"])
def test_another_line_is_refused_by_its_number_without_quoting_it(line: str) -> None:
    with pytest.raises(ConfigError, match=r"run\.env, line 2: expected NAME=VALUE$"):
        read_env(f"# secret\n{line}", source="run.env")


@given(st.lists(st.tuples(st.integers(-20, 255), st.floats(0, 1000)), max_size=30))
def test_no_client_is_started_again_for_ever(ends: list[tuple[int, float]]) -> None:
    patience, early = Patience(), 0
    for code, ran in ends:
        again = patience.again(code, ran=ran)
        assert not (again and (code <= 0 or code in (2, 130, 143)))
        early = early + 1 if ran < start.HEALTHY_SECONDS else 1
        if early >= start.TRIES + len(ends):
            assert not again
    patience = Patience()
    assert [patience.again(1, ran=1.0) for _ in range(6)] == [True] * 4 + [False] * 2
    assert Patience(failures=4).again(1, ran=500.0)


def test_a_client_that_fails_is_started_again_and_one_that_ends_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "PAUSE_SECONDS", 0.0)
    log = tmp_path / "log"
    script = f"import sys, pathlib; p = pathlib.Path({str(log)!r}); n = len(p.read_text()) if p.exists() else 0\n"
    script += "p.write_text('x' * (n + 1)); sys.exit(1 if n < 2 else 0)"
    assert keep_running([sys.executable, "-c", script], {}) == 0
    assert log.read_text() == "xxx"


def test_another_version_is_refused_unless_wanted() -> None:
    for asked in ("", "test", "1.0"):
        check_version("r", asked, ours="1.0", any_version=False)
    check_version("r", "2.0", ours="1.0", any_version=True)
    with pytest.raises(UserError, match=r"asks for client version '2\.0', this is 1\.0"):
        check_version("r", "2.0", ours="1.0", any_version=False)


@pytest.mark.anyio
async def test_the_run_that_lets_the_wallet_in_is_taken() -> None:
    async with open_chain(unix=small_state().since) as chain, Rpc([chain.doors[0].endpoint]) as rpc:
        desk = Desk(rpc, Programs(), wallet=OWNER, price=0)
        with pytest.raises(UserError, match="no run on this chain"):
            await choose_run(desk, None, wallet=MEMBER.pubkey, grantees=None)
        await make_run(chain, small_state(run_id="closed"), members=[])
        with pytest.raises(UserError, match="no run on this chain"):
            await choose_run(desk, None, wallet=MEMBER.pubkey, grantees=None)
        with pytest.raises(CommandRefused, match="NotAuthorized"):
            await choose_run(desk, "closed", wallet=MEMBER.pubkey, grantees=None)
        await make_run(chain, small_state(run_id="open"))
        assert await choose_run(desk, None, wallet=MEMBER.pubkey, grantees=None) == ("closed", "")
