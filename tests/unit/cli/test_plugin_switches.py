"""What the command line and the environment switch off: names, who wins, what people are told, and that programs pass it on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from psyche_core import hookspecs, plugin_switches
from psyche_core.errors import PluginError
from psyche_core.models.sharding.group.processes import rank_environment
from psyche_core.plugin_switches import PluginName, PluginSwitches, environment_notice, listed
from psyche_core.plugins import PluginRegistry
from psyche_core.testnet.processes import child_environment
from tests.unit.cli.conftest import Psyche

DISTRO = PluginName("optimizer.Distro", "psyche-optim-distro", "0.1")
DEEPSPEED = PluginName("sharding.deepspeed", "psyche-optim-distro", "0.1")
LOCAL = PluginName("data.Local", "psyche-core", "0.1")
INSTALLED = [DISTRO, DEEPSPEED, LOCAL]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in plugin_switches.VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_the_group_is_that_of_the_hooks() -> None:
    assert plugin_switches.GROUP == hookspecs.GROUP


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("optimizer.Distro", [DISTRO]),
        ("Distro", [DISTRO]),
        ("psyche-optim-distro", [DISTRO, DEEPSPEED]),
        ("Psyche_Optim.distro", [DISTRO, DEEPSPEED]),
        ("psyche-optim-distro:Distro", [DISTRO]),
        ("psyche_optim_distro:optimizer.Distro", [DISTRO]),
        ("other:Distro", []),
        ("psyche-optim-distro:psyche-optim-distro", []),
        ("distro", []),
        ("data.Distro", []),
        ("", []),
    ],
)
def test_a_plugin_is_named_in_four_ways(said: str, meant: list[PluginName]) -> None:
    assert [each for each in INSTALLED if each.matches(said)] == meant


def test_several_names_in_a_variable_are_separated_by_commas_or_spaces() -> None:
    assert listed(" a, b,,c d ") == ("a", "b", "c", "d")


def test_what_a_program_says_wins_over_the_environment() -> None:
    environment = {"PSYCHE_DISABLE_PLUGINS": "Distro", "PSYCHE_PLUGINS": "deepspeed"}
    alone = PluginSwitches.of(environment)
    assert alone.why_off(DISTRO) == "switched off by --disable-plugin or PSYCHE_DISABLE_PLUGINS"
    assert PluginSwitches.of(environment, only=["Distro"]).why_off(DISTRO) == ""
    assert PluginSwitches.of(environment, only=["Distro"]).why_off(DEEPSPEED) == "not among the only plugins to use"
    assert PluginSwitches.of({}, only=[]).why_off(DISTRO) != "", "none but our own"
    assert PluginSwitches.of(environment, disabled=["deepspeed"]).why_off(DEEPSPEED) == "disabled by its user"


def test_only_these_leaves_our_own_and_a_name_can_still_switch_one_of_them_off() -> None:
    assert PluginSwitches.of({"PSYCHE_PLUGINS": "deepspeed"}).why_off(LOCAL) == ""
    assert (
        PluginSwitches.of({"PSYCHE_PLUGINS": "deepspeed"}).why_off(DISTRO)
        == "not among those that PSYCHE_PLUGINS names, deepspeed"
    )
    assert PluginSwitches.of({"PSYCHE_PLUGINS": " , "}).why_off(DISTRO) == "", "an empty variable is none"
    assert PluginSwitches.of({"PSYCHE_DISABLE_PLUGINS": "Local"}).why_off(LOCAL) != ""


def test_people_are_told_what_the_environment_switches_off() -> None:
    assert environment_notice({}, INSTALLED) == ""
    assert environment_notice({"PSYCHE_DISABLE_PLUGINS": "Distro,Distri"}, INSTALLED) == (
        "PSYCHE_DISABLE_PLUGINS switches off optimizer.Distro (psyche-optim-distro 0.1) "
        "(not installed: Distri; did you mean Distro?)"
    )
    assert environment_notice({"PSYCHE_PLUGINS": "deepspeed"}, INSTALLED) == (
        "PSYCHE_PLUGINS leaves sharding.deepspeed (psyche-optim-distro 0.1) beside psyche-core's own and switches off 1 other"
    )


def test_a_registry_follows_the_environment_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSYCHE_DISABLE_PLUGINS", "AdamW")
    registry = PluginRegistry.discover()
    with pytest.raises(PluginError, match="switched off by --disable-plugin or PSYCHE_DISABLE_PLUGINS"):
        registry.load("optimizer", "AdamW")
    assert "switches off optimizer.AdamW" in registry.notice()
    assert PluginRegistry.discover(only=["AdamW"]).load("optimizer", "AdamW").name == "AdamW"


def test_the_option_switches_off_while_the_command_runs(psyche: Psyche) -> None:
    result = psyche("--disable-plugin", "AdamW", "--disable-plugin", "data.Local", "plugins", "list", "--all", "--json")
    off = {record["name"] for record in json.loads(result.out) if record["status"] == "disabled"}
    assert off == {"AdamW", "Local"}
    assert result.err == "", "who gives an option needs not be told"
    assert "PSYCHE_DISABLE_PLUGINS" not in os.environ
    assert "disabled" not in psyche("plugins", "list", "--all").out


def test_without_all_what_is_off_is_not_shown_but_counted(psyche: Psyche) -> None:
    result = psyche("--disable-plugin", "AdamW", "plugins", "list")
    assert "AdamW" not in result.out
    assert result.err == "1 more are switched off or shadowed: psyche plugins list --all\n"


def test_option_and_variable_add_up_and_the_variable_is_told(psyche: Psyche, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSYCHE_DISABLE_PLUGINS", "AdamW")
    result = psyche("--disable-plugin", "data.Local", "plugins", "list", "--all", "--json")
    off = {record["name"] for record in json.loads(result.out) if record["status"] == "disabled"}
    assert off == {"AdamW", "Local"}
    assert result.err.startswith("plugins: PSYCHE_DISABLE_PLUGINS switches off optimizer.AdamW (psyche-core ")
    assert "Local" not in result.err
    assert os.environ["PSYCHE_DISABLE_PLUGINS"] == "AdamW"


def test_an_option_that_names_nothing_is_an_error(psyche: Psyche) -> None:
    result = psyche("--disable-plugin", "Adam", "plugins", "list")
    assert (result.code, result.err) == (2, "Error: --disable-plugin: no plugin is named Adam; did you mean AdamW?\n")


def test_a_run_that_needs_what_is_off_says_why(psyche: Psyche, tmp_path: Path) -> None:
    source = Path(__file__).parents[3] / "examples" / "local_testnet" / "state.toml"
    result = psyche("--disable-plugin", "Distro", "server", "validate-config", "--state", source)
    assert result.code == 2
    assert "optimizer plugin Distro (psyche-optim-distro " in result.err
    assert "switched off by --disable-plugin or PSYCHE_DISABLE_PLUGINS" in result.err


def test_each_plugin_that_is_loaded_is_told(
    psyche: Psyche, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PSYCHE_TRACE_PLUGINS", "1")
    PluginRegistry.discover().load("optimizer", "AdamW")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("plugin optimizer.AdamW of psyche-core ")
    assert "(module psyche_core.builtin.hooks) registered OptimizerRegistration AdamW in " in line
    assert line.endswith(" ms")

    monkeypatch.setenv("PSYCHE_TRACE_PLUGINS", "0")
    PluginRegistry.discover().load("optimizer", "AdamW")
    assert capsys.readouterr().err == ""


def test_programs_that_we_start_get_the_switches_and_no_other_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSYCHE_DISABLE_PLUGINS", "AdamW")
    monkeypatch.setenv("PSYCHE_RUN_ID", "other")
    for environment in (child_environment(threads=1), rank_environment(threads=1)):
        assert environment["PSYCHE_DISABLE_PLUGINS"] == "AdamW"
        assert "PSYCHE_RUN_ID" not in environment
        assert environment["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("command", [("plugins", "list"), ("client", "train")])
@pytest.mark.parametrize("words", [("--disable-plugin", "AdamW"), ("--disable-plugin=AdamW",)])
def test_after_the_command_the_option_is_told_to_go_before_it(
    psyche: Psyche, command: tuple[str, ...], words: tuple[str, ...]
) -> None:
    result = psyche(*command, *words)
    assert result.code == 2
    hint = f"It goes before the command: psyche --disable-plugin NAME {' '.join(command)}"
    assert hint in " ".join(result.err.split())


def test_another_unknown_option_gets_no_such_hint(psyche: Psyche) -> None:
    result = psyche("plugins", "list", "--kinds", "model")
    assert result.code == 2
    assert "before the command" not in result.err
    assert "--kind" in result.err


def test_a_plugin_that_is_switched_off_is_not_checked(psyche: Psyche) -> None:
    """It was checked in five steps, and then its tests could not be collected."""
    result = psyche("--disable-plugin", "AdamW", "plugins", "check", "optimizer.AdamW")
    assert (result.code, result.out) == (2, "")
    assert "Error: optimizer.AdamW (" in result.err
    assert "is disabled (switched off by --disable-plugin or PSYCHE_DISABLE_PLUGINS), so it cannot be checked" in result.err
