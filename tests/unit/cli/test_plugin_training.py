"""The training step of `psyche plugins check`: what it writes, when it is left out, and what it says of a plugin that fails.

tests/packaging/test_plugin_projects.py trains with plugins of every kind.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from psyche_core.cli import plugin_training
from psyche_core.cli.plugin_training import STEPS, toml, try_training, write_run
from psyche_core.cli.progress_line import plugin_problem
from psyche_core.config.run_config import parse_run_file
from psyche_core.hookspecs import GROUP
from psyche_core.plugin_errors import labels
from psyche_core.plugins import PluginRecord, PluginRegistry

BLAMES = labels([("data", "Mine", "mine 1.2", "mine"), ("data", "Other", "mine 1.2", "mine")])
HOOKS = """
import os
from psyche_core.errors import ModelError
from psyche_core.hookspecs import ShardingRegistration, hookimpl

PSYCHE_PLUGIN_API = "1.0"

def create(context):
    raise ModelError(f"no luck with {context.model_type}")

@hookimpl
def psyche_register_sharding():
    return [ShardingRegistration(name="luckless", summary="s", create=create)]
"""


def record(name: str) -> PluginRecord:
    (found,) = [each for each in PluginRegistry.discover().list() if each.entry_point == name]
    return found


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"Mine": {"decay": 0.5, "betas": [0.9, 0.95], "by_name": [{"pattern": "a.*", "rate": 3}], "fast": True}},
        {"odd key": 'a "text" with \\ and ünïcode\n', "big": 10**15, "small": 1e-08},
    ],
)
def test_a_table_is_read_back_as_it_was(value: dict[str, Any]) -> None:
    assert tomllib.loads(f"value = {toml(value)}")["value"] == value


def test_a_key_that_is_null_is_left_out() -> None:
    assert tomllib.loads(f"value = {toml({'a': None, 'b': 1})}")["value"] == {"b": 1}


@pytest.mark.parametrize(
    ("data", "model_config", "vocabulary", "highest"),
    [
        ({"Local": {"location": "tokens"}}, None, 256, 118),
        ({"Mine": {"location": "anything"}}, None, 65_536, 118),
        ({"Local": {"location": "tokens"}}, {"model_type": "mine", "vocab_size": 61}, 61, 57),
    ],
    ids=["usual", "data", "model"],
)
def test_the_run_fits_what_is_tried(
    tmp_path: Path, data: dict[str, Any], model_config: dict[str, Any] | None, vocabulary: int, highest: int
) -> None:
    """A model has room for every token: the usual text's, a small model's, and those of whatever data."""
    optimizer = {"Mine": {"decay": 0.5}}
    given: dict[str, Any] = {"architecture": "HfLlama", "data": data, "optimizer": optimizer}
    write_run(tmp_path, **given, model_config=model_config, members=2, base=tmp_path)
    run = parse_run_file((tmp_path / "state.toml").read_text(), source="state.toml")
    assert (run.config.total_steps, run.config.init_min_clients) == (STEPS, 2)
    assert (run.model.LLM.optimizer.name, run.model.LLM.optimizer.settings) == ("Mine", {"decay": 0.5})
    assert json.loads((tmp_path / "model" / "config.json").read_text())["vocab_size"] == vocabulary
    tokens = (tmp_path / "tokens" / "0.bin").read_bytes()
    assert max(struct.unpack(f"<{len(tokens) // 2}H", tokens)) == highest


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("command.run-manager", {}, "a command plugin takes no part in training"),
        ("relay.iroh", {}, "a relay plugin takes no part in training"),
        ("model.HfLlama", {}, "give the config.json of a small model with --model-config"),
        ("data.Local", {}, "location must be given with --settings"),
    ],
)
def test_what_cannot_be_tried_is_left_out_with_a_reason(name: str, settings: dict[str, Any], sentence: str) -> None:
    tried = try_training(record(name), settings, None)
    assert (tried.trained, tried.sentence) == (None, sentence)


def test_members_need_a_backend_and_a_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSYCHE_PLUGINS", "nothing-such")
    tried = try_training(record("optimizer.AdamW"), {}, None)
    assert tried.trained is None
    assert tried.sentence == "two members need more plugins: pip install psyche-backend-tcp psyche-p2p-quic"


@pytest.fixture
def luckless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginRecord:
    """A sharding engine that refuses every model."""
    info = tmp_path / "site" / "luckless-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nsharding.luckless = luckless_hooks\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: luckless\nVersion: 1.0\n")
    (tmp_path / "site" / "luckless_hooks.py").write_text(HOOKS)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    return record("sharding.luckless")


@pytest.mark.soak  # each process imports torch
@pytest.mark.timeout(400)  # processes that import torch, on a busy machine
def test_what_a_plugin_said_when_it_failed_is_told(luckless: PluginRecord) -> None:
    told: list[str] = []
    tried = try_training(luckless, {}, None, tell=told.append)
    assert set(told) == {"training: the processes start,"}
    assert tried.trained is False
    assert tried.sentence.startswith("2 processes of one member did not train, with exit status 1: ")
    assert "no luck with llama" in tried.sentence


def test_a_plugin_that_hangs_is_told_and_ended(luckless: PluginRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_training, "TRAINING_SECONDS", -30)
    tried = try_training(luckless, {}, None)
    assert tried.trained is False
    assert tried.sentence.endswith("a call of yours hangs")


def test_how_far_the_members_are_is_told(tmp_path: Path) -> None:
    events = tmp_path / "out" / "events"
    events.mkdir(parents=True)
    (events / "client-1.jsonl").write_text('{"event": "step_trained", "step": 2}\n')
    told: list[str] = []
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as program:
        assert plugin_training._watched(program, tmp_path, told.append, ()) == 3
    assert set(told) == {f"training: step 2 of {STEPS},"}


def test_a_plugin_that_fails_in_a_member_ends_the_training_and_is_named(tmp_path: Path) -> None:
    events = tmp_path / "out" / "events"
    events.mkdir(parents=True)
    sentence = "step 1 was not trained: the data plugin Mine (mine 1.2) failed with ValueError: no"
    problems = [{"event": "problem", "level": level, "message": f"{level}: {sentence}"} for level in ("warning", "error")]
    (events / "client-1.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as program:
        assert plugin_training._watched(program, tmp_path, lambda _: None, BLAMES) is None
        program.kill()
    blamed = plugin_problem([events / "client-1.jsonl"], BLAMES)
    assert blamed == f"error: {sentence}"
    failure = plugin_training._failure(plugin_training._Done(1, "a trained round was lost", blamed), "2 members did not train")
    assert failure == f"2 members did not train: error: {sentence}"


def test_another_problem_of_a_member_ends_nothing(tmp_path: Path) -> None:
    file = tmp_path / "client-1.jsonl"
    others = ("the line is slow", "no data plugin is named Mina; installed data plugins: Mine", "the plugin data.Mine is slow")
    lines = "".join(json.dumps({"event": "problem", "level": "error", "message": message}) + "\n" for message in others)
    file.write_text(f'{lines}{{"event": "pro')
    assert plugin_problem([file], BLAMES) == ""


def test_plugins_of_one_distribution_that_cannot_be_told_apart_are_found_too(tmp_path: Path) -> None:
    file = tmp_path / "client-1.jsonl"
    message = "step 1 was not trained: the plugins of mine 1.2 (data.Mine, data.Other) failed with ValueError: no"
    file.write_text(json.dumps({"event": "problem", "level": "error", "message": message}) + "\n")
    assert plugin_problem([file], BLAMES) == message
