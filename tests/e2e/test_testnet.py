"""A whole run on this machine: server and three clients, TCP, QUIC, DisTrO, real text."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from psyche_core.telemetry.sinks import from_json
from tests.conftest import LocalTestnet
from tests.e2e.conftest import Program, Started

pytestmark = [pytest.mark.e2e, pytest.mark.quic, pytest.mark.timeout(300)]


def arguments_for(config: Path, out: Path, port: int, *, clients: int = 3) -> list[object]:
    return ["testnet", "start", "--num-clients", clients, "--config-path", config, "--server-port", port, "--out", out]


def processes_naming(text: str) -> list[int]:
    """Ids of live processes whose command line has `text` in it, this one left out."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                line = (folder / "cmdline").read_bytes()
            except OSError:
                continue  # it ended while we looked
            if text.encode() in line:
                found.append(int(folder.name))
    return found


def wait_for_training(out: Path, process: Program, *, client: str = "client-2", seconds: float = 120.0) -> None:
    """Until that client has applied a step; fails when the testnet ends before."""
    events = out / "events" / f"{client}.jsonl"
    deadline = time.monotonic() + seconds
    while not (events.exists() and '"step_applied"' in events.read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no step was applied in time"
        time.sleep(0.1)


def test_a_run_of_three_epochs_leaves_everything_that_was_promised(
    start: Started, short_run: Path, free_port: Callable[[], int], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start(
        *arguments_for(short_run, out, free_port()), "--require-steps", 12, "--require-epochs", 3, "--require-loss-drop", 0.01
    )
    printed, complained = process.communicate(timeout=280)
    assert process.returncode == 0, complained + printed
    assert "Traceback" not in complained

    report = json.loads((out / "report.json").read_text())
    assert set(report) == {"run_id", "steps", "epochs", "clients", "validation", "identical", "wall_seconds", "train_seconds"}
    assert (report["steps"], report["epochs"], report["identical"]) == (12, 3, True)
    assert 0 < report["train_seconds"] < report["wall_seconds"]
    assert len({client["id"] for client in report["clients"]}) == 3
    for client in report["clients"]:
        assert [step for step, _ in client["losses"]] == list(range(1, 13))
        assert len(client["payload_bytes"]) == 12
        assert min(client["payload_bytes"]) > 0
        assert client["param_sha256"] == report["clients"][0]["param_sha256"]
    digests = report["clients"][0]["param_sha256"]
    assert len(set(digests.values())) == 3, "each epoch changed the weights"
    assert len(report["validation"]) >= 2

    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    for name in ("server", "client-1", "client-2", "client-3"):
        lines = (out / "events" / f"{name}.jsonl").read_text().splitlines()
        assert lines
        assert all(from_json(line) is not None for line in lines), name
    for key in (out / "keys").iterdir():
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert "identical, bit for bit" in printed
    assert processes_naming(str(out)) == []
    assert "not forked" not in (out / "logs" / "fork-server.log").read_text()

    checkpoints = [path.parent for path in (out / "checkpoint").rglob("config.json")]
    last = max(checkpoints, key=lambda path: path.stat().st_mtime)
    assert checkpoint_digest(last) == digests[max(digests, key=int)], "the checkpoint holds just the weights all agreed on"


def checkpoint_digest(folder: Path) -> str:
    """Load it as a user of transformers would, in a process of its own, and digest its parameters as the clients do."""
    script = (
        "import sys, torch, transformers\n"
        "from psyche_core.training.digest import full_digest\n"
        "torch.set_num_threads(1)\n"
        "model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)\n"
        "print(full_digest({name: value.detach() for name, value in model.named_parameters()}).hex())\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


SPARSELOCO = """
[model.LLM.optimizer.SparseLoCo]
clip_grad_norm = 1.0
inner_steps = 2
topk = 64
chunk_size = 4096
"""


@pytest.mark.soak  # its conformance tests apply payloads in another process, too
def test_another_optimizer_plugin_trains_equal_replicas_with_real_processes(
    start: Started, run_of_two: Path, free_port: Callable[[], int], tmp_path: Path
) -> None:
    """SparseLoCo: several inner steps on local weights, then one result."""
    state, out = run_of_two / "state.toml", tmp_path / "out"
    text, _ = state.read_text().split("[model.LLM.optimizer.Distro]")
    state.write_text(text + SPARSELOCO)
    process = start(*arguments_for(run_of_two, out, free_port(), clients=2), "--require-steps", 12, "--require-loss-drop", 0.01)
    printed, complained = process.communicate(timeout=280)
    assert process.returncode == 0, complained + printed
    report = json.loads((out / "report.json").read_text())
    assert (report["steps"], report["identical"]) == (12, True)
    assert all(min(client["payload_bytes"]) > 0 for client in report["clients"])


@pytest.mark.soak  # unit tests judge the figures
def test_a_figure_not_reached_fails_the_run_and_says_which(
    start: Started, local_testnet: LocalTestnet, free_port: Callable[[], int], tmp_path: Path
) -> None:
    run_keys = {"rounds_per_epoch": 2, "warmup_steps": 1, "global_batch_size_start": 3, "global_batch_size_end": 3}
    config = local_testnet(total_steps=2, init_min_clients=1, min_clients=1, **run_keys)
    out = tmp_path / "out"
    process = start(*arguments_for(config, out, free_port(), clients=1), "--require-steps", 3, "--logs", "none")
    printed, complained = process.communicate(timeout=200)
    assert process.returncode == 1
    assert printed == ""
    assert "Error: 2 steps were trained and applied, at least 3 were required" in complained
    assert json.loads((out / "report.json").read_text())["steps"] == 2


def test_a_client_that_dies_ends_the_testnet_at_once(
    start: Started, run_of_two: Path, free_port: Callable[[], int], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    model = ("--first-client-checkpoint", run_of_two / "model")
    process = start(*arguments_for(run_of_two, out, free_port(), clients=2), "--logs", "json", *model)
    wait_for_training(out, process)
    (victim,) = set(processes_naming("client-2.key")) & set(processes_naming(str(out)))  # other tests have clients, too
    os.kill(victim, signal.SIGKILL)
    printed, complained = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "client-2 ended with exit code -9" in complained
    assert {json.loads(line)["program"] for line in printed.splitlines()} == {"server", "client-1", "client-2"}
    assert "Traceback" not in complained
    assert processes_naming(str(out)) == []
    assert json.loads((out / "report.json").read_text())["steps"] >= 1, "what was there is reported"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.soak)])
def test_a_stopping_signal_stops_everybody(
    start: Started, run_of_two: Path, free_port: Callable[[], int], tmp_path: Path, number: int, code: int
) -> None:
    out = tmp_path / "out"
    process = start(*arguments_for(run_of_two, out, free_port(), clients=2))
    wait_for_training(out, process)
    second = start(*arguments_for(run_of_two, out, free_port(), clients=2), "--overwrite")
    assert second.communicate(timeout=60)[1] == (
        f"Error: a testnet is running in {out}; wait for it or stop it, or choose another --out\n"
    )
    process.send_signal(number)
    _, complained = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in complained
    assert processes_naming(str(out)) == []
    stopped = re.search(rf"^stopped at step (\d+); report, events and logs are in {out}\.", complained, re.MULTILINE)
    assert stopped, complained
    step = int(stopped[1])
    assert json.loads((out / "report.json").read_text())["run_id"]

    again = start(*arguments_for(run_of_two, out, free_port(), clients=2))
    _, complained = again.communicate(timeout=60)
    assert again.returncode == 2
    assert complained == f"Error: {out} holds a run at step {step}; choose another --out, or --overwrite to delete it\n"
    assert any((out / "events").iterdir())
