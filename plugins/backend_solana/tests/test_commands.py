"""The commands, run as a shell would run them, against the real programs on a local chain."""

from __future__ import annotations

import hashlib
import json
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pytest
from click.testing import CliRunner, Result
from model_runs import all_programs
from reference_bytes import account as reference_account
from solders.account import Account
from solders.pubkey import Pubkey

from psyche_backend_solana.commands.authority import default_index
from psyche_backend_solana.commands.run.owner import data_index_at, read_config
from psyche_backend_solana.commands.token_amounts import units_of
from psyche_backend_solana.hooks import psyche_register_commands
from psyche_backend_solana.layouts import address_record, reference, tokens, treasurer
from psyche_backend_solana.layouts import mining_pool as layout
from psyche_backend_solana.layouts.coordinator import instance_address
from psyche_backend_solana.layouts.coordinator_accounts import HEADER_BYTES, OLD_ACCOUNT_BYTES, CoordinatorAccount
from psyche_backend_solana.localnet.chain import LocalChain
from psyche_backend_solana.localnet.settings import ChainSettings
from psyche_backend_solana.lookup.transport_key import transport_key
from psyche_backend_solana.programs.addresses import TOKEN
from psyche_backend_solana.rpc.client import Rpc
from psyche_backend_solana.rpc.endpoints import Endpoint
from psyche_backend_solana.sending.sender import Sender
from psyche_backend_solana.settings import SolanaSettings
from psyche_backend_solana.wallet import Wallet
from psyche_core.cli.failures import describe_failure
from psyche_core.config.run_config import parse_run_file
from psyche_core.coordinator import canonical_image as image
from psyche_core.coordinator.round.batch_size import batch_size
from psyche_core.coordinator.state import Account as Balance
from psyche_core.errors import AccessRefused, ConfigError
from psyche_core.testing.command import CommandConformance

RUN_MANAGER, SOLANA = psyche_register_commands()
START = 1_700_000_000
EVERYBODY = "1" * 32
CONFIG = """
[config]
warmup_time = 100
cooldown_time = 10
max_round_train_time = 50
round_witness_time = 5
epoch_time = 1000
total_steps = 10
init_min_clients = 1
min_clients = 1
witness_nodes = 0
global_batch_size_start = 2
global_batch_size_end = 6
global_batch_size_warmup_tokens = 100
verification_percent = 0
waiting_for_members_extra_time = 2

[model.LLM]
architecture = "HfLlama"
data_type = "Pretraining"
max_seq_len = 8
cold_start_warmup_steps = 0
data_location = "Dummy"
optimizer = "AdamW"

[model.LLM.checkpoint.P2P]
repo_id = "owner/model"

[model.LLM.lr_schedule.Constant]
base_lr = 0.1
warmup_init_lr = 0.0
warmup_steps = 0
"""


class TestRunManager(CommandConformance):
    registration = RUN_MANAGER
    hooks = "psyche_backend_solana.hooks"


class TestSolana(CommandConformance):
    registration = SOLANA
    hooks = "psyche_backend_solana.hooks"


class Shell:
    """Runs commands; `owner` and `member` are wallets with money."""

    def __init__(self, folder: Path, chain: LocalChain, portal: anyio.from_thread.BlockingPortal) -> None:
        self.folder = folder
        self.chain = chain
        self.portal = portal
        self.wallets: dict[str, Wallet] = {}
        self.config = folder / "config.toml"
        self.config.write_text(CONFIG)

    def wallet(self, name: str, lamports: int = 10**11) -> Wallet:
        if name not in self.wallets:
            self.wallets[name] = wallet = Wallet.generate()
            wallet.save(self.folder / f"{name}.json")
            if lamports:
                self.portal.call(self.chain.airdrop, str(wallet.pubkey), lamports)
        return self.wallets[name]

    def pass_time(self, seconds: float) -> None:
        self.portal.call(self.chain.advance, seconds)

    def __call__(self, *words: str, wallet: str | None = None, code: int = 0) -> str:
        more = []
        if wallet is not None:
            self.wallet(wallet)
            more = ["-w", str(self.folder / f"{wallet}.json")]
        runner = CliRunner(env={"PSYCHE_RPC": self.chain.rpc_url})
        result = runner.invoke(RUN_MANAGER.load(), [*words, *more], catch_exceptions=True)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            described = describe_failure(result.exception)
            assert described is not None, repr(result.exception)
            assert described[1] == code, described
            return described[0]
        assert result.exit_code == code, result.output
        return result.output

    def json(self, *words: str, wallet: str | None = None) -> Any:
        return json.loads(self(*words, "--json", wallet=wallet))


@pytest.fixture(scope="module")
def portal() -> Iterator[anyio.from_thread.BlockingPortal]:
    with anyio.from_thread.start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory, portal: anyio.from_thread.BlockingPortal) -> Iterator[Shell]:
    settings = ChainSettings(manual_clock=True, start_time=START, programs=all_programs())
    assert threading.current_thread() is threading.main_thread()
    with portal.wrap_async_context_manager(LocalChain(settings)) as chain:
        yield Shell(tmp_path_factory.mktemp("shell"), chain, portal)


@pytest.fixture
def run(shell: Shell, request: pytest.FixtureRequest) -> str:
    """A run made and configured by `owner`, waiting for members."""
    name: str = request.node.name.removeprefix("test_")[:32]
    shell("create-run", "-r", name, "-c", "0.1.0", wallet="owner")
    shell("update-config", "-r", name, "--config-path", str(shell.config), wallet="owner")
    shell("set-paused", "-r", name, "--resume", wallet="owner")
    return name


def test_a_run_that_no_file_can_be_named_after_is_not_created(shell: Shell) -> None:
    said = shell("create-run", "-r", "../evil", wallet="owner", code=2)
    assert '--run-id "../evil": must not be . or .. or contain / or' in said


def test_names_of_others_cannot_write_to_the_terminal(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may name a run so that a raw terminal would be cleared, coloured or given a line that is not there."""
    evil = "\x1b[2J\x1b]0;x\x07\n\u202elist"
    with monkeypatch.context() as another_program:
        another_program.setattr("psyche_backend_solana.commands.run.owner.check_run_id", str)
        shell("create-run", "-r", evil, wallet="owner")
    shell("update-config", "-r", evil, "--name", f"n{evil}", wallet="owner")
    listed = shell("list-runs", "--all")
    (line,) = [line for line in listed.splitlines() if "\\x1b[2J" in line]
    assert line.isprintable()
    assert line.count("\\u202elist") == 2
    said = shell("can-join", "-r", "no\x1b[2J", "--address", EVERYBODY, code=2)
    assert said.isprintable()
    assert shell.json("list-runs", "--all")["runs"], "JSON escapes by itself"


def test_a_runs_life(shell: Shell) -> None:
    said = shell("create-run", "-r", "life", "-c", "0.1.0", wallet="owner")
    assert "the run 'life' was created" in said
    dump = shell.json("json-dump-run", "-r", "life")
    assert (dump["run_state"], dump["client_version"]) == ("Uninitialized", "0.1.0")
    assert dump["main_authority"] == str(shell.wallet("owner").pubkey)

    words = ("--config-path", str(shell.config), "--name", "First light", "--num-parameters", "135000000")
    said = shell("update-config", "-r", "life", *words, wallet="owner")
    assert said == "the run 'life' has new config, model, metadata\n"
    said = shell("update-config", "-r", "life", *words[2:], wallet="owner", code=2)
    assert "nothing would change" in said

    assert "is now WaitingForMembers" in shell("set-paused", "-r", "life", "--resume", wallet="owner")
    dump = shell.json("json-dump-run", "-r", "life")
    config, _ = read_config(shell.config)
    assert dump["config"] == json.loads(json.dumps(config.model_dump()))
    assert (dump["name"], dump["num_parameters"], dump["model"]["LLM"]["architecture"]) == ("First light", 135_000_000, "HfLlama")

    twice = shell("tick", "-r", "life", "--count", "2", "--ms-interval", "1", wallet="member")
    assert "nothing is due; 'life' is in WaitingForMembers" in twice
    assert "is now Paused" in shell("set-paused", "-r", "life", wallet="owner")
    assert shell("close-run", "-r", "life", wallet="owner") == "the run 'life' is closed\n"
    assert "there is no run 'life'" in shell("json-dump-run", "-r", "life", code=2)


def test_only_the_owner_owns(shell: Shell, run: str) -> None:
    for words in (("set-paused",), ("close-run",), ("update-config", "--name", "x"), ("set-future-epoch-rates",)):
        more = ("--earning-rate-total-shared", "5") if words[0].startswith("set-future") else ()
        said = shell(words[0], "-r", run, *words[1:], *more, wallet="member", code=2)
        assert f"belongs to {shell.wallet('owner').pubkey}" in said


def test_a_running_run_is_not_configured_or_closed(shell: Shell, run: str) -> None:
    said = shell(
        "update-config", "-r", run, "--config-path", str(shell.config), "--restart-from-step", "3", wallet="owner", code=1
    )
    assert "configuration changes only while the run is halted" in said
    assert "pause the run first" in shell("close-run", "-r", run, wallet="owner", code=2)


def test_restarting_takes_the_samples_that_belong_to_the_step(shell: Shell, run: str) -> None:
    shell("set-paused", "-r", run, wallet="owner")
    shell("update-config", "-r", run, "--restart-from-step", "4", wallet="owner")
    config, model = read_config(shell.config)
    progress = shell.json("json-dump-run", "-r", run)["progress"]
    assert progress == {"epoch": 0, "step": 4, "data_index": data_index_at(4, config, model)}


def test_the_data_index_of_a_step_is_the_sum_of_the_batches_before_it(shell: Shell) -> None:
    config, model = read_config(shell.config)
    samples = 0
    for step in range(1, 60):
        assert data_index_at(step, config, model) == samples
        samples += batch_size(samples * 8, start=2, end=6, warmup_tokens=100)
    assert data_index_at(60, config, model) > 4 * 60


def test_switching_to_the_hub(shell: Shell, run: str) -> None:
    shell("set-paused", "-r", run, wallet="owner")
    assert "has new model" in shell("update-config", "-r", run, "--switch-to-hub", wallet="owner")
    assert "Hub" in shell.json("json-dump-run", "-r", run)["model"]["LLM"]["checkpoint"]


def test_no_client_has_that_version_so_it_is_refused_before_anything_is_sent(shell: Shell, run: str) -> None:
    for words in (("create-run", "-r", "another"), ("update-config", "-r", run)):
        for text in ("newest", "v1"):
            said = shell(*words, "--client-version", text, wallet="owner", code=2)
            assert f"--client-version: got '{text}'" in said
    assert "there is no run 'another'" in shell("json-dump-run", "-r", "another", code=2)
    assert shell.json("json-dump-run", "-r", run)["client_version"] == "0.1.0"
    shell("update-config", "-r", run, "--client-version", "v1", "--allow-later-version", wallet="owner")
    shell("update-config", "-r", run, "--client-version", "latest", wallet="owner")
    assert shell.json("json-dump-run", "-r", run)["client_version"] == "", "the manual's `latest` asks for no certain client"


def test_what_cannot_work_on_a_chain_is_refused(shell: Shell, run: str, tmp_path: Path) -> None:
    shell("set-paused", "-r", run, wallet="owner")
    for old, new, said in (
        ('data_location = "Dummy"', 'data_location = { Server = "127.0.0.1:20001" }', "a run on a chain has no data server"),
        ("verification_percent = 0", "verification_percent = 10", "config.verification_percent = 10: must be 0"),
    ):
        (tmp_path / "config.toml").write_text(CONFIG.replace(old, new))
        path = str(tmp_path / "config.toml")
        assert said in shell("update-config", "-r", run, "--config-path", path, wallet="owner", code=2)


def test_rates(shell: Shell, run: str) -> None:
    assert "give --earning" in shell("set-future-epoch-rates", "-r", run, wallet="owner", code=2)
    shell("set-future-epoch-rates", "-r", run, "--earning-rate-total-shared", "12", wallet="owner")
    said = shell("set-future-epoch-rates", "-r", run, "--earning-rate-total-shared", "0.5", wallet="owner", code=2)
    assert "at most 0 decimals" in said
    shell("set-future-epoch-rates", "-r", run, "--slashing-rate-per-client", "0", wallet="owner")
    assert shell.json("json-dump-run", "-r", run)["future_rates"] == {"earning_total_shared": 12, "slashing_per_client": 0}


def test_authorizations(shell: Shell, run: str) -> None:
    owner, member, delegate = (str(shell.wallet(name).pubkey) for name in ("owner", "member", "delegate"))
    assert "none for everybody" in shell("can-join", "-r", run, "--address", member, code=1)
    assert "has granted" in shell("join-authorization-read", "--join-authority", owner, "--authorizer", member)
    assert "may join now" in shell("join-authorization-create", "--authorizer", member, wallet="owner")
    assert "may join already" in shell("join-authorization-create", "--authorizer", member, wallet="owner")
    limited = ("join-authorization-create", "--authorizer", member, "--limit", "3")
    assert "may join now" in shell(*limited, wallet="owner")
    assert "may join already" in shell(*limited, wallet="owner")
    assert shell.json("join-authorization-read", "--join-authority", owner, "--authorizer", member)["limit"] == 3
    assert "can join" in shell("can-join", "-r", run, "--address", member)
    assert "may not join" in shell("can-join", "-r", run, "--address", delegate, "--authorizer", member, code=1)
    words = ("--join-authority", owner, "--delegates-added", delegate)
    assert "1 wallets may join" in shell("join-authorization-delegate", *words, wallet="member")
    assert "can join" in shell("can-join", "-r", run, "--address", delegate, "--authorizer", member)
    read = shell.json("join-authorization-read", "--join-authority", owner, "--authorizer", member)
    assert (read["active"], read["delegates"]) == (True, [delegate])
    assert [row["run_id"] for row in shell.json("list-runs", "--address", delegate)["runs"]] == []
    assert run in [row["run_id"] for row in shell.json("list-runs", "--address", member)["runs"]]
    kept = ("--delegates-clear", "false", "--delegate-added", owner)
    assert "2 wallets may join" in shell("join-authorization-delegate", "--join-authority", owner, *kept, wallet="member")
    new = ("--delegates-clear", "true", "--delegates-added", delegate, owner, "--json")
    told = json.loads(shell("join-authorization-delegate", "--join-authority", owner, *new, wallet="member"))
    assert told["delegates"] == [delegate, owner]
    shell("join-authorization-delegate", "--join-authority", owner, "--delegates-clear", wallet="member")
    assert "may not join" in shell("can-join", "-r", run, "--address", delegate, "--authorizer", member, code=1)
    assert "no longer" in shell("join-authorization-delete", "--authorizer", member, wallet="owner")
    assert "there is no authorization" in shell("join-authorization-delete", "--authorizer", member, wallet="owner", code=2)
    assert "may not join" in shell("can-join", "-r", run, "--address", member, code=1)


def test_naming_oneself_as_authorizer_is_naming_nobody(shell: Shell) -> None:
    """The guides let every member set AUTHORIZER to its own address, also for runs that are open for everybody."""
    member = str(shell.wallet("member").pubkey)
    shell("create-run", "-r", "open", wallet="another")
    shell("join-authorization-create", "--authorizer", EVERYBODY, wallet="another")
    assert "can join" in shell("can-join", "-r", "open", "--address", member, "--authorizer", member)
    other = str(shell.wallet("delegate").pubkey)
    assert "may not join" in shell("can-join", "-r", "open", "--address", member, "--authorizer", other, code=1)


def test_a_runs_model_can_be_got_before_joining(shell: Shell, run: str, tmp_path: Path) -> None:
    from psyche_core.cli.commands.member.predownload import predownload

    def get(name: str) -> Result:
        words = ["--run-id", name, "--rpc", shell.chain.rpc_url, "--base", str(tmp_path), "--model"]
        return CliRunner().invoke(predownload, words)

    gone = get("nothing")
    assert isinstance(gone.exception, AccessRefused)
    repo = (parse_run_file(CONFIG, source="config", run_id="r").model.LLM.checkpoint.settings or {})["repo_id"]
    folder = tmp_path / repo
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    found = get(run)
    assert found.exit_code == 0, found.exception
    assert found.output.splitlines()[-1] == f"the model is in {folder}"
    assert "the run's members have a newer model" in found.output


def test_many_delegates_go_in_parts(shell: Shell) -> None:
    owner, master = shell.wallet("owner"), str(shell.wallet("master").pubkey)
    shell("join-authorization-create", "--authorizer", master, wallet="owner")
    words = [word for _ in range(60) for word in ("--delegates-added", str(Pubkey.new_unique()))]
    said = shell("join-authorization-delegate", "--join-authority", str(owner.pubkey), *words, wallet="master")
    assert said.startswith("60 wallets")


def test_only_a_run_whose_model_is_lost_goes_back_to_its_checkpoint(shell: Shell, run: str) -> None:
    assert "give --resume, too" in shell("set-paused", "-r", run, "--from-checkpoint", wallet="owner", code=2)
    shell("set-paused", "-r", run, wallet="owner")
    said = shell("set-paused", "-r", run, "--resume", "--from-checkpoint", wallet="owner", code=1)
    assert "only a paused or never started run resumes" in said


def test_a_transport_key_is_of_one_run_and_not_of_the_next_with_its_name(shell: Shell, run: str) -> None:
    """As a client derives it that was given no key: the chain is asked which account holds the run's state."""
    wallet = shell.wallet("member")
    settings = SolanaSettings(rpc=shell.chain.rpc_url, wallet_private_key_path=shell.folder / "member.json")
    dump = shell.json("json-dump-run", "-r", run)
    first = transport_key(run, settings)
    assert first.public == wallet.p2p_key(run, bytes(Pubkey.from_string(dump["account"]))).public
    shell("set-paused", "-r", run, wallet="owner")
    shell("close-run", "-r", run, wallet="owner")
    shell("create-run", "-r", run, "-c", "0.1.0", wallet="owner")
    assert transport_key(run, settings).public != first.public


def test_a_run_of_an_older_version_is_closed(shell: Shell, run: str) -> None:
    account = shell.json("json-dump-run", "-r", run)["account"]
    found = shell.portal.call(shell.chain.account, account)
    assert found is not None
    old = (bytes(found.data)[:8] + (2).to_bytes(4, "little") + bytes(found.data)[12:HEADER_BYTES]).ljust(
        OLD_ACCOUNT_BYTES[2], b"\0"
    )
    shell.portal.call(shell.chain.set_account, account, Account(found.lamports, old, found.owner))
    assert shell("close-run", "-r", run, wallet="owner") == f"the run {run!r} is closed\n"


def test_runs_are_listed_and_those_that_wait_come_first(shell: Shell, run: str) -> None:
    shell("create-run", "-r", "unready", wallet="owner")
    listed = [row["run_id"] for row in shell.json("list-runs")["runs"]]
    assert run in listed
    assert "unready" not in listed
    everything = shell.json("list-runs", "--all")["runs"]
    assert "unready" in [row["run_id"] for row in everything]
    phases = [row["run_state"] == "WaitingForMembers" for row in everything]
    assert phases == sorted(phases, reverse=True)
    nobody = str(Pubkey.new_unique())
    assert shell.json("list-runs", "--all", "--authorizer", nobody)["runs"] == []


def test_a_members_view(shell: Shell, run: str) -> None:
    address = str(shell.wallet("member").pubkey)
    user = shell.json("json-dump-user", "-r", run, "--wallet", address)
    assert (user["pending"], user["slot"], user["earned"]) == (False, None, 0)
    assert user["lamports"] > 0
    assert "the sender is neither pending nor healthy" in shell("withdraw", "-r", run, wallet="member", code=1)
    assert "the sender is neither pending nor healthy" in shell("expel", "-r", run, "--wallet", address, wallet="owner", code=1)
    assert "only the owner may do that" in shell("expel", "-r", run, "--wallet", address, wallet="member", code=1)


BAD: list[tuple[list[str], str]] = [
    (["json-dump-run", "-r", "x" * 33], "1 to 32 bytes"),
    (["json-dump-run", "-r", "none"], "there is no run 'none'"),
    (["json-dump-run", "-r", "none", "--rpc", "localhost"], "expected an endpoint like http"),
    (["json-dump-run", "-r", "none", "--coordinator-program-id", "zz"], "--coordinator-program-id: must be an address"),
    (["set-paused", "-r", "none"], "no wallet given"),
    (["set-paused", "-r", "none", "-w", "/nowhere"], "cannot read the wallet /nowhere"),
    (["treasurer-top-up-rewards", "-r", "none", "--collateral-amount", "1"], "no wallet given"),
]


@pytest.mark.parametrize(("words", "sentence"), BAD)
def test_bad_input_is_one_sentence(shell: Shell, words: list[str], sentence: str) -> None:
    for code in (2, 1):
        try:
            assert sentence in shell(*words, code=code)
        except AssertionError:
            if code == 1:
                raise
        else:
            return


def test_what_is_no_address_is_a_usage_error(shell: Shell) -> None:
    assert "must be an address" in shell("can-join", "-r", "none", "--address", "hello", code=2)


@pytest.mark.parametrize(("text", "units"), [("1", 1_000_000), ("0.000001", 1), ("12.5", 12_500_000)])
def test_amounts(text: str, units: int) -> None:
    assert units_of(text, 6) == units


@pytest.mark.parametrize("text", ["0", "-1", "0.0000001", "1e30", "NaN", "Infinity", "x", ""])
def test_bad_amounts(text: str) -> None:
    with pytest.raises(ConfigError, match="expected an amount"):
        units_of(text, 6)


def test_a_config_file_with_mistakes_names_them_all(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.replace("warmup_time = 100", "warmup_tim = 100").replace("epoch_time = 1000", "epoch_tim = 1"))
    said = shell("create-run", "-r", "mistakes", wallet="owner")
    said = shell("update-config", "-r", "mistakes", "--config-path", str(path), wallet="owner", code=2)
    assert "warmup_tim" in said
    assert "epoch_tim" in said


def a_token(shell: Shell, *, holder: str, amount: int) -> str:
    """A new token of 6 decimals, of which a wallet has so many units."""
    mint = Pubkey.new_unique()
    content = struct.pack("<I32sQBBI32s", 0, bytes(32), amount, 6, 1, 0, bytes(32))
    owner = shell.wallet(holder).pubkey
    held = struct.pack("<32s32sQI32sBIQQI32s", bytes(mint), bytes(owner), amount, 0, bytes(32), 1, 0, 0, 0, 0, bytes(32))
    for at, data in ((mint, content), (tokens.associated(owner, mint), held)):
        shell.portal.call(shell.chain.set_account, str(at), Account(10**9, data, TOKEN))
    return str(mint)


def units(shell: Shell, wallet: str, mint: str) -> int:
    at = tokens.associated(shell.wallet(wallet).pubkey, Pubkey.from_string(mint))
    found = shell.portal.call(shell.chain.account, str(at))
    return 0 if found is None else tokens.parse(found).amount


def pay(shell: Shell, run: str, **earned: int) -> None:
    """Write into the run's state what members (wallets) have earned, as the end of an epoch would."""
    address = shell.json("json-dump-run", "-r", run)["account"]
    account = shell.portal.call(shell.chain.account, address)
    assert account is not None
    data = bytes(account.data)
    state = CoordinatorAccount.parse(data).state
    assert state is not None
    balances = (Balance(bytes(shell.wallet(wallet).pubkey), units) for wallet, units in earned.items())
    state = replace(state, accounts=tuple(sorted(balances, key=lambda balance: balance.signer)))
    data = data[:HEADER_BYTES] + image.encode(state) + data[HEADER_BYTES + image.SIZE :]
    shell.portal.call(shell.chain.set_account, address, Account(account.lamports, data, account.owner))


def test_a_run_that_is_paid_for_by_a_treasurer(shell: Shell) -> None:
    mint = a_token(shell, holder="owner", amount=10_000_000)
    assert "give --treasurer-collateral-mint" in shell(
        "create-run", "-r", "paid", "--treasurer-index", "1", wallet="owner", code=2
    )
    made = shell.json("create-run", "-r", "paid", "--treasurer-collateral-mint", mint, wallet="owner")
    assert made["treasurer_run"] == shell.json("json-dump-run", "-r", "paid")["main_authority"]
    shell("update-config", "-r", "paid", "--config-path", str(shell.config), wallet="owner")
    shell("set-future-epoch-rates", "-r", "paid", "--earning-rate-total-shared", "0.001", wallet="owner")
    assert shell.json("json-dump-run", "-r", "paid")["future_rates"] == {"earning_total_shared": 1000, "slashing_per_client": 0}
    said = shell("set-future-epoch-rates", "-r", "paid", "--slashing-rate-per-client", "0.0000001", wallet="owner", code=2)
    assert "at most 6 decimals" in said
    shell("set-paused", "-r", "paid", "--resume", wallet="owner")
    assert "belongs to" in shell("set-paused", "-r", "paid", wallet="member", code=2)

    pay(shell, "paid", member=2_500_000)
    assert "the vault is empty" in shell("treasurer-claim-rewards", "-r", "paid", wallet="member", code=2)
    shell("treasurer-top-up-rewards", "-r", "paid", "--collateral-amount", "2", wallet="owner")
    treasury = shell.json("json-dump-run", "-r", "paid")["treasurer"]
    assert (treasury["held"], treasury["owed"], treasury["missing"]) == (2_000_000, 2_500_000, 500_000)
    assert "500000 more are owed" in shell("treasurer-claim-rewards", "-r", "paid", wallet="member")
    assert units(shell, "member", mint) == 2_000_000
    shell("treasurer-top-up-rewards", "-r", "paid", "--collateral-amount", "1.5", wallet="owner")
    shell("treasurer-claim-rewards", "-r", "paid", wallet="member")
    assert units(shell, "member", mint) == 2_500_000
    assert "nothing is owed" in shell("treasurer-claim-rewards", "-r", "paid", wallet="member", code=2)
    user = shell.json("json-dump-user", "-r", "paid", "--address", str(shell.wallet("member").pubkey))
    assert user["treasurer"] == {"claimed": 2_500_000, "claimable": 0}

    shell("set-paused", "-r", "paid", wallet="owner")
    shell.pass_time(1)
    shell("close-run", "-r", "paid", wallet="owner")
    assert units(shell, "owner", mint) == 10_000_000 - 2_500_000
    assert "there is no run" in shell("treasurer-claim-rewards", "-r", "paid", wallet="member", code=2)


def a_paid_run(shell: Shell, name: str, mint: str, vault: str) -> None:
    """A run that pays in a token of the owner's, paused. vault: tokens put in."""
    shell("create-run", "-r", name, "--treasurer-collateral-mint", mint, wallet="owner")
    shell("update-config", "-r", name, "--config-path", str(shell.config), wallet="owner")
    shell("treasurer-top-up-rewards", "-r", name, "--collateral-amount", vault, wallet="owner")


def test_an_owner_pays_all_members_and_can_close_the_run(shell: Shell) -> None:
    mint = a_token(shell, holder="owner", amount=10_000_000)
    a_paid_run(shell, "everybody", mint, "1.5")
    assert "nobody is owed" in shell("treasurer-pay-members", "-r", "everybody", wallet="owner", code=2)
    owed = {f"worker{number}": 100_000 * (number + 1) for number in range(8)}
    for name in owed:
        shell.wallet(name, lamports=0)  # without a lamport of their own
    pay(shell, "everybody", **owed)
    run = Pubkey.from_string(shell.json("json-dump-run", "-r", "everybody")["main_authority"])
    at = treasurer.participant_address(run, shell.wallet("worker3").pubkey)
    shell.portal.call(shell.chain.airdrop, str(at), 10**6)  # anybody can, and it is no participant for that

    assert "belongs to" in shell("treasurer-pay-members", "-r", "everybody", wallet="member", code=2)
    assert "pay them" in shell("close-run", "-r", "everybody", wallet="owner", code=2)
    first = shell.json("treasurer-pay-members", "-r", "everybody", wallet="owner")
    assert (first["units"], first["still_owed"]) == (1_500_000, 2_100_000)
    assert "the vault is empty" in shell("treasurer-pay-members", "-r", "everybody", wallet="owner", code=2)
    shell("treasurer-top-up-rewards", "-r", "everybody", "--collateral-amount", "3", wallet="owner")
    assert "2100000 units" in shell("treasurer-pay-members", "-r", "everybody", wallet="owner")
    assert {name: units(shell, name, mint) for name in owed} == owed
    assert shell("treasurer-free-balances", "-r", "everybody", wallet="member") == "8 balances of 'everybody' are freed\n"
    assert shell.json("json-dump-run", "-r", "everybody")["accounts"] == []
    assert "can be freed" in shell("treasurer-free-balances", "-r", "everybody", wallet="member", code=2)

    shell.pass_time(1)
    shell("close-run", "-r", "everybody", wallet="owner")
    assert units(shell, "owner", mint) == 10_000_000 - 3_600_000


def test_who_was_paid_by_a_run_of_the_same_name_before_is_paid_by_this_one(shell: Shell) -> None:
    mint = a_token(shell, holder="owner", amount=10_000_000)
    for earlier in (0, 1):
        a_paid_run(shell, "again", mint, "1")
        pay(shell, "again", member=100_000, other=100_000)
        user = shell.json("json-dump-user", "-r", "again", "--address", str(shell.wallet("member").pubkey))
        assert user["treasurer"] == {"claimed": 0, "claimable": 100_000}
        assert "100000 units" in shell("treasurer-claim-rewards", "-r", "again", wallet="member")
        assert "1 member was paid 100000" in shell("treasurer-pay-members", "-r", "again", wallet="owner")
        assert (units(shell, "member", mint), units(shell, "other", mint)) == (100_000 * (earlier + 1),) * 2
        shell.pass_time(1)  # no run is closed in the slot it was made in
        shell("close-run", "-r", "again", wallet="owner")


def squat(shell: Shell, name: str, mint: str) -> Pubkey:
    """A stranger takes the treasurer's number that follows from a run's name, for a run of its own; its vault."""
    other = f"not {name}"
    number = str(default_index(name))
    made = shell.json(
        "create-run", "-r", other, "--treasurer-collateral-mint", mint, "--treasurer-index", number, wallet="squatter"
    )
    return Pubkey.from_string(made["vault"])


def held(shell: Shell, vault: Pubkey) -> int:
    account = shell.portal.call(shell.chain.account, str(vault))
    return 0 if account is None else tokens.parse(account).amount


@pytest.mark.parametrize("first", [True, False], ids=["before the run is made", "afterwards"])
def test_who_takes_the_treasurers_number_of_a_name_gets_nothing(shell: Shell, first: bool) -> None:
    """The owner is paid for with the number of the name when it is free, and with the next one when it is not."""
    mint = a_token(shell, holder="owner", amount=10_000_000)
    name = f"squatted {first}"
    if first:
        vault = squat(shell, name, mint)
        a_paid_run(shell, name, mint, "2")
        assert shell.json("json-dump-run", "-r", name)["treasurer"]["held"] == 2_000_000
    else:
        shell("create-run", "-r", name, wallet="owner")
        vault = squat(shell, name, mint)
        for words in (("treasurer-top-up-rewards", "--collateral-amount", "2"), ("treasurer-claim-rewards",)):
            assert "no treasurer pays" in shell(words[0], "-r", name, *words[1:], wallet="owner", code=2)
        assert "treasurer" not in shell.json("json-dump-run", "-r", name)
    wrong = str(default_index("somebody else's"))
    said = shell("set-paused", "-r", name, "--treasurer-index", wrong, wallet="owner" if first else "member", code=2)
    assert "leave --treasurer-index out" in said
    assert held(shell, vault) == 0


def test_a_run_that_names_anothers_treasurer_is_paid_by_nobody(shell: Shell) -> None:
    """Anybody can make a run whose instance names the treasurer's run of somebody else as its owner."""
    mint = a_token(shell, holder="owner", amount=10_000_000)
    a_paid_run(shell, "honest", mint, "1")
    paying = shell.json("json-dump-run", "-r", "honest")["main_authority"]
    at = shell.json("create-run", "-r", "copycat", wallet="squatter")["instance"]
    account = shell.portal.call(shell.chain.account, at)
    assert account is not None
    data = bytes(account.data)[:16] + bytes(Pubkey.from_string(paying)) + bytes(account.data)[48:]
    shell.portal.call(shell.chain.set_account, at, Account(account.lamports, data, account.owner))
    for words in (("treasurer-top-up-rewards", "--collateral-amount", "1"), ("treasurer-claim-rewards",)):
        assert "pays another run" in shell(words[0], "-r", "copycat", *words[1:], wallet="owner", code=1)
    assert "pays another run" in shell("json-dump-run", "-r", "copycat", code=1)
    assert shell.json("json-dump-run", "-r", "honest")["treasurer"]["held"] == 1_000_000


def test_a_pool_of_somebody_else_gets_no_deposit(shell: Shell) -> None:
    mint = a_token(shell, holder="member", amount=5_000_000)
    pool = "mining-pool"
    shell(pool, "create", "--index", "9", "--mint", mint, wallet="squatter")
    shell(pool, "update", "--index", "9", "--cap", "4", "--lender-cap", "4", wallet="squatter")
    words = ("--index", "9", "--authority", str(shell.wallet("owner").pubkey), "--amount", "1")
    assert "nothing was deposited" in shell(pool, "deposit", *words, wallet="member", code=2)
    assert units(shell, "member", mint) == 5_000_000


def test_a_run_of_another_owner_than_the_one_named_is_refused(shell: Shell) -> None:
    """A name belongs to whoever took it first. Owned by a wallet, or for one by the treasurer."""
    owner, squatter = (("--owner", str(shell.wallet(name).pubkey)) for name in ("owner", "squatter"))
    mint = a_token(shell, holder="owner", amount=10_000_000)
    shell("create-run", "-r", "mine", wallet="owner")
    a_paid_run(shell, "mine and paid", mint, "1")
    for name in ("mine", "mine and paid"):
        assert shell.json("json-dump-run", "-r", name, *owner)["run_id"] == name
        for words in (("json-dump-run",), ("can-join", "--address", str(shell.wallet("member").pubkey))):
            said = shell(words[0], "-r", name, *words[1:], *squatter, code=1)
            assert f"belongs to {shell.wallet('owner').pubkey}" in said


def test_a_mining_pool(shell: Shell) -> None:
    mint, prize = a_token(shell, holder="member", amount=5_000_000), a_token(shell, holder="owner", amount=900)
    pool = "mining-pool"
    ours = ("--authority", str(shell.wallet("owner").pubkey))
    shell(pool, "create", "--index", "7", "--mint", mint, wallet="owner")
    said = shell(pool, "deposit", "--index", "7", *ours, "--amount", "1", wallet="member", code=1)
    assert "the deposit would exceed the pool's or the lender's limit" in said
    shell(pool, "update", "--index", "7", "--cap", "4", "--lender-cap", "4", wallet="owner")
    shell(pool, "deposit", "--index", "7", *ours, "--amount", "3", wallet="member")
    assert units(shell, "member", mint) == 2_000_000
    shell(pool, "extract", "--index", "7", "--amount", "1", wallet="owner")
    assert units(shell, "owner", mint) == 1_000_000
    assert "not open yet" in shell(pool, "claim", "--index", "7", wallet="member", code=2)
    vault = Pubkey.from_string(shell.json(pool, "open-claims", "--index", "7", "--mint", prize, wallet="owner")["vault"])
    holder = struct.pack("<32s32s", bytes(Pubkey.from_string(prize)), bytes(layout.pool_address(7)))
    filled = holder + struct.pack("<QI32sBIQQI32s", 900, 0, bytes(32), 1, 0, 0, 0, 0, bytes(32))
    shell.portal.call(shell.chain.set_account, str(vault), Account(10**9, filled, TOKEN))
    shell(pool, "claim", "--index", "7", wallet="member")
    assert units(shell, "member", prize) == 900
    assert "nothing to pay out" in shell(pool, "claim", "--index", "7", wallet="member", code=2)
    shell(pool, "open-refunds", "--index", "7", wallet="owner")
    shell(pool, "refund", "--index", "7", wallet="member")
    assert units(shell, "member", mint) == 4_000_000
    shown = shell.json(pool, "show", "--index", "7", "--address", str(shell.wallet("member").pubkey))
    assert (shown["deposited"], shown["lender"]["refunded"]) == (3_000_000, 2_000_000)
    assert "there is no pool 8" in shell(pool, "show", "--index", "8", code=2)


def test_a_run_of_the_other_implementation_can_be_looked_at(shell: Shell) -> None:
    big = Pubkey.new_unique()
    at = Pubkey.find_program_address([b"coordinator", b"consilience-40b"], reference.PROGRAM_ID)[0]
    content = reference.INSTANCE_MAGIC + b"\xff" + b"m" * 32 + b"j" * 32 + bytes(big) + struct.pack("<I", 15) + b"consilience-40b"
    for key, data in ((at, content.ljust(reference.INSTANCE_BYTES, b"\0")), (big, bytes(reference_account()))):
        shell.portal.call(shell.chain.set_account, str(key), Account(10**9, data, reference.PROGRAM_ID))
    dump = shell.json("json-dump-run", "-r", "consilience-40b", "--program", "reference")
    assert (dump["nonce"], dump["run_state"], dump["account"]) == (777, "RoundTrain", str(big))
    assert "has no run 'other'" in shell("json-dump-run", "-r", "other", "--program", "reference", code=2)


def test_a_members_address_is_deleted_for_its_rent(shell: Shell, run: str) -> None:
    member = shell.wallet("member")
    instance, _ = instance_address(run)
    writing = address_record.publication(member.pubkey, instance, p2p=b"p" * 32, address=b"here", made=False)

    async def write() -> None:
        async with Rpc([Endpoint.parse(shell.chain.rpc_url)]) as rpc:
            for instructions in writing:
                await Sender(rpc, member).send(*instructions, timeout=20)

    shell.portal.call(write)
    assert "lamports were returned" in shell("close-address", "-r", run, wallet="member")
    assert "there is no address" in shell("close-address", "-r", run, wallet="member", code=2)


def test_wallets_are_made_and_filled(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "new.json"
    env = {"PSYCHE_RPC": shell.chain.rpc_url}

    def solana(*words: str) -> str:
        return CliRunner(env=env).invoke(SOLANA.load(), list(words), catch_exceptions=False).output.strip()

    address = solana("keygen", str(file))
    assert solana("address", str(file)) == address
    assert file.stat().st_mode & 0o777 == 0o600
    assert solana("balance", "--address", address) == "0.000000000 SOL"
    solana("airdrop", "--address", address, "--sol", "2.5")
    assert solana("balance", "--address", address) == "2.500000000 SOL"
    listed = json.loads(solana("programs", "--json", "--out", str(tmp_path / "so")))
    assert hashlib.sha256((tmp_path / "so" / "authorizer.so").read_bytes()).hexdigest() == listed["authorizer"]["sha256"]
