"""Help in sections: options of long commands and long lists of commands are under headings, the same in manual pages."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from psyche_core.cli import cli, man_pages
from psyche_core.config.options import groups
from psyche_core.config.options.client import ClientSettings
from psyche_core.config.options.loading import option_fields
from psyche_core.config.options.server import ServerSettings
from psyche_core.config.options.testnet import TestnetSettings
from psyche_core.config.options.train_local import TrainLocalSettings
from psyche_core.option_groups import GroupedCommand, GroupedOption, command_sections, option, option_sections
from tests.unit.cli.conftest import Psyche

LONG, MANY = 15, 10
"""A command with more than LONG options, and a group of more than MANY commands, needs headings."""
WIDTH = 80

ROOT = man_pages.context_of(cli, "psyche")


def contexts(context: click.Context) -> Iterator[click.Context]:
    """Of all commands, each as if it was called without options."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None
            yield from contexts(man_pages.context_of(command, name, parent=context))


ALL = {context.command_path: context for context in contexts(ROOT)}


def options(context: click.Context) -> list[click.Option]:
    shown = [each for each in context.command.get_params(context) if isinstance(each, click.Option) and not each.hidden]
    return [each for each in shown if "--help" not in each.opts]


LONG_COMMANDS = [path for path, context in ALL.items() if len(options(context)) > LONG]


def test_the_commands_that_people_use_most_are_long() -> None:
    assert {"psyche client train", "psyche server run", "psyche testnet start", "psyche train-local"} <= set(LONG_COMMANDS)
    assert {"psyche bench convergence", "psyche relay run", "psyche run-manager update-config"} <= set(LONG_COMMANDS)


@pytest.mark.parametrize("path", LONG_COMMANDS)
def test_every_option_of_a_long_command_is_under_a_heading(path: str) -> None:
    context = ALL[path]
    without = [each.opts[0] for each in options(context) if not isinstance(each, GroupedOption) or not each.group]
    assert without == []
    assert isinstance(context.command, GroupedCommand), "so that its help shows them"
    headings = [heading for heading, _ in option_sections(context)]
    assert len(headings) > 2
    assert headings[-1] == "Help"


@pytest.mark.parametrize("path", LONG_COMMANDS)
def test_help_shows_each_option_once_under_its_heading_and_fits_80_columns(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    context = ALL[path]
    text = context.command.get_help(man_pages.context_of(context.command, "x", parent=context.parent))
    texts = re.split(r"^  Examples?:$", text, flags=re.MULTILINE)[0]
    found: dict[str, str] = {}
    heading = ""
    for line in texts.splitlines():
        assert len(line) <= WIDTH, line
        heading = line.removesuffix(":") if re.fullmatch(r"[A-Z].*:", line) else heading
        named = re.match(r"  (?:-\w, )?(--[\w-]+)", line)
        if named and heading:
            assert named[1] not in found
            found[named[1]] = heading
    assert found.pop("--help") == "Help"
    wanted = {next(name for name in each.opts if name.startswith("--")): each for each in options(context)}
    assert found.keys() == wanted.keys()
    assert {name: each.group for name, each in wanted.items() if isinstance(each, GroupedOption)} == found


@pytest.mark.parametrize("settings", [ClientSettings, ServerSettings, TestnetSettings, TrainLocalSettings])
def test_headings_of_programs_are_those_of_the_list_and_in_its_order(settings: type[ClientSettings]) -> None:
    fields = {name: field for name, field in option_fields(settings).items() if field.json_schema_extra != {"option": False}}
    headings = list(dict.fromkeys(groups.heading_of(field) for field in fields.values()))
    assert set(headings) <= set(groups.ORDER)
    assert headings == sorted(headings, key=groups.ORDER.index)
    assert len(headings) > 6


def test_options_of_plugins_are_under_the_kind_and_the_name_of_theirs(psyche: Psyche) -> None:
    text = psyche("client", "train", "--backend", "solana", "--tracker", "tensorboard", "--help").out
    shown = dict(re.findall(r"^([A-Z][^\n]*):\n((?:  .*\n)+)", text, flags=re.MULTILINE))
    assert "  --rpc-2 TEXT" in shown["Options of the backend solana"]
    assert "  --iroh-relay TEXT" in shown["Options of the transport quic"]
    assert "  --tensorboard-dir PATH" in shown["Options of the tracker tensorboard"]
    assert "  --run-id TEXT" in shown["Run"]


def test_manual_pages_have_the_headings_of_help() -> None:
    for path in (*LONG_COMMANDS, "psyche", "psyche run-manager"):
        context = ALL[path]
        text = man_pages.page(man_pages.context_of(context.command, context.info_name or "", parent=context.parent))
        subsections = re.findall(r"^\.SS (.*)$", text, flags=re.MULTILINE)
        wanted = [heading for heading, _ in option_sections(context)]
        wanted = [] if wanted == ["Options"] else wanted
        if isinstance(context.command, click.Group):
            names = context.command.list_commands(context)
            wanted += [heading for heading, _ in command_sections(context.command, names)]
        assert subsections == [heading.replace("-", "\\-") for heading in wanted], path


def test_the_manual_page_of_the_sidecar_has_the_options_of_its_program(psyche: Psyche) -> None:
    page, shown = psyche("man", "sidecar").out, psyche("sidecar", "--help").out
    headings = re.findall(r"^(\w[^\n]*):$", shown.partition("Example:")[0], flags=re.MULTILINE)
    assert re.findall(r"^\.SS (.*)$", page, flags=re.MULTILINE) == [heading.capitalize() for heading in headings]
    wanted = set(re.findall(r"^  (--[a-z-]+)", shown.partition("Example:")[0], flags=re.MULTILINE))
    assert len(wanted) > 8
    assert {name.replace("\\-", "-") for name in re.findall(r"^\\fB(\\-\\-[a-z\\-]+)", page, flags=re.MULTILINE)} == wanted


@pytest.mark.parametrize(
    "path",
    [
        path
        for path, context in ALL.items()
        if isinstance(context.command, click.Group) and len(context.command.list_commands(context)) > MANY
    ],
)
def test_a_long_list_of_commands_is_in_sections_and_lacks_none(path: str, psyche: Psyche) -> None:
    context = ALL[path]
    assert isinstance(context.command, click.Group)
    names = context.command.list_commands(context)
    sections = dict(command_sections(context.command, names))
    assert len(sections) > 3
    assert sorted(name for section in sections.values() for name in section) == sorted(names)
    assert "Commands" not in sections, "each has a section"
    text = psyche(*path.split()[1:], "--help").out
    for heading, section in sections.items():
        body = text.partition(f"\n{heading}:\n")[2].partition("\n\n")[0]
        assert re.findall(r"^  (\S+)", body, flags=re.MULTILINE) == section


def test_texts_of_all_sections_begin_in_one_column(psyche: Psyche) -> None:
    text = psyche("--help").out.partition("Take part")[2].partition("Example:")[0]
    starts = [len(match[0]) for match in re.finditer(r"^  \S+ +(?=\S)", text, flags=re.MULTILINE)]
    assert len(starts) > MANY
    assert len(set(starts)) == 1


def test_options_without_a_heading_come_first_and_a_command_without_any_looks_as_ever() -> None:
    @click.command(cls=GroupedCommand)
    @option("--jobs", group="Compute", help="Processes.")
    @click.option("--plain", help="No heading.")
    def mixed(**_: object) -> None: ...

    @click.command(cls=GroupedCommand)
    @click.option("--plain", help="No heading.")
    def short(**_: object) -> None: ...

    assert [heading for heading, _ in option_sections(click.Context(mixed))] == ["Options", "Compute"]
    ordinary = click.Command("short", params=short.params)
    assert short.get_help(click.Context(short)) == ordinary.get_help(click.Context(ordinary))
