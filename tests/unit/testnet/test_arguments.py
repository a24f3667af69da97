"""What a testnet tells its programs."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from psyche_core.cli.commands.member.client import train
from psyche_core.cli.commands.server import run
from psyche_core.config.options.testnet import TestnetSettings
from psyche_core.config.run_config import load_run_file
from psyche_core.errors import UserError
from psyche_core.testnet.arguments import client_arguments, client_modules, server_arguments
from psyche_core.testnet.metrics_ports import metrics_ports, metrics_sentence
from psyche_core.testnet.processes import child_environment
from psyche_core.testnet.results_folder import CHECKPOINTS, JOURNALS


@pytest.mark.parametrize("publishes", [False, True])
def test_the_client_that_keeps_checkpoints_publishes_its_journals_where_that_is_wanted(publishes: bool) -> None:
    out = Path("/results")
    settings = TestnetSettings(config_path=Path("config"), num_clients=2, publish_journal=publishes)

    def options_of(*, measures: bool) -> dict[str, str]:
        words = client_arguments(settings, "client-1", run_id="run", key=out / "key", data=None, out=out, measures=measures)
        return {word: following for word, following in zip(words, [*words[1:], ""], strict=True) if word.startswith("--")}

    first = options_of(measures=True)
    assert first["--checkpoint-dir"] == str(out / CHECKPOINTS)
    assert first.get("--publish-journal") == (str(out / JOURNALS) if publishes else None)
    assert "--publish-journal" not in options_of(measures=False)


def test_all_clients_measure_their_optimizer_and_the_first_writes_the_results_of_all() -> None:
    out = Path("/results")
    settings = TestnetSettings(config_path=Path("config"), num_clients=2, optim_stats_steps=5, write_distro_data=Path("/data"))
    for first in (True, False):
        words = client_arguments(settings, "client-1", run_id="run", key=out / "key", data=None, out=out, measures=first)
        assert words[words.index("--optim-stats-steps") + 1] == "5"
        assert ("--write-distro-data" in words) is first
        given = train.make_context("psyche", words[2:]).params
        assert (given["optim_stats_steps"], given["write_distro_data"]) == (5, Path("/data") if first else None)


def test_each_program_has_a_metrics_port_of_its_own() -> None:
    out = Path("/results")
    settings = TestnetSettings(config_path=Path("config"), num_clients=2)
    for port in (None, 6271):
        words = [
            *client_arguments(
                settings, "client-1", run_id="r", key=out / "k", data=None, out=out, measures=False, metrics_port=port
            )[2:],
        ]
        assert train.make_context("psyche", words).params["metrics_local_port"] == port
        words = server_arguments(settings, state=out / "state.toml", out=out, serves_data=False, metrics_port=port)
        assert run.make_context("psyche", words[2:]).params["metrics_local_port"] == port


def test_ports_follow_each_other_or_are_free_ones() -> None:
    names = ["server", "client-1", "client-2"]
    assert metrics_ports(None, names) == {}
    found = metrics_ports(0, names)
    assert list(found) == names
    assert len(set(found.values())) == 3
    assert "client-2 http://127.0.0.1:" in metrics_sentence(found)
    with pytest.raises(UserError, match="need the ports up to 65536, and 65535 is the largest"):
        metrics_ports(65534, names)


def test_a_port_in_use_is_told_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot use port {port} on 127.0.0.1: .*--metrics-local-port"):
            metrics_ports(port, ["server"])


CONFIG = Path(__file__).parents[3] / "examples" / "local_testnet"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
def test_a_process_that_has_imported_what_clients_import_may_be_forked() -> None:
    modules = client_modules(TestnetSettings(config_path=CONFIG, num_clients=2), load_run_file(CONFIG / "state.toml"))
    script = (
        "import importlib, sys\n"
        "from psyche_core.cli.fork_server import obstacle\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "print('torch' in sys.modules, 'transformers' in sys.modules, obstacle(allowed=[0, 1, 2]))\n"
    )
    environment = child_environment(threads=1)
    command = [sys.executable, "-c", script, *modules]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True True \n"


def test_nothing_is_imported_for_a_fork_that_libraries_do_not_bear_or_that_no_client_needs() -> None:
    run = load_run_file(CONFIG / "state.toml")
    assert client_modules(TestnetSettings(config_path=CONFIG, num_clients=2, device="cuda"), run) == []
    llm = run.model.LLM.model_copy(update={"architecture": "TinyRnn"})
    other = run.model_copy(update={"model": run.model.model_copy(update={"LLM": llm})})
    modules = client_modules(TestnetSettings(config_path=CONFIG, num_clients=2), other)
    assert modules
    assert not any(name.startswith("psyche_core.builtin.hf") for name in modules)
