"""What the testnet does before it starts anybody. The rest is in tests/e2e."""

from __future__ import annotations

import json
import shlex
import socket
from pathlib import Path

import pytest

from psyche_core.cli.commands.server import server as server_command
from psyche_core.cli.commands.testnet import start
from psyche_core.config.options.loading import load_settings
from psyche_core.config.options.server import ServerSettings
from psyche_core.config.options.testnet import TestnetSettings
from psyche_core.config.run_config import RunFile, load_data_file, load_run_file
from psyche_core.errors import ConfigError, UserError
from psyche_core.storage.checkpoint_names import MANIFEST_FILE, checkpoint_path
from psyche_core.telemetry.events import Problem, StepApplied
from psyche_core.telemetry.sinks import to_json
from psyche_core.testnet.arguments import held_out, server_arguments
from psyche_core.testnet.results_folder import MARKER, prepare_folder, reserved_folder, stopped_sentence, trained_steps
from psyche_core.testnet.testnet import check_port, plan_kills
from tests.conftest import LocalTestnet


@pytest.fixture
def run(local_testnet: LocalTestnet) -> RunFile:
    return load_run_file(local_testnet() / "state.toml")


@pytest.fixture
def settings(run: RunFile) -> TestnetSettings:
    return load_settings(TestnetSettings, {"config_path": Path("anywhere"), "num_clients": 3})


def test_a_new_folder_gets_its_rooms_and_the_marker(tmp_path: Path, settings: TestnetSettings, run: RunFile) -> None:
    prepare_folder(tmp_path / "deep" / "out", settings, run)
    out = tmp_path / "deep" / "out"
    assert {path.name for path in out.iterdir()} == {"events", "logs", "keys", MARKER}
    assert json.loads((out / MARKER).read_text())["num_clients"] == 3


def test_an_earlier_testnet_s_folder_is_made_anew_but_for_the_user_s_own_files(
    tmp_path: Path, settings: TestnetSettings, run: RunFile
) -> None:
    prepare_folder(tmp_path / "out", settings, run)
    for name in ("keys/client-1.key", "report.json", "notes.txt"):
        (tmp_path / "out" / name).write_text("old")
    prepare_folder(tmp_path / "out", settings, run)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"events", "logs", "keys", MARKER, "notes.txt"}
    assert list((tmp_path / "out" / "keys").iterdir()) == []


def trained(out: Path, run: RunFile, *, step: int) -> Path:
    """A folder of a testnet that applied `step`, and saved a checkpoint of the step before. Returns the checkpoint."""
    (out / "events" / "client-2.jsonl").write_text(
        f"{to_json(StepApplied(1, step, 3, 3, 0.1))}\n{to_json(Problem('error', '-'))}\n"
    )
    saved = checkpoint_path(out / "checkpoint", run.run_id, step - 1)
    saved.mkdir(parents=True)
    (saved / MANIFEST_FILE).write_text("{}")
    return saved


def test_an_earlier_run_is_kept_until_its_owner_says_otherwise(tmp_path: Path, settings: TestnetSettings, run: RunFile) -> None:
    out = tmp_path / "out"
    prepare_folder(out, settings, run)
    saved = trained(out, run, step=73)
    with pytest.raises(UserError) as refused:
        prepare_folder(out, settings, run)
    assert refused.value.sentence == f"{out} holds a run at step 73; choose another --out, or --overwrite to delete it"
    assert saved.exists()

    overwriting = settings.model_copy(update={"overwrite": True})
    begins_there = overwriting.model_copy(update={"first_client_checkpoint": str(saved)})
    with pytest.raises(UserError, match=r"--first-client-checkpoint .* lies in .*choose another --out"):
        prepare_folder(out, begins_there, run)
    assert saved.exists()

    prepare_folder(out, overwriting, run)
    assert not saved.exists()
    assert trained_steps(out) is None


def test_a_stopped_testnet_says_how_to_go_on(tmp_path: Path, settings: TestnetSettings, run: RunFile) -> None:
    out = tmp_path / "out"
    prepare_folder(out, settings, run)
    assert stopped_sentence(out, settings, run).startswith("stopped before the first step; ")
    saved = trained(out, run, step=73)
    sentence = stopped_sentence(out, settings, run)
    assert sentence.startswith(f"stopped at step 73; report, events and logs are in {out}. The run itself cannot be continued")
    command = shlex.split(sentence.split("`")[1])
    assert command[:3] == ["psyche", "testnet", "start"]
    given = start.make_context("start", command[3:]).params
    assert given["first_client_checkpoint"] == str(saved)
    assert given["out"] not in (None, out)


def test_somebody_else_s_folder_is_refused_and_left_alone(tmp_path: Path, settings: TestnetSettings, run: RunFile) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.json").write_text("precious")
    with pytest.raises(UserError, match="not empty and was not made by a testnet"):
        prepare_folder(tmp_path / "mine", settings, run)
    assert (tmp_path / "mine" / "report.json").read_text() == "precious"


def test_a_folder_in_which_a_testnet_runs_is_not_emptied(tmp_path: Path, settings: TestnetSettings, run: RunFile) -> None:
    out = tmp_path / "out"
    with reserved_folder(out):
        prepare_folder(out, settings, run)
        with pytest.raises(UserError, match=r"a testnet is running in .*; wait for it or stop it, or choose another --out"):
            with reserved_folder(out):
                pass
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.json").write_text("precious")
    with pytest.raises(UserError, match="not empty and was not made by a testnet"), reserved_folder(tmp_path / "mine"):
        pass
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["report.json"]
    with reserved_folder(out):
        prepare_folder(out, settings, run)


def test_a_file_where_the_folder_should_be_is_a_sentence(tmp_path: Path, settings: TestnetSettings, run: RunFile) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(UserError, match="choose another folder with --out"):
        prepare_folder(tmp_path / "out", settings, run)


def test_a_port_in_use_is_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"cannot use port {port} on 127\.0\.0\.1: .*--server-port"):
            check_port(port)
        with pytest.raises(UserError, match="choose another with --relay-port, or 0"):
            check_port(port, option="--relay-port")
    check_port(port)


def test_the_server_runs_a_relay_if_one_is_wanted(tmp_path: Path, settings: TestnetSettings) -> None:
    """The command line, as the server reads it."""

    def read(wanted: TestnetSettings) -> tuple[bool, int]:
        group, name, *words = server_arguments(wanted, state=tmp_path / "state.toml", out=tmp_path, serves_data=True)
        assert (group, name) == ("server", "run")
        given = load_settings(ServerSettings, server_command.commands[name].make_context(name, words).params)
        return given.with_relay, given.relay_port

    assert read(settings) == (False, 3340)
    assert read(settings.model_copy(update={"with_relay": True, "relay_port": 0})) == (True, 0)


def test_the_port_of_a_relay_that_nobody_starts_is_refused() -> None:
    given = {"config_path": Path("anywhere"), "num_clients": 3, "relay_port": 3341}
    with pytest.raises(ConfigError, match=r"^--relay-port is for the relay beside the server, which starts"):
        load_settings(TestnetSettings, given)
    assert load_settings(TestnetSettings, {**given, "with_relay": True}).relay_port == 3341


def test_without_kills_asked_for_nobody_is_killed(settings: TestnetSettings, run: RunFile) -> None:
    assert plan_kills(settings, run) is None


def test_a_plan_of_kills_keeps_what_the_run_needs(settings: TestnetSettings, run: RunFile) -> None:
    asked = settings.model_copy(
        update={"random_kill_num": 1, "random_kill_seed": 3, "random_kill_interval": 1.0, "allowed_to_kill": "2"}
    )
    kills = plan_kills(asked, run)
    assert kills is not None
    names = ["client-1", "client-2", "client-3"]
    assert kills.victims(0.0, whole=names) == []
    assert kills.victims(1.0, whole=names) == ["client-2"]
    assert kills.victims(9.0, whole=names[:2]) == [], "two have to stay"
    with pytest.raises(UserError, match="at most 1 can be killed"):
        plan_kills(asked.model_copy(update={"random_kill_num": 2, "allowed_to_kill": None}), run)


def test_a_seed_that_was_not_given_is_told(settings: TestnetSettings, run: RunFile, capsys: pytest.CaptureFixture[str]) -> None:
    plan_kills(settings.model_copy(update={"random_kill_num": 1}), run)
    assert "--random-kill-seed " in capsys.readouterr().err


@pytest.mark.parametrize("given", ["", "1,", "one", "1;2"])
def test_numbers_of_clients_that_are_none_are_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=r"--allowed-to-kill: got .*; must be numbers of clients"):
        load_settings(TestnetSettings, {"config_path": Path("x"), "num_clients": 3, "allowed_to_kill": given})


def test_held_out_text_is_where_the_server_keeps_it(local_testnet: LocalTestnet) -> None:
    data = load_data_file(local_testnet() / "data.toml")
    assert held_out(data) == data.dir / "validation"
    assert held_out(None) is None
    assert held_out(data.model_copy(update={"text": None})) is None
    assert data.text is not None
    assert held_out(data.model_copy(update={"text": data.text.model_copy(update={"held_out": 0.0})})) is None
