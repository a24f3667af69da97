"""Manual pages of commands, made from the same texts as `--help`: roff with the macros of man(7). Pure.

The page of `psyche client train` is `psyche-client-train(1)`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator

import click

from psyche_core.cli.lazy import LazyGroup
from psyche_core.errors import PsycheError
from psyche_core.option_groups import command_sections, option_sections

VERBATIM = "\b"
"""Mark of click for a paragraph whose lines stay as they are."""

EXIT_STATUS = (
    ("0", "It did what was asked."),
    ("1", "The run or the program failed, or a plugin did."),
    ("2", "Something that you can mend: an option, a file, the name of a machine. Standard error says what."),
    ("130, 143", "Ended by SIGINT (Ctrl-C), by SIGTERM."),
)


def pages(context: click.Context) -> Iterator[tuple[str, str]]:
    """Name and text of the page of a command, and of all commands below it."""
    yield page_name(context), page(context)
    if isinstance(context.command, click.Group):
        for name, command in list(_below(context, context.command)):
            yield from pages(context_of(command, name, parent=context))


def context_of(command: click.Command, name: str, *, parent: click.Context | None = None) -> click.Context:
    """A context in which a command's texts are made, as if it was called without options."""
    return command.make_context(name, [], parent=parent, resilient_parsing=True)


def page_name(context: click.Context) -> str:
    """`psyche-client-train`."""
    return context.command_path.replace(" ", "-")


def page(context: click.Context) -> str:
    """The page of one command. context: see `context_of`."""
    from psyche_core.__about__ import __version__

    command = context.command
    name = page_name(context)
    lines = [f'.TH "{_text(name.upper())}" "1" "" "psyche {_text(__version__)}" "Psyche"']
    lines += [".nh", ".SH NAME", f"{_text(name)} \\- {_text(_summary(context))}"]
    lines += [".SH SYNOPSIS", f"\\fB{_text(context.command_path)}\\fR {_text(' '.join(command.collect_usage_pieces(context)))}"]
    lines += [".SH DESCRIPTION", *_paragraphs(command.help or "")]
    lines += _lists("OPTIONS", option_sections(context))
    if isinstance(command, click.Group):
        lines += _lists("COMMANDS", _command_lists(context, command))
    if command.epilog:
        lines += [".SH EXAMPLES", *_paragraphs(re.sub(r"(?m)^Examples?:\n", "", command.epilog))]
    if context.parent is None:
        lines += [".SH EXIT STATUS"]
        for code, meaning in EXIT_STATUS:
            lines += [".TP", f"\\fB{_text(code)}\\fR", _text(meaning)]
        lines += [
            ".SH ENVIRONMENT",
            *_paragraphs("PSYCHE_<OPTION> gives an option's value; an option that is given always wins."),
        ]
    else:
        lines += [".SH SEE ALSO", f"\\fB{_text(page_name(context.parent))}\\fR(1)"]
    return "\n".join(lines) + "\n"


def _lists(title: str, lists: Iterable[tuple[str, Iterable[tuple[str, str]]]]) -> list[str]:
    """A section of names and texts, with a subsection for each heading, which a heading that stands for all is not given."""
    found = [(heading, list(rows)) for heading, rows in lists]
    lines: list[str] = []
    for heading, rows in found:
        if len(found) > 1 or heading.upper() != title:
            lines.append(f".SS {_text(heading)}")
        for names, text in rows:
            lines += [".TP", f"\\fB{_text(names)}\\fR", _text(" ".join(text.split()))]
    return [f".SH {title}", *lines] if lines else []


def _command_lists(context: click.Context, group: click.Group) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    said = dict(_summaries(context, group))
    for heading, names in command_sections(group, said):
        yield heading, [(name, said[name]) for name in names]


def _below(context: click.Context, group: click.Group) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        with contextlib.suppress(PsycheError):  # a plugin that cannot be used has no page
            command = group.get_command(context, name)
            if command is not None and not command.hidden:
                yield name, command


def _summaries(context: click.Context, group: click.Group) -> Iterator[tuple[str, str]]:
    """Each command's short text; those of a table without loading the commands."""
    for name in group.list_commands(context):
        if isinstance(group, LazyGroup) and group.knows(name):
            yield name, group.summary(name)
            continue

        try:
            command = group.get_command(context, name)
        except PsycheError as error:
            yield name, str(error)
            continue

        if command is not None and not command.hidden:
            yield name, command.get_short_help_str(limit=200)


def _summary(context: click.Context) -> str:
    return context.command.get_short_help_str(limit=200) or context.command_path


def _paragraphs(text: str) -> Iterator[str]:
    """A help text as roff: paragraphs, and lines that stay as they are."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text.strip())):
        lines = [line.rstrip() for line in paragraph.splitlines()]
        if number:
            yield ".PP"
        if lines and lines[0].strip() == VERBATIM:
            yield ".nf"
            yield from (_text(line) for line in lines[1:])
            yield ".fi"
        else:
            yield _text(" ".join(line.strip() for line in lines))


def _text(text: str) -> str:
    """Text that roff shows as it is, on one line."""
    shown = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq").replace("'", "\\(aq").replace("`", "\\(ga")
    return "\\&" + shown if shown.startswith((".", " ")) else shown
