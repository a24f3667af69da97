"""What the manual of the Rust implementation prints works here, or a sentence says why not: `seed_commands.toml` is the list.

Each command is translated by the rules of the page `seeds-commands.md` and parsed as the program would, without starting it.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from command_lines import parse
from seed_programs import filled, ours

from psyche_backend_solana.commands.client.env_file import CLIENT_NAMES, with_prefix
from psyche_core.cli.reference_options import ABSENT
from psyche_core.config.options.client import ClientSettings
from psyche_core.training import sidecar

REPOSITORY = Path(__file__).parents[2]
LIST: dict[str, Any] = tomllib.loads((Path(__file__).parent / "seed_commands.toml").read_text())
PAGE = (REPOSITORY / "docs" / "reference" / "seeds-commands.md").read_text()
COMMANDS: list[dict[str, str]] = LIST["command"]
OPTIONS = [(each["name"], each["least"], option) for each in LIST["program"] for option in each["options"]]


def parses(words: list[str]) -> None:
    """Fail unless our program takes these words."""
    program, *rest = filled(words)
    if program == "make":
        assert re.search(rf"^{rest[0]}:", (REPOSITORY / "Makefile").read_text(), flags=re.MULTILINE)
        return

    assert program == "psyche"
    if rest[0] == "sidecar":
        given = sidecar.parser().parse_args([word for word in rest[1:] if word != "python"])
        assert given.main_host == "h"
    elif "--help" in rest:
        with pytest.raises(click.exceptions.Exit):
            parse(rest)
    else:
        parse(rest)


@pytest.mark.parametrize("entry", COMMANDS, ids=[each["theirs"] for each in COMMANDS])
def test_a_printed_command_is_one_of_ours_or_there_is_a_reason(entry: dict[str, str]) -> None:
    if "absent" in entry:
        assert len(entry["absent"]) > 10
        return
    for words in [shlex.split(entry["ours"])] if "ours" in entry else ours(entry["theirs"]):
        parses(words)


@pytest.mark.parametrize(("program", "least", "option"), OPTIONS, ids=[f"{name} {option}" for name, _, option in OPTIONS])
def test_an_option_of_their_programs_is_taken_or_a_sentence_says_what_to_do(program: str, least: str, option: str) -> None:
    name = option.partition(" ")[0]
    (words,) = ours(f"{program} {least if name not in least.split() else ''} {option}")
    if name in LIST["elsewhere"]:
        return
    if name not in ABSENT:
        parses(words)
        return
    with pytest.raises(click.UsageError) as raised:
        parses(words)
    assert raised.value.message == f"{name}: {ABSENT[name]}"


def test_no_option_is_called_absent_that_exists() -> None:
    printed = {option.partition(" ")[0] for _, _, option in OPTIONS}
    assert set(ABSENT) <= printed


@pytest.mark.parametrize("entry", LIST["variable"], ids=[each["name"] for each in LIST["variable"]])
def test_a_variable_is_read_or_there_is_a_reason(entry: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    name = entry["name"]
    if "absent" in entry:
        return
    if entry["where"] == "file":
        (read,) = with_prefix({name: "value"})
        assert read == name if entry.get("passed_on") else read.startswith("PSYCHE_")
    else:
        monkeypatch.setenv(name, "11" * 32)
        settings = ClientSettings(run_id="r")
        assert getattr(settings, name.lower()).get_secret_value() == "11" * 32


def test_a_file_may_name_every_setting_of_a_client_that_run_manager_does_not_decide() -> None:
    decided = {"RUN_ID", "SERVER_ADDR", "BACKEND", "DUMMY_TRAINING_DELAY_SECS"}
    assert {name.upper() for name in ClientSettings.model_fields} - decided == set(CLIENT_NAMES)


def test_the_page_lists_all_of_it() -> None:
    def shown(text: str) -> bool:
        return f"`{text}`" in PAGE or f"`{text} " in PAGE or f" {text}`" in PAGE or f" {text} " in PAGE

    programs = {each["name"] for each in LIST["program"]}
    variables = {each["name"] for each in LIST["variable"]}
    options = {option.partition(" ")[0] for _, _, option in OPTIONS}
    missing = {text for text in programs | variables | options if not shown(text)}
    assert not missing
    recipes = {each["theirs"] for each in COMMANDS if "absent" in each}
    assert not {text for text in recipes if text.split()[0].removeprefix("./") not in PAGE}
