"""The commands, run as a shell would run them, against the real programs on a local chain."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from reference_bytes import account as reference_account
from solders.account import Account
from solders.pubkey import Pubkey

from plugins.backend_solana.tests.commands.shell import CONFIG, RUN_MANAGER, SOLANA, START, Shell
from psyche_backend_solana.commands.run.owner import data_index_at, read_config
from psyche_backend_solana.layouts import address_record, reference
from psyche_backend_solana.layouts.coordinator import instance_address
from psyche_backend_solana.layouts.coordinator_accounts import HEADER_BYTES, OLD_ACCOUNT_BYTES
from psyche_backend_solana.lookup.transport_key import transport_key
from psyche_backend_solana.rpc.client import Rpc
from psyche_backend_solana.rpc.endpoints import Endpoint
from psyche_backend_solana.sending.sender import Sender
from psyche_backend_solana.settings import SolanaSettings
from psyche_core.config.run_config import parse_run_file
from psyche_core.coordinator.round.batch_size import batch_size
from psyche_core.errors import AccessRefused
from psyche_core.testing.command import CommandConformance
from psyche_core.types import RunState
from tests.unit.coordinator.checked_run import CHEAT, checked_run

EVERYBODY = "1" * 32


class TestRunManager(CommandConformance):
    registration = RUN_MANAGER
    hooks = "psyche_backend_solana.hooks"


class TestSolana(CommandConformance):
    registration = SOLANA
    hooks = "psyche_backend_solana.hooks"


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
    before = shell.portal.call(shell.chain.account, dump["main_authority"])
    said = shell("close-run", "-r", "life", wallet="owner")
    after = shell.portal.call(shell.chain.account, dump["main_authority"])
    assert before is not None
    assert after is not None
    assert re.fullmatch(r"the run 'life' is closed; 1\.\d{9} SOL of rent came back to this wallet\n", said), said
    rent = round(float(said.split()[5]) * 10**9)
    assert rent - 20_000 < after.lamports - before.lamports < rent, "less the fee"
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
    server = 'data_location = { Server = "127.0.0.1:20001" }'
    (tmp_path / "config.toml").write_text(CONFIG.replace('data_location = "Dummy"', server))
    said = shell("update-config", "-r", run, "--config-path", str(tmp_path / "config.toml"), wallet="owner", code=2)
    assert "a run on a chain has no data server" in said


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
    assert shell("close-run", "-r", run, wallet="owner").startswith(f"the run {run!r} is closed; ")


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


def test_what_checks_say_of_members_is_dumped(shell: Shell, run: str) -> None:
    states, _ = checked_run()
    checked = next(state for state in states if state.epoch.clients[CHEAT].standing.strikes == 1 and state.epoch.challenges)
    shell.change_state(run, lambda state: replace(checked, run_id=state.run_id, instance=state.instance))
    dump = shell.json("json-dump-run", "-r", run)
    assert [(client["strikes"], client["watched"]) for client in dump["clients"]] == [
        (1, True) if slot == CHEAT else (0, False) for slot in range(len(dump["clients"]))
    ]
    wallets = [client["address"] for client in dump["clients"]]
    assert [(one["height"], one["trainer"], one["verifier"], one["stage"]) for one in dump["challenges"]] == [
        (one.height, wallets[one.trainer], wallets[one.verifier], one.stage.name) for one in checked.epoch.challenges
    ]
    cheat = shell.json("json-dump-user", "-r", run, "--wallet", wallets[CHEAT])
    assert (cheat["strikes"], cheat["watched"]) == (1, True)
    assert cheat["challenges"] == [one for one in dump["challenges"] if wallets[CHEAT] in (one["trainer"], one["verifier"])]
    assert len(cheat["challenges"]) < len(dump["challenges"])
    nobody = shell.json("json-dump-user", "-r", run, "--wallet", EVERYBODY)
    assert (nobody["strikes"], nobody["watched"], nobody["challenges"]) == (0, False, [])

    shell.change_state(run, lambda state: replace(state, run_state=RunState.Cooldown))
    assert not any(client["watched"] for client in shell.json("json-dump-run", "-r", run)["clients"])


def test_who_pauses_can_wait_until_the_run_is(shell: Shell, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No member ticks here, so the waiting wallet does."""
    monkeypatch.setattr("psyche_backend_solana.commands.run.owner.POLL_SECONDS", 0.01)
    monkeypatch.setattr("psyche_backend_solana.commands.run.owner.TICK_SECONDS", 0.02)
    assert "leave --resume out" in shell("set-paused", "-r", run, "--resume", "--wait", wallet="owner", code=2)
    states, _ = checked_run()
    shell.change_state(run, lambda state: replace(states[2], run_id=state.run_id, instance=state.instance))
    said = shell("set-paused", "-r", run, wallet="owner")
    assert said.startswith(f"the run {run!r} is in RoundTrain and pauses after its present round and the cooldown (--wait")
    assert "pause the run first (set-paused --wait)" in shell("close-run", "-r", run, wallet="owner", code=2)

    shell.change_state(run, lambda state: replace(state, run_state=RunState.Cooldown, since=START - 1000, pending_pause=False))
    assert "is in Cooldown and pauses after the cooldown" in shell("set-paused", "-r", run, wallet="owner")
    assert shell("set-paused", "-r", run, "--wait", wallet="owner") == f"the run {run!r} is now Paused\n"


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


def test_a_config_file_with_mistakes_names_them_all(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.replace("warmup_time = 100", "warmup_tim = 100").replace("epoch_time = 1000", "epoch_tim = 1"))
    said = shell("create-run", "-r", "mistakes", wallet="owner")
    said = shell("update-config", "-r", "mistakes", "--config-path", str(path), wallet="owner", code=2)
    assert "warmup_tim" in said
    assert "epoch_tim" in said


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
