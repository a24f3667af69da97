"""Options and commands under headings, for `--help` and manual pages.

An option says its heading where it is defined: `option("--jobs", group="Compute", help=...)` for one of click's, the key `group`
of `json_schema_extra` for a field of a settings class. Headings are shown in the order in which their first options are defined.
A command without headings looks as click's do. Plugins may use this module for their commands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

WITHOUT_HEADING = "Options"
HELP_ALONE = "Help"
"""Heading of `--help` if all other options have one."""

COMMANDS = "Commands"

_MOST_NAMES = 30
"""Most columns of the names before the texts, as click has it."""


class GroupedOption(click.Option):
    """An option under a heading; an empty one means none."""

    def __init__(self, *args: Any, group: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose help shows options under their headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, one section for each heading."""
        write_sections(formatter, option_sections(ctx))


def option(*flags: str, group: str, **given: Any) -> Callable[[_Command], _Command]:
    """`click.option` under a heading."""
    return click.option(*flags, cls=GroupedOption, group=group, **given)


def options_of(group: str) -> Callable[..., Callable[[_Command], _Command]]:
    """A decorator like `option` for several options of one heading."""
    return functools.partial(option, group=group)


def option_sections(ctx: click.Context) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Heading, and names and text of each option, of a command as it is called in this context.

    Options without a heading come first. `--help` alone comes last. A command that leaves its options to another program lists
    them in a method `option_sections`.
    """
    listed = getattr(ctx.command, "option_sections", None)
    if listed is not None:
        yield from listed()
        return

    found: dict[str, list[tuple[str, str]]] = {"": []}
    for parameter in ctx.command.get_params(ctx):
        record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
        if record is not None:
            group = parameter.group if isinstance(parameter, GroupedOption) else ""
            found.setdefault(group, []).append(record)
    others = found.pop("")
    alone = bool(found) and len(others) == 1
    if others and not alone:
        yield WITHOUT_HEADING, others
    yield from found.items()
    if alone:
        yield HELP_ALONE, others


def command_sections(group: click.Group, names: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Headings, and those of the names that are below each, in the order of the group's attribute `sections`.

    names: of commands. Those that `sections` (heading -> names) lacks come last, under the heading `other_commands`.
    """
    left = list(names)
    sections: Mapping[str, Sequence[str]] = getattr(group, "sections", {})
    for heading, section in sections.items():
        shown = [name for name in section if name in left]
        left = [name for name in left if name not in shown]
        if shown:
            yield heading, shown
    if left:
        yield str(getattr(group, "other_commands", COMMANDS)), left


def write_sections(formatter: click.HelpFormatter, sections: Iterable[tuple[str, Iterable[tuple[str, str]]]]) -> None:
    """Write lists of names and texts, each under its heading; the texts of all begin in the same column."""
    lists = {heading: list(rows) for heading, rows in sections}
    width = min(_MOST_NAMES, max((len(names) for rows in lists.values() for names, _ in rows), default=0))
    for heading, rows in lists.items():
        with formatter.section(heading):
            formatter.write_dl([(names.ljust(width), text) for names, text in rows], col_max=_MOST_NAMES)
