"""Commands and client options that plugins bring, with throw-away distributions on sys.path."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from psyche_core import hookspecs, plugin_switches
from psyche_core.cli import plugin_commands, plugin_marks
from psyche_core.plugins import PluginApiWarning
from tests.unit.cli.conftest import Psyche

Install = Callable[[str, dict[str, str], str], None]

COMMAND = """
import click
from psyche_core.hookspecs import CommandRegistration, hookimpl

PSYCHE_PLUGIN_API = "1.0"

@click.command(epilog="psyche throwaway")
def throwaway():
    "Say hello."
    click.echo("hello")

@hookimpl
def psyche_register_commands():
    return [CommandRegistration(name="throwaway", summary="says hello", load=lambda: {loaded})]
"""

BACKEND = """
from pathlib import Path
from pydantic import ConfigDict, Field
from pydantic_settings import BaseSettings, SettingsConfigDict
from psyche_core.errors import BackendError
from psyche_core.hookspecs import BackendRegistration, hookimpl
from psyche_core.wire.signing import SecretKey

PSYCHE_PLUGIN_API = "1.0"

class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="PSYCHE_", extra="forbid")
    seat: int = Field(default=3, ge=1, description="Where to sit.", json_schema_extra={"short": "-q"})
    hat: str | None = Field(default=None, description="What to wear.")
    secret: str = Field(default="", description="Never shown.", json_schema_extra={"option": False})

def create(context):
    raise BackendError(f"made with {context.settings!r}, address {context.address!r}, key {context.key.public.hex()[:8]}")

@hookimpl
def psyche_register_backends():
    return [BackendRegistration(
        name="throwaway", summary="a chair", create=create, settings=Settings, needs_address=False,
        transport_key=lambda run_id, settings: SecretKey(bytes([settings.seat]) * 32), route=lambda settings: "127.0.0.1:9",
    )]
"""


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Install]:
    """Write a distribution (metadata, entry points, one module) where importlib.metadata and import find it."""
    folder = tmp_path / "site"
    folder.mkdir()
    sys.path.insert(0, str(folder))

    def write(distribution: str, entry_points: dict[str, str], code: str) -> None:
        info = folder / f"{distribution}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = "\n".join(f"{name} = {value}" for name, value in entry_points.items())
        (info / "entry_points.txt").write_text(f"[{hookspecs.GROUP}]\n{lines}\n")
        (folder / f"{next(iter(entry_points.values()))}.py").write_text(code)
        importlib.invalidate_caches()

    yield write
    sys.path.remove(str(folder))
    for name in ("throwaway_command", "throwaway_backend"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def test_the_group_and_the_kind_are_those_of_the_hooks() -> None:
    assert plugin_switches.GROUP == hookspecs.GROUP
    assert plugin_marks.KIND.removesuffix(".") in hookspecs.KINDS
    assert plugin_marks.PLUGIN_API == hookspecs.PLUGIN_API


def test_a_plugins_command_is_listed_without_importing_it_and_run_by_its_name(install: Install, psyche: Psyche) -> None:
    install("throwaway", {"command.throwaway": "throwaway_command"}, COMMAND.format(loaded="throwaway"))
    assert "throwaway from throwaway; see psyche throwaway --help" in " ".join(psyche("--help").out.split())
    assert "throwaway_command" not in sys.modules
    assert psyche("throwaway").out == "hello\n"


def help_of(psyche: Psyche, *before: str) -> str:
    return " ".join(psyche(*before, "--help").out.split())


def test_a_command_that_was_written_for_another_plugin_api_is_marked_without_importing_it(
    install: Install, psyche: Psyche
) -> None:
    code = COMMAND.format(loaded="throwaway").replace('"1.0"', '"2.0"')
    install("throwaway", {"command.throwaway": "throwaway_command"}, code)
    said = "throwaway (incompatible) from throwaway, which was written for plugin API 2.0; this psyche has 1.0"
    assert said in help_of(psyche)
    assert "throwaway_command" not in sys.modules
    assert "it was written for plugin API 2.0, this core has 1.0" in psyche("throwaway").err


def test_a_command_for_a_newer_minor_plugin_api_is_not_marked(install: Install, psyche: Psyche) -> None:
    code = COMMAND.format(loaded="throwaway").replace('"1.0"', "'1.9'")
    install("throwaway", {"command.throwaway": "throwaway_command"}, code)
    assert "throwaway from throwaway; see psyche throwaway --help" in help_of(psyche)


def test_a_command_in_a_package_is_read_there(install: Install, psyche: Psyche, tmp_path: Path) -> None:
    install("throwaway", {"command.throwaway": "throwaway_package.hooks"}, "")
    package = tmp_path / "site" / "throwaway_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise OSError('imported')")
    assert "throwaway (broken) from throwaway; its module throwaway_package.hooks is missing" in help_of(psyche)
    (package / "hooks.py").write_text("PSYCHE_PLUGIN_API: str = '3.1'\n")
    assert "(incompatible) from throwaway, which was written for plugin API 3.1" in help_of(psyche)


def test_a_command_that_is_switched_off_is_marked(install: Install, psyche: Psyche, monkeypatch: pytest.MonkeyPatch) -> None:
    install("throwaway", {"command.throwaway": "throwaway_command"}, COMMAND.format(loaded="throwaway"))
    said = "throwaway (disabled) from throwaway; see psyche plugins list --all"
    assert said in help_of(psyche, "--disable-plugin", "throwaway")
    assert said not in help_of(psyche)
    monkeypatch.setenv("PSYCHE_DISABLE_PLUGINS", "command.throwaway")
    assert said in help_of(psyche)


def test_a_command_of_two_distributions_is_marked_unless_one_is_off(install: Install, psyche: Psyche) -> None:
    for distribution in ("first", "second"):
        install(distribution, {"command.throwaway": "throwaway_command"}, COMMAND.format(loaded="throwaway"))
    assert "throwaway (ambiguous) from first and second; say psyche DISTRIBUTION:NAME" in help_of(psyche)
    assert psyche("second:throwaway").out == "hello\n"
    assert "throwaway from second; see psyche throwaway" in help_of(psyche, "--disable-plugin", "first")


def test_a_plugin_cannot_take_the_place_of_our_command(install: Install, psyche: Psyche) -> None:
    install("throwaway", {"command.plugins": "throwaway_command"}, COMMAND.format(loaded="throwaway"))
    help_text = psyche("--help").out
    assert help_text.count("\n  plugins ") == 1
    assert "List the installed plugins" in psyche("plugins", "--help").out


def test_a_broken_plugins_command_says_why_in_a_sentence(install: Install, psyche: Psyche) -> None:
    install("throwaway", {"command.throwaway": "throwaway_command"}, "raise OSError('out of paper')")
    result = psyche("throwaway")
    assert result.code == 2
    assert "out of paper" in result.err
    assert "Traceback" not in result.err


def test_what_is_no_command_is_refused(install: Install, psyche: Psyche) -> None:
    install("throwaway", {"command.throwaway": "throwaway_command"}, COMMAND.format(loaded="'hello'"))
    result = psyche("throwaway")
    assert (result.code, "provides a str, expected a click command" in result.err) == (2, True)


def test_our_own_command_that_is_not_installed_says_what_to_install(psyche: Psyche, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_commands, "plugin_commands", dict)
    result = psyche("run-manager", "list-runs")
    assert (result.code, "pip install 'psyche-core[solana]'" in result.err) == (2, True)


def test_a_backends_options_stand_in_the_help_only_when_it_is_chosen(
    install: Install, psyche: Psyche, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("throwaway", {"backend.throwaway": "throwaway_backend"}, BACKEND)
    assert "--seat" not in psyche("client", "train", "--help").out
    told = psyche("client", "train", "--backend", "throwaway", "--help").out
    assert "-q, --seat" in told
    assert "--hat" in told
    assert "--secret" not in told
    assert "-q, --seat" in psyche("client", "train", "--backend=throwaway", "--help").out
    monkeypatch.setenv("PSYCHE_BACKEND", "throwaway")
    assert "-q, --seat" in psyche("client", "train", "--help").out


def test_a_backends_options_reach_it(install: Install, psyche: Psyche, monkeypatch: pytest.MonkeyPatch) -> None:
    install("throwaway", {"backend.throwaway": "throwaway_backend"}, BACKEND)
    monkeypatch.setenv("PSYCHE_SEAT", "9")
    monkeypatch.setenv("PSYCHE_HAT", "red")
    words = ("client", "train", "--run-id", "r", "--backend", "throwaway", "--logs", "none")
    said = psyche(*words, "-q", "5").err
    assert "made with Settings(seat=5, hat='red', secret=''), address ''" in said
    assert "key 6e7a1cdd" in said  # public half of 05 05 05 …
    assert "seat=9" in psyche(*words).err


def test_a_backends_broken_rules_are_sentences(install: Install, psyche: Psyche) -> None:
    install("throwaway", {"backend.throwaway": "throwaway_backend"}, BACKEND)
    words = ("client", "train", "--run-id", "r", "--backend", "throwaway", "--logs", "none")
    result = psyche(*words, "--seat", "0")
    assert (result.code, "--seat: got 0" in result.err) == (2, True)
    result = psyche(*words, "--server-addr", "127.0.0.1:1")
    assert (result.code, "--server-addr means nothing to the backend throwaway" in result.err) == (2, True)


def test_another_backends_options_are_unknown(psyche: Psyche) -> None:
    result = psyche("client", "train", "--run-id", "r", "--server-addr", "127.0.0.1:1", "--seat", "5")
    assert (result.code, "No such option" in result.err) == (2, True)


def test_a_backend_that_needs_an_address_says_so(psyche: Psyche) -> None:
    result = psyche("client", "train", "--run-id", "r", "--logs", "none")
    assert result.code == 2
    assert "--server-addr is needed for tcp (or the environment variable PSYCHE_SERVER_ADDR)" in result.err


def test_an_unknown_backend_is_a_sentence(psyche: Psyche) -> None:
    result = psyche("client", "train", "--run-id", "r", "--backend", "carrier-pigeon")
    assert result.code == 2
    assert "no backend plugin is named carrier-pigeon" in result.err
    assert "Traceback" not in result.err


def test_a_warning_of_our_own_is_a_sentence_and_others_show_their_line(psyche: Psyche, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # undone afterwards
    assert psyche("--version").code == 0
    ours = PluginApiWarning("store.put (mine 1.2) was written for plugin API 1.9,\x1b[2J this core has 1.0")
    told = warnings.formatwarning(ours, PluginApiWarning, "hooks.py", 7)
    assert told.startswith("Warning: store.put (mine 1.2) was written for plugin API 1.9,")
    assert told.count("\n") == 1
    assert "\x1b" not in told
    assert warnings.formatwarning(UserWarning("theirs"), UserWarning, "theirs.py", 7).startswith(
        "theirs.py:7: UserWarning: theirs"
    )
