"""Trackers of a real command: both libraries keep what the events say; one that hangs holds up neither training nor the end."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugins.tracker_tensorboard.tests.board_files import read as read_tensorboard
from plugins.tracker_wandb.tests.offline_files import read_all as read_wandb
from psyche_core.cli.commands.testnet import transport_words
from psyche_core.cli.trackers import tracker_words
from psyche_core.errors import ConfigError, UserError
from psyche_core.plugins import PluginRegistry
from tests.unit.cli.conftest import Psyche

MODEL = Path(__file__).parents[3] / "examples" / "local_testnet" / "model"
STEPS = 3


def words(base: Path) -> list[str]:
    """A training on this machine that takes seconds."""
    tokens = base / "tokens"
    tokens.mkdir()
    (tokens / "part.ds").write_bytes(b"\x05\x00\x06\x00\x07\x00\x08\x00" * 2000)
    sizes = ("--total-batch", "2", "--micro-batch", "1", "--sequence-length", "32", "--steps", str(STEPS))
    return ["train-local", "--model", str(MODEL), "--data-path", str(tokens), *sizes, "--device", "cpu", "--logs", "json"]


def losses_of(output: str) -> dict[tuple[str, int], float]:
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {("train/loss", event["step"]): event["loss"] for event in events if event["event"] == "step_trained"}


@pytest.mark.slow
def test_two_trackers_keep_what_the_events_say(psyche: Psyche, tmp_path: Path) -> None:
    boards = ("--tracker", "tensorboard", "--tensorboard-dir", tmp_path / "boards")
    result = psyche(*words(tmp_path), *boards, "--wandb-mode", "offline", "--wandb-dir", tmp_path / "files")
    assert result.code == 0, result.err
    losses = losses_of(result.out)
    assert [step for _, step in losses] == [1, 2, 3]
    kept, (facts,) = read_wandb(tmp_path / "files")
    for read in (kept.figures, read_tensorboard(tmp_path / "boards").figures):
        assert {key: read[key] for key in losses} == pytest.approx(losses)
        assert read["train/total_tokens", STEPS] == STEPS * 2 * 32
        assert read["train/lr", 1] > 0
    assert (facts["exit_code"], facts["group"]) == (0, "train-local")
    assert kept.config["optimizer"] == "AdamW"
    assert result.err == "", "a library must not write to the terminal"


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that takes connections and never answers."""
    kept: list[socket.socket] = []
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(100)

        over = threading.Event()

        def accept() -> None:
            while not over.is_set():
                kept.append(listening.accept()[0])

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        over.set()
        socket.create_connection(listening.getsockname()).close()  # wakes it
        thread.join()
    for each in kept:
        each.close()


SCRIPT = """
import atexit, sys
from psyche_core.exporters import tracker_thread
tracker_thread.close_all.__kwdefaults__["seconds"] = 3.0
atexit.register(print, "waited for exit handlers", file=sys.stderr)
from psyche_core.cli import main
main(sys.argv[1:])
"""


@pytest.mark.soak  # trains until time limits strike
def test_a_service_that_never_answers_holds_up_neither_training_nor_the_end(silent_server: str, tmp_path: Path) -> None:
    environment = {**os.environ, "WANDB_BASE_URL": silent_server, "WANDB_API_KEY": "a" * 40}
    trackers = (
        "--wandb-project",
        "p",
        "--wandb-dir",
        str(tmp_path),
        "--tracker",
        "tensorboard",
        "--tensorboard-dir",
        str(tmp_path),
    )
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words(tmp_path), *trackers],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    losses = losses_of(done.stdout)
    assert len(losses) == STEPS
    assert {key: read_tensorboard(tmp_path).figures[key] for key in losses} == pytest.approx(losses)
    assert "the tracker wandb did not finish within 3 s" in done.stderr
    assert "waited for exit handlers" not in done.stderr, "the library would wait for its service there"
    assert [line for line in done.stderr.splitlines() if "warning: " not in line] == []


@pytest.mark.parametrize("command", [("client", "train", "--run-id", "r"), ("train-local",)])
def test_a_tracker_that_is_not_there_is_one_sentence(psyche: Psyche, command: tuple[str, ...]) -> None:
    result = psyche(*command, "--tracker", "wandbb")
    assert result.code == 2
    assert (
        "no tracker plugin is named wandbb; did you mean wandb?; installed tracker plugins: mlflow, tensorboard, wandb"
        in result.err
    )


def test_an_option_of_a_tracker_that_is_not_named_says_which_it_is(psyche: Psyche) -> None:
    result = psyche("train-local", "--model", MODEL, "--data-path", "tokens", "--mlflow-experiment", "mine")
    assert result.code == 2
    assert "--mlflow-experiment is an option of the tracker mlflow; to use it, add --tracker mlflow" in result.err
    assert "No such option" in psyche("train-local", "--model", MODEL, "--mlflow-experimens", "mine").err


def test_a_key_that_is_missing_ends_the_command_before_it_begins(
    psyche: Psyche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    result = psyche("train-local", "--model", MODEL, "--data-path", tmp_path, "--tracker", "wandb")
    assert (result.code, "needs an API key" in result.err) == (2, True)


def test_help_shows_the_options_of_a_tracker_that_is_named(psyche: Psyche, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PSYCHE_TRACKER", raising=False)
    assert "--tensorboard-dir" not in psyche("client", "train", "--help").out
    assert "--tensorboard-dir" in psyche("client", "train", "--tracker", "tensorboard,wandb", "--help").out
    monkeypatch.setenv("PSYCHE_TRACKER", "tensorboard")
    assert "--tensorboard-dir" in psyche("client", "train", "--help").out


def test_a_testnet_hands_its_trackers_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PSYCHE_WANDB_GROUP", "g")
    registry = PluginRegistry.discover()
    given = {"tensorboard_dir": Path("boards"), "wandb_mode": "offline", "config_path": Path("x")}
    assert tracker_words(["tensorboard", "wandb"], given, registry) == [
        *("--tracker", "tensorboard", "--tensorboard-dir", str(tmp_path / "boards")),
        *("--tracker", "wandb", "--wandb-group", "g", "--wandb-mode", "offline"),
    ]
    with pytest.raises(ConfigError, match="--wandb-mode"):
        tracker_words(["wandb"], {"wandb_mode": "x"}, registry)


def test_a_testnet_hands_its_transport_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PSYCHE_IROH_RELAY_TOKEN", raising=False)
    monkeypatch.setenv("PSYCHE_IROH_DISCOVERY", "off")
    registry = PluginRegistry.discover()
    given = {"advertise_address": "192.0.2.1:4", "device": "cpu"}
    words = ["--transport", "quic", "--iroh-discovery", "off", "--advertise-address", "192.0.2.1:4"]
    assert transport_words("quic", given, registry) == words
    assert transport_words("memory", given, registry) == ["--transport", "memory"]
    with pytest.raises(UserError, match="no transport plugin is named wires"):
        transport_words("wires", given, registry)


def test_a_testnet_refuses_a_transport_that_is_not_there(psyche: Psyche, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also one of the environment: so far a testnet trained with the usual one instead."""
    monkeypatch.setenv("PSYCHE_TRANSPORT", "wires")
    config = Path(__file__).parents[3] / "examples" / "local_testnet"
    result = psyche("testnet", "start", "--config-path", config, "--num-clients", "3", "--out", tmp_path / "out")
    assert (result.code, "no transport plugin is named wires" in result.err) == (2, True)
