"""Arguments beat the environment, the environment beats defaults, and a broken rule is a sentence that says where it is from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from pydantic import BaseModel, Field

from psyche_core.cli import cli
from psyche_core.cli.options import settings_options
from psyche_core.config.options.client import ClientSettings
from psyche_core.config.options.loading import load_settings, option_fields
from psyche_core.config.options.server import ServerSettings
from psyche_core.config.options.testnet import TestnetSettings
from psyche_core.errors import ConfigError

NEEDED = {"run_id": "r", "server_addr": "h:1"}


def test_defaults_stand_where_nothing_was_said() -> None:
    settings = load_settings(ClientSettings, NEEDED)
    assert (settings.backend, settings.transport, settings.micro_batch_size, settings.logs) == ("tcp", "quic", 8, "auto")
    assert settings.base == Path.cwd()


def test_the_environment_beats_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSYCHE_MICRO_BATCH_SIZE", "4")
    assert load_settings(ClientSettings, NEEDED | {"micro_batch_size": None}).micro_batch_size == 4


def test_an_argument_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSYCHE_MICRO_BATCH_SIZE", "4")
    assert load_settings(ClientSettings, NEEDED | {"micro_batch_size": 2}).micro_batch_size == 2


def test_an_argument_equal_to_the_default_still_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSYCHE_MICRO_BATCH_SIZE", "4")
    assert load_settings(ClientSettings, NEEDED | {"micro_batch_size": 8}).micro_batch_size == 8


def test_an_argument_given_as_false_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSYCHE_WITHDRAW_ON_DISCONNECT", "true")
    settings = load_settings(ServerSettings, {"state": Path("s"), "withdraw_on_disconnect": False})
    assert settings.withdraw_on_disconnect is False


class Plain(BaseModel):
    """Settings of a plugin that knows nothing of the environment."""

    shelf_file: Path = Path("shelf")
    shelf_seconds: float = Field(default=1.0, ge=0.5)


def test_a_plugins_plain_model_is_read_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSYCHE_SHELF_SECONDS", "2.5")
    monkeypatch.setenv("PSYCHE_SHELF_FILE", "there")
    assert load_settings(Plain, {"shelf_file": None}) == Plain(shelf_file=Path("there"), shelf_seconds=2.5)
    assert load_settings(Plain, {"shelf_seconds": 1.0}).shelf_seconds == 1.0
    monkeypatch.setenv("PSYCHE_SHELF_SECONDS", "0")
    with pytest.raises(ConfigError, match=r"^PSYCHE_SHELF_SECONDS: got '0'; "):
        load_settings(Plain, {})
    monkeypatch.setenv("PSYCHE_SHELF_SECONDS", "")
    assert load_settings(Plain, {}).shelf_seconds == 1.0
    monkeypatch.setenv("PSYCHE_SHELF_FILE", "")
    with pytest.raises(ConfigError, match=r"^PSYCHE_SHELF_FILE: the path is empty"):
        load_settings(Plain, {})


def test_a_variable_without_the_prefix_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEVICE", "cuda")
    monkeypatch.setenv("BACKEND", "other")
    assert load_settings(ClientSettings, NEEDED).device == "auto"


def test_a_missing_value_names_option_and_variable() -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings(ClientSettings, {"server_addr": "h:1"})
    assert str(raised.value) == "--run-id is needed (or the environment variable PSYCHE_RUN_ID)"


def test_a_bad_argument_names_the_option() -> None:
    with pytest.raises(ConfigError, match=r"^--micro-batch-size: got 0; must be auto or a whole number of at least 1$"):
        load_settings(ClientSettings, NEEDED | {"micro_batch_size": 0})


def test_a_bad_variable_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSYCHE_KEEP_STEPS", "many")
    with pytest.raises(ConfigError, match=r"^PSYCHE_KEEP_STEPS: got 'many'"):
        load_settings(ClientSettings, NEEDED)


def test_all_broken_rules_are_said_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings(TestnetSettings, {"num_clients": 0, "server_port": 70000})
    for name in ("--config-path", "--num-clients", "--server-port"):
        assert name in str(raised.value)


def test_quotes_around_a_run_id_are_dropped() -> None:
    assert load_settings(ClientSettings, NEEDED | {"run_id": "'first-light'"}).run_id == "first-light"


@pytest.mark.parametrize(
    ("run_id", "rule"),
    [
        ("é" * 17, "must be at most 32 bytes of UTF-8, got 34"),
        ("x" * 33, "must be at most 32 bytes of UTF-8, got 33"),
        ("", "must not be empty"),
        ("''", "must not be empty"),
        ("a\0b", "must not contain NUL characters"),
        ("../../evil", r"must not be \. or \.\. or contain / or \\, because files are named after the run"),
    ],
)
def test_a_run_id_follows_the_rule_of_run_files(run_id: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=f"^--run-id: got .*; {rule}$"):
        load_settings(ClientSettings, NEEDED | {"run_id": run_id})


def test_the_longest_run_id_may_stand_in_quotes() -> None:
    assert load_settings(ClientSettings, NEEDED | {"run_id": f"'{'x' * 32}'"}).run_id == "x" * 32


def test_help_says_what_a_number_counts() -> None:
    """Each float is in a unit of its own, and one that says none is not called seconds."""

    class Told(BaseModel):
        waiting: float = Field(default=1.0, json_schema_extra={"unit": "SECONDS"})
        share: float = 0.5

    units: dict[str | None, object] = {}
    for settings in (ClientSettings, ServerSettings, TestnetSettings, Told):

        @click.command()
        @settings_options(settings)
        def holder(**_: object) -> None: ...

        units |= {option.name: option.metavar for option in holder.params if option.type is click.FLOAT}
    assert units == {
        **dict.fromkeys(
            (
                "reconnect_seconds",
                "dummy_training_delay_secs",
                "random_kill_interval",
                "random_kill_seconds",
                "time_limit",
                "otlp_report_interval",
                "waiting",
            ),
            "SECONDS",
        ),
        "require_loss_drop": "NATS",
        "share": "X",
    }


def commands(command: click.Command, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """A command and all below it, with the words that call them."""
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, *words, name)


def test_every_option_that_takes_a_path_refuses_an_empty_one(psyche: Any) -> None:
    """`--save-state-dir "$STATE"` with an unset variable kept the state in the current folder."""
    seen = set()
    for words, command in commands(cli):
        for parameter in command.params:
            kinds = parameter.type.types if isinstance(parameter.type, click.Tuple) else [parameter.type]
            if any(isinstance(kind, click.Path) for kind in kinds) and isinstance(parameter, click.Option):
                values = ["" if isinstance(kind, click.Path) else "x" for kind in kinds]
                result = psyche(*words, parameter.opts[-1], *values)
                assert result.code == 2
                assert "the path is empty" in result.err, (words, parameter.opts)
                seen.add(f"{' '.join(words)} {parameter.opts[-1]}")
    assert {
        "server run --save-state-dir",
        "client train --checkpoint-dir",
        "testnet start --out",
        "relay run --tls-cert",
        "bench convergence --out",
    } <= seen


@pytest.mark.parametrize(
    ("words", "variable"),
    [
        (("server", "run", "--state", "s.toml"), "PSYCHE_SAVE_STATE_DIR"),
        (("client", "train", "--run-id", "r"), "PSYCHE_CHECKPOINT_DIR"),
        (("client", "show-identity"), "PSYCHE_IDENTITY_SECRET_KEY_PATH"),
        (("relay", "run"), "PSYCHE_TLS_CERT"),
    ],
)
def test_an_empty_variable_of_a_path_is_refused(
    psyche: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], variable: str
) -> None:
    monkeypatch.setenv(variable, "")
    result = psyche(*words)
    assert result.code == 2
    assert variable in result.err
    assert "the path is empty" in result.err


def test_a_program_s_empty_path_is_refused_and_an_argument_beats_an_empty_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^--checkpoint-dir: the path is empty"):
        load_settings(ClientSettings, NEEDED | {"checkpoint_dir": ""})
    monkeypatch.setenv("PSYCHE_CHECKPOINT_DIR", "")
    assert load_settings(ClientSettings, NEEDED | {"checkpoint_dir": Path()}).checkpoint_dir == Path()


def test_a_url_where_a_relay_plugin_is_named_is_sent_to_its_own_option() -> None:
    with pytest.raises(ConfigError) as refused:
        load_settings(ServerSettings, {"state": Path("s.toml"), "with_relay": True, "relay": "https://relay.example.org"})
    assert str(refused.value).startswith("--relay: got 'https://relay.example.org'; must be the name of a plugin, such as iroh. ")
    assert "--relay-url" in str(refused.value)
    assert "[model.network] relays" in str(refused.value)
    assert {"relay", "relay_url"} <= ServerSettings.model_fields.keys()


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError):
        load_settings(ClientSettings, NEEDED | {"micro_batchsize": 2})


@pytest.mark.parametrize("cls", [ClientSettings, ServerSettings, TestnetSettings])
def test_every_setting_is_an_option_with_help_and_no_default_of_its_own(cls: type[BaseModel]) -> None:
    @click.command()
    @settings_options(cls)
    def command(**_: object) -> None: ...

    by_name = {parameter.name: parameter for parameter in command.params}
    shown = [name for name, field in option_fields(cls).items() if field.json_schema_extra != {"option": False}]
    assert list(by_name) == shown
    assert shown[0] == next(iter(cls.__annotations__)), "under a heading a command's own options come before those that it shares"
    for name in shown:
        option, field = by_name[name], cls.model_fields[name]
        assert isinstance(option, click.Option)
        assert "--" + name.replace("_", "-") in option.opts
        assert option.help, name
        assert (field.description or "") in option.help
        assert option.get_default(click.Context(command)) is None
