"""`run-manager --env-file`: what the file may say, which run is taken, what of it is read again."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from model_chain_rpc import open_chain
from model_runs import OWNER, make_run, wallet_of
from solders.pubkey import Pubkey

from psyche_backend_solana.commands.client.env_file import read_env, read_env_file, with_prefix, words, yes
from psyche_backend_solana.commands.client.plan import Trust, plan
from psyche_backend_solana.commands.client.start import (
    StartOptions,
    VersionReader,
    choose_run,
    containers_of,
    load_from,
    trust_of,
)
from psyche_backend_solana.commands.context import CommandContext
from psyche_backend_solana.commands.run_manager import FOR_CLIENT, run_manager
from psyche_backend_solana.layouts import coordinator as program
from psyche_backend_solana.programs.in_use import Programs
from psyche_backend_solana.rpc.client import Rpc
from psyche_backend_solana.sending.sender import Sender
from psyche_core.errors import BackendError, CommandRefused, ConfigError, UserError
from psyche_core.testing.backend import small_state
from psyche_core.wire.signing import SecretKey

MEMBER = wallet_of(SecretKey(b"\1" * 32))


NOTHING = Trust()


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


def test_the_names_of_the_guides_reach_the_client() -> None:
    said = with_prefix(
        {"WALLET_PATH": "a", "MICRO_BATCH_SIZE": "4", "DATA_PARALLELISM": "2", "NVIDIA_DRIVER_CAPABILITIES": "all"}
    )
    assert said == {
        "PSYCHE_WALLET_PRIVATE_KEY_PATH": "a",
        "PSYCHE_MICRO_BATCH_SIZE": "4",
        "PSYCHE_DATA_PARALLELISM": "2",
        "NVIDIA_DRIVER_CAPABILITIES": "all",
    }
    assert with_prefix({"WALLET_PRIVATE_KEY_PATH": "b", "WALLET_PATH": "a"}) == {"PSYCHE_WALLET_PRIVATE_KEY_PATH": "b"}


def test_options_may_lack_the_prefix_and_what_nothing_reads_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.env"
    lines = (
        "CHECKPOINT_DIR=c",
        "HUB_REPO=h",
        "LOGS=json",
        "SCRATCH_DIR=s",
        "WANDB_PROJECT=secret",
        "RPCS=secret",
        "PSYCHE_DEVISE=x",
    )
    path.write_text("\n".join((*lines, "HF_TOKEN=t", "PATH=p", "AUTHORIZER=")))
    assert read_env_file(path) == {
        "PSYCHE_CHECKPOINT_DIR": "c",
        "PSYCHE_HUB_REPO": "h",
        "PSYCHE_LOGS": "json",
        "PSYCHE_CACHE_DIR": "s",
        "PSYCHE_WANDB_PROJECT": "secret",
        "RPCS": "secret",
        "PSYCHE_DEVISE": "x",
        "HF_TOKEN": "t",
        "PATH": "p",
        "PSYCHE_AUTHORIZER": "",
    }
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(f"{path}: ")[2].partition(" is ")[0] for line in told] == ["RPCS", "PSYCHE_DEVISE"]
    assert "did you mean DEVICE?" in told[1]
    assert "secret" not in "".join(told)


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nothing: No such file"):
        read_env_file(tmp_path / "nothing")
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot read"):
        read_env_file(tmp_path / "bytes")


def test_what_is_trusted_is_said_by_option_or_file_and_the_option_wins() -> None:
    said = {"PSYCHE_ALLOW_IMAGE": "a/b ghcr.io/c/", "PSYCHE_ALLOW_INSTALL": "1", "PSYCHE_CONTAINER_PROGRAM": "podman"}
    assert trust_of(StartOptions(install=False), {}) == Trust()
    assert trust_of(StartOptions(), said) == Trust(images=("docker.io/a/b", "ghcr.io/c/"), install=True)
    assert trust_of(StartOptions(install=False), said).install is False
    assert trust_of(StartOptions(images=("x/y",)), said).images == ("docker.io/x/y",)
    assert containers_of(StartOptions(), said).program == "podman"
    assert containers_of(StartOptions(container_program="docker"), said).program == "docker"
    assert words({"PSYCHE_CONTAINER_OPTIONS": "-v '/my data:/d'"}, "CONTAINER_OPTIONS") == ("-v", "/my data:/d")
    with pytest.raises(ConfigError, match="quoted as in a shell"):
        words({"PSYCHE_CONTAINER_OPTIONS": "'"}, "CONTAINER_OPTIONS")
    with pytest.raises(ConfigError, match="ALLOW_INSTALL: got 'maybe', expected 1"):
        yes({"PSYCHE_ALLOW_INSTALL": "maybe"}, "ALLOW_INSTALL")


def test_where_nothing_is_said_versions_are_installed_if_this_one_came_from_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PEP 610: only what was installed from a folder, a repository or a URL has a direct_url.json."""
    installed = tmp_path / "psyche_core-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: psyche-core\nVersion: 0.1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert trust_of(StartOptions(), {}).install is True
    assert trust_of(StartOptions(), {"PSYCHE_ALLOW_INSTALL": "0"}).install is False

    (installed / "direct_url.json").write_text('{"url": "file:///somewhere", "dir_info": {}}')
    assert trust_of(StartOptions(), {}).install is False
    assert trust_of(StartOptions(install=True), {}).install is True


def test_what_follows_two_dashes_is_for_the_client_only_in_start_mode() -> None:
    context = run_manager.make_context("run-manager", ["--env-file", "x", "--local", "--", "--device", "cpu"])
    assert context.meta[FOR_CLIENT] == ("--device", "cpu")
    assert context.params["local"]
    result = CliRunner().invoke(run_manager, ["--", "list-runs", "--help"])
    assert "List the runs on a chain" in result.output


@pytest.mark.anyio
async def test_the_run_that_lets_the_wallet_in_is_taken() -> None:
    async with open_chain(unix=small_state().since) as chain, Rpc([chain.providers[0].endpoint]) as rpc:
        context = CommandContext(rpc, Programs(), wallet=OWNER, price=0)
        await refused(context, "no run on this chain")
        await make_run(chain, small_state(run_id="closed"), members=[])
        await refused(context, "no run on this chain")
        with pytest.raises(CommandRefused, match="NotAuthorized"):
            await choose(context, "closed")
        made = await make_run(chain, small_state(run_id="open"))
        assert await choose(context) == ("closed", ""), "one authority lets everybody into all its runs"
        closed = program.Run(program.instance_address("closed")[0], (await context.run("closed")).run.account)
        await ask_for(rpc, closed, "7.7")
        assert await choose(context) == ("open", ""), "a run that asks for what may not be run is passed over"
        await ask_for(rpc, made, "a/b:1")
        await refused(context, r"ask for clients that you do not allow here\. '(open|closed)': the run asks for")
        assert await choose(context, "open") == ("open", "a/b:1"), "who names it hears why from the plan"
        assert await choose(context, None, trust=Trust(install=True)) == ("closed", "7.7")
        await refused(context, "no run on this chain", grantor=Pubkey.new_unique())


@pytest.mark.anyio
async def test_the_version_is_read_again_and_whole_only_when_it_has_changed() -> None:
    async with open_chain(unix=small_state().since) as chain, Rpc([chain.providers[0].endpoint]) as rpc:
        made = await make_run(chain, small_state(run_id="open"))
        reader = VersionReader(CommandContext(rpc, Programs(), wallet=OWNER, price=0), "open")
        assert await reader.read() == ""
        await ask_for(rpc, made, "v" * 96)
        assert await reader.read() == "v" * 96
        before = dict(chain.providers[0].calls)
        assert await reader.read() == "v" * 96
        assert chain.providers[0].calls == before | {"getMultipleAccounts": before["getMultipleAccounts"] + 1}
        for address in (made.account, made.instance):
            del chain.accounts[address]
        with pytest.raises(BackendError, match="no longer on the chain"):
            await reader.read()
        await make_run(chain, small_state(run_id="open"), members=[])
        assert await reader.read() == "", "made anew, with another account"


async def choose(
    context: CommandContext, wanted: str | None = None, *, trust: Trust = NOTHING, grantor: Pubkey | None = None
) -> tuple[str, str]:
    return await choose_run(
        context,
        wanted,
        wallet=MEMBER.pubkey,
        grantees=None,
        allowed=lambda text: plan(text, ours="0.1", trust=trust),
        grantor=grantor,
    )


async def refused(context: CommandContext, sentence: str, *, grantor: Pubkey | None = None) -> None:
    with pytest.raises(UserError, match=sentence):
        await choose(context, grantor=grantor)


async def ask_for(rpc: Rpc, run: program.Run, version: str) -> None:
    change = program.update(run, program.Update(client_version=version), authority=OWNER.pubkey)
    await Sender(rpc, OWNER).send(change, timeout=20.0)
