"""Spellings of the Rust programs: what they become, what is refused with a remedy, and that our own stay as they are."""

from __future__ import annotations

import argparse
import json
import stat
from pathlib import Path

import click
import pytest
import tomli_w

from psyche_core.cli.commands.member.client import train
from psyche_core.cli.commands.server import run as server_run
from psyche_core.cli.commands.testnet import begun_with, start
from psyche_core.cli.reference_options import respelled
from psyche_core.client.setup.local_run_file import local_run_file
from psyche_core.config.options.client import ClientSettings
from psyche_core.config.options.loading import load_settings
from psyche_core.config.options.train_local import TrainLocalSettings
from psyche_core.config.run_config import load_run_file
from psyche_core.errors import ConfigError, IdentityError
from psyche_core.models.sharding.group.rendezvous import split_address
from psyche_core.training import sidecar
from psyche_core.wire.signing import SecretKey
from tests.unit.cli.conftest import Psyche

HEX = "11" * 32
EXAMPLE = Path(__file__).parents[3] / "examples" / "local_testnet"


def params(command: click.Command, *words: str) -> dict[str, object]:
    return command.make_context("psyche", list(words)).params


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ((), None),
        (("--withdraw-on-disconnect",), True),
        (("--withdraw-on-disconnect", "true"), True),
        (("--withdraw-on-disconnect", "false"), False),
        (("--withdraw-on-disconnect=false",), False),
        (("--no-withdraw-on-disconnect",), False),
        (("--withdraw-on-disconnect", "true", "--no-withdraw-on-disconnect"), False),
    ],
)
def test_a_flag_takes_true_and_false(words: tuple[str, ...], value: bool | None) -> None:
    assert params(server_run, "--state", "s", *words)["withdraw_on_disconnect"] is value


@pytest.mark.parametrize(
    ("words", "logs"),
    [
        (("--tui", "true"), "tui"),
        (("--tui",), "tui"),
        (("--no-tui",), "console"),
        (("--tui=false",), "console"),
        (("--logs", "tui"), "tui"),
        (("--logs", "json"), "json"),
        (("--tui", "false", "--logs", "json"), "json"),
    ],
)
@pytest.mark.parametrize("command", [train, start, server_run])
def test_their_screen_is_ours(command: click.Command, words: tuple[str, ...], logs: str) -> None:
    needed = {train: ["--run-id", "r"], start: ["--num-clients", "3", "--config-path", "d"], server_run: ["--state", "s"]}
    assert params(command, *needed[command], *words)["logs"] == logs


@pytest.mark.parametrize("word", ["--tui", "--no-tui"])
def test_another_word_than_true_or_false_is_told(psyche: Psyche, word: str) -> None:
    result = psyche("client", "train", "--run-id", "r", word, "maybe")
    assert (result.code, f"{word} takes true or false, got 'maybe'" in result.err) == (2, True)


def test_a_value_that_reads_true_is_not_taken_for_a_flags() -> None:
    assert params(train, "--run-id", "true", "--delete-old-steps", "true")["run_id"] == "true"
    words = ["--run-id", "x", "--", "--tui", "true"]
    assert list(respelled(words, server_run.params)) == words


def test_a_flag_for_what_is_always_so_is_taken_where_it_is_so(psyche: Psyche) -> None:
    assert params(train, "--run-id", "r", "--grad-accum-in-fp32")["run_id"] == "r"
    assert "No such option" in psyche("server", "run", "--state", "s", "--grad-accum-in-fp32").err


def test_an_option_that_is_not_built_says_what_to_use(psyche: Psyche) -> None:
    result = psyche("client", "train", "--run-id", "r", "--sidecar-port", "1")
    assert result.code == 2
    assert "--sidecar-port: processes on other machines connect to --sidecar-bind HOST:PORT" in result.err


def test_options_of_wandb_ask_for_that_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PSYCHE_TRACKER", raising=False)
    for command in (train, start):
        needed = ["--run-id", "r"] if command is train else ["--num-clients", "3", "--config-path", "d"]
        given = params(command, *needed, "--wandb-project", "p")
        assert (given["tracker"], given["wandb_project"]) == (("wandb",), "p")
        assert params(command, *needed, "--wandb-run=x", "--tracker", "tensorboard")["tracker"] == ("wandb", "tensorboard")
        assert params(command, *needed)["tracker"] == ()
    monkeypatch.setenv("PSYCHE_WANDB_PROJECT", "p")
    assert params(train, "--run-id", "r")["tracker"] == ("wandb",)
    assert params(train, "--run-id", "r", "--tracker", "tensorboard")["tracker"] == ("tensorboard",), "an argument wins"


def test_an_identity_in_the_environment(monkeypatch: pytest.MonkeyPatch, psyche: Psyche, tmp_path: Path) -> None:
    monkeypatch.setenv("RAW_IDENTITY_SECRET_KEY", HEX)
    public = SecretKey(bytes.fromhex(HEX)).public.hex()
    assert psyche("client", "show-identity").out == public + "\n"
    settings = ClientSettings(run_id="r")
    assert settings.raw_identity_secret_key is not None
    assert HEX not in repr(settings)
    other = tmp_path / "other.key"
    assert psyche("client", "create-static-p2p-identity", other).code == 0
    assert psyche("client", "show-static-p2p-identity", other).out != public + "\n", "an argument wins over the environment"
    assert psyche("client", "show-identity", "-i", other).out != public + "\n"


@pytest.mark.parametrize("bad", ["xyz", HEX[:-2], "secret" * 20])
def test_a_bad_identity_in_the_environment_is_not_shown(bad: str, monkeypatch: pytest.MonkeyPatch, psyche: Psyche) -> None:
    monkeypatch.setenv("RAW_IDENTITY_SECRET_KEY", bad)
    result = psyche("client", "show-identity")
    assert result.code == 2
    assert "expected 64 hex digits" in result.err
    assert bad not in result.err


def test_a_new_identity_is_readable_by_its_owner_alone_and_never_overwritten(psyche: Psyche, tmp_path: Path) -> None:
    path = tmp_path / "me.key"
    made = psyche("client", "create-identity", path)
    assert made.out == psyche("client", "show-identity", path).out
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert psyche("client", "create-identity", path).code == 2
    assert made.out == psyche("client", "show-identity", path).out


def test_two_identities_are_an_error() -> None:
    from psyche_core.client.setup.assemble import _transport_key
    from psyche_core.plugins import PluginRegistry

    backend = PluginRegistry.discover().load("backend", "memory")
    settings = ClientSettings(run_id="r", identity_secret_key_path=Path("k"), PSYCHE_RAW_IDENTITY_SECRET_KEY=HEX)
    with pytest.raises(IdentityError, match="both --identity-secret-key-path and the environment variable"):
        _transport_key(backend, settings, None)
    alone = ClientSettings(run_id="r", PSYCHE_RAW_IDENTITY_SECRET_KEY=HEX)
    assert _transport_key(backend, alone, None).seed == bytes.fromhex(HEX)


def test_a_testnet_begins_with_another_model(tmp_path: Path) -> None:
    run = load_run_file(EXAMPLE / "state.toml")
    changed = begun_with(run, "emozilla/llama2-20m-init", base=EXAMPLE)
    assert changed.model.LLM.checkpoint.settings == {"repo_id": "emozilla/llama2-20m-init"}
    written = tmp_path / "state.toml"
    written.write_text(tomli_w.dumps(changed.model_dump(exclude_none=True)))
    assert load_run_file(written) == changed, "the server reads what the testnet decided"
    assert changed.config == run.config
    with pytest.raises(ConfigError, match="at most 64 bytes"):
        begun_with(run, "x" * 65, base=EXAMPLE)
    local = begun_with(run, str(EXAMPLE / "model"), base=EXAMPLE)
    assert local.model.LLM.checkpoint.settings == {"repo_id": "model"}


# -------------------------------------------------------------------------------------------------- train-local from options


def settings_of(**given: object) -> TrainLocalSettings:
    return load_settings(TrainLocalSettings, given)


def test_a_model_and_tokens_make_a_run() -> None:
    run = local_run_file(settings_of(model="emozilla/llama2-20m-init", data=Path("t"), total_batch=2, steps=5))
    llm = run.model.LLM
    assert (run.config.global_batch_size_start, run.config.global_batch_size_end, run.config.total_steps) == (2, 2, 5)
    assert (llm.architecture, llm.optimizer.name, llm.max_seq_len) == ("HfAuto", "AdamW", 2048)
    assert llm.checkpoint.settings == {"repo_id": "emozilla/llama2-20m-init"}
    other = local_run_file(settings_of(model="a/b", data=Path("t"), optimizer="Distro", sequence_length=64, warmup_steps=900))
    assert other.model.LLM.optimizer.name == "Distro"


def test_a_local_model_may_have_a_long_path(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30) / "model"
    folder.mkdir(parents=True)
    settings = settings_of(model=str(folder), data=Path("t"))
    checkpoint = local_run_file(settings).model.LLM.checkpoint.settings or {}
    assert settings.run_base / checkpoint["repo_id"] == folder


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "give a run file with --state FILE, or a model"),
        ({"model": "a/b"}, "--model needs the tokens to train on: --data-path"),
        ({"model": "a/b", "state": Path("s"), "total_batch": 3}, "--model, --total-batch: the run file s says that"),
        ({"state": Path("nothing.toml")}, "cannot read the run configuration nothing.toml"),
    ],
)
def test_contradictions_of_run_file_and_options_are_one_sentence(given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        local_run_file(settings_of(**given))


# ------------------------------------------------------------------------------------------------------------------ sidecar


def filled(*words: str, **environment: str) -> argparse.Namespace:
    given = sidecar.parser().parse_args(words)
    sidecar._fill(given, environment)
    return given


def test_a_sidecar_takes_their_options_and_variables_and_an_argument_wins() -> None:
    given = filled("--num-local-ranks", "2", PSYCHE_MAIN_HOST="h", PSYCHE_WORLD_SIZE="4", PSYCHE_START_RANK="2")
    assert (given.main_host, given.port, given.world_size, given.start_rank, given.local_ranks) == ("h", 34567, 4, 2, 2)
    assert filled("--main-host", "mine", "--world-size", "3", "--start-rank", "1", PSYCHE_MAIN_HOST="h").main_host == "mine"
    host = ("--main-host", "h", "--world-size", "4", "--start-rank", "2")
    assert filled(*host, "--start-device", "3", "--local-ranks", "2").device == "cuda:3,4"
    assert filled(*host, "--backend", "gloo").device == "cpu"
    assert filled(*host, "--backend", "nccl").device == "auto"


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        ((), {}, r"--main-host is needed \(or the environment variable PSYCHE_MAIN_HOST\)"),
        (("--main-host", "h"), {"PSYCHE_WORLD_SIZE": "four"}, "PSYCHE_WORLD_SIZE: got 'four', expected a whole number"),
        (("--main-host", "h", "--world-size", "2", "--start-rank", "1", "--start-device", "0", "--device", "cpu"), {}, "twice"),
    ],
)
def test_what_a_sidecar_lacks_is_one_sentence(words: tuple[str, ...], environment: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        filled(*words, **environment)


def test_the_word_of_their_program_is_taken(psyche: Psyche, capsys: pytest.CaptureFixture[str]) -> None:
    assert sidecar.main(["rust"]) == 2
    assert "no sidecar in Rust" in capsys.readouterr().err
    result = psyche("sidecar", "python", "--main-host", "h", "--world-size", "4", "--start-rank", "9")
    assert (result.code, "--start-rank 9 and --local-ranks 1 exceed --world-size 4" in result.err) == (2, True)
    assert "--num-local-ranks" in psyche("sidecar", "--help").out


def test_a_sidecars_port_may_be_left_out() -> None:
    assert split_address("node1") == ("node1", 34567)
    assert split_address("node1:5") == ("node1", 5)


# ------------------------------------------------------------------------------------------------------------ what is written


def test_train_local_from_options_alone_trains_and_writes_a_log(psyche: Psyche, tmp_path: Path) -> None:
    """A real model of the repository, real tokens, in this process."""
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    (tokens / "part.ds").write_bytes(b"\x05\x00\x06\x00\x07\x00\x08\x00" * 2000)
    model = Path(__file__).parents[3] / "examples" / "local_testnet" / "model"
    words = ("--model", model, "--data-path", tokens, "--total-batch", 2, "--micro-batch", 1, "--sequence-length", 32)
    result = psyche("train-local", *words, "--steps", 3, "--logs", "json", "--device", "cpu", "--learning-rate", "0.01")
    assert result.code == 0, result.err
    events = [json.loads(line) for line in result.out.splitlines()]
    losses = [event["loss"] for event in events if event["event"] == "step_trained"]
    assert len(losses) == 3
    assert losses[0] > 0
