"""The how-to pages: their commands run, or parse where they need a server; their tables are valid in a run file."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from command_lines import parse

from live_run import TINY
from psyche_core.cli import cli
from psyche_core.config.run_config import Choice, VerificationConfig, parse_run_file
from psyche_core.hookspecs import DataRegistration
from psyche_core.plugins import PluginRegistry, validate_settings
from psyche_core.training import sidecar
from tests.unit.audit.recorded_run import record_run

REPOSITORY = Path(__file__).parents[2]
PAGES = {
    path.name: path.read_text()
    for path in sorted((REPOSITORY / "docs" / "how-to").glob("*.md"))
    if not path.name.startswith("solana-")  # plugins/backend_solana/tests/test_how_to.py
}
COMMANDS = [
    line
    for page in PAGES.values()
    for block in re.findall(r"```sh\n(.*?)```", page, flags=re.DOTALL)
    for line in block.splitlines()
]
TABLES = [block for page in PAGES.values() for block in re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)]
NEEDS_A_SERVER = "psyche client train"
HOSTS_A_RUN = "psyche server run"
NEEDS_A_CLIENT = "psyche sidecar"
WATCHES = ("psyche web", "psyche replay", "psyche testnet start", "psyche bench verification")


def test_there_is_something_to_check() -> None:
    assert len(COMMANDS) >= 6
    assert len(TABLES) >= 8


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith(NEEDS_A_SERVER)])
def test_each_command_that_needs_a_server_parses(command: str) -> None:
    assert parse(shlex.split(command)[1:])["run_id"] == "local-testnet"


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith(HOSTS_A_RUN)])
def test_each_command_that_hosts_a_run_is_the_readme_s_and_an_owner_s_decision(command: str) -> None:
    given = parse(shlex.split(command)[1:])
    decision = {name: given[name] for name in ("restart_from_checkpoint", "checkpoint", "restart_from_step", "points_per_epoch")}
    assert [value for value in decision.values() if value is not None] in ([True], ["hf://friend/model-step-500"], [121], [1000])
    readme = (REPOSITORY / "README.md").read_text()
    [hosted] = re.findall(rf"^{HOSTS_A_RUN} .*--save-state-dir.*$", readme, flags=re.MULTILINE)
    assert given == parse(shlex.split(hosted)[1:]) | decision


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith(WATCHES)])
def test_each_command_that_shows_a_run_parses(command: str) -> None:
    assert parse(shlex.split(command)[1:])


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith(NEEDS_A_CLIENT)])
def test_each_command_that_needs_a_client_parses(command: str) -> None:
    given = sidecar.parser().parse_args(shlex.split(command)[2:])
    assert given.start_rank + given.local_ranks <= given.world_size


@pytest.mark.timeout(400)  # processes that import torch, on a busy machine
def test_the_other_commands_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = tmp_path / "examples" / "local_testnet"
    shutil.copytree(REPOSITORY / "examples" / "local_testnet", example)
    model = example / "model" / "config.json"
    model.write_text(json.dumps(json.loads(model.read_text()) | TINY))  # several commands compute 160 steps
    (tmp_path / "books").mkdir()
    record_run(tmp_path / "runs" / "demo", example, steps=160)
    for number in range(3):
        (tmp_path / "books" / f"{number}.txt").write_text("To be, or not to be, that is the question.\n" * 400)
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:
        if not command.startswith((NEEDS_A_SERVER, HOSTS_A_RUN, NEEDS_A_CLIENT, *WATCHES)):
            program, *words = shlex.split(command)
            assert program == "psyche"
            done = CliRunner().invoke(cli, words)
            assert done.exit_code == 0, f"{command}: {done.output}"
    assert (tmp_path / "tokens" / "train").is_dir()


@pytest.mark.parametrize("table", TABLES)
def test_each_table_is_valid_in_a_run_file(table: str) -> None:
    run = (REPOSITORY / "examples" / "local_testnet" / "state.toml").read_text()
    if table.startswith("[model.network]"):
        relays = parse_run_file(f"{run}\n{table}", source="the page").model.relays
        assert relays == tuple(tomllib.loads(table)["model"]["network"]["relays"])
        return
    if table.startswith("[model.verification]"):
        thresholds = parse_run_file(f"{run}\n{table}", source="the page").model.thresholds
        assert thresholds == VerificationConfig(), "the page says what holds without a table"
        return

    [path] = re.findall(r"^\[(model\.LLM\.\w+)[\w.]*\]$", table, flags=re.MULTILINE)
    before, _, rest = run.partition(f"\n[{path}")
    after = rest.partition("\n\n")[2]
    parsed = parse_run_file(f"{before}\n{table}\n{after}", source="the page")
    said = tomllib.loads(table)["model"]["LLM"]
    choice = parsed.model.LLM.data_location if "data_location" in said else parsed.model.LLM.checkpoint
    assert isinstance(choice, Choice)
    assert {choice.name} == set(next(iter(said.values())))
    if "data_location" in said:
        registration = PluginRegistry.discover().load("data", choice.name)
        assert isinstance(registration, DataRegistration)
        validate_settings(registration, choice.settings, where="the page")
