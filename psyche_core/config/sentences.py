"""Sentences for people: pydantic's validation errors as key, value and rule, and text from others made safe to show.

There is one sentence per problem, `key = value: rule`. For an unknown key the nearest known key is shown, never its value, which
may be a secret put in the wrong place. Text from others (a run's name, a server's refusal, a peer's reason) goes through
`printable` before it reaches a terminal, a log or a report: it must not be able to move the cursor, to colour, reorder or hide
our text, nor to add lines of its own.
"""

from __future__ import annotations

import difflib
import json
import logging
import types
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from psyche_core.errors import ConfigError

NESTED = "psyche_nested"
"""Error type of a custom validator that has several problems of its own; `ctx["problems"]` is a list of (path, text)."""

_SHOWN_CHARACTERS = 80

MAX_PRINTABLE = 1000
"""Most characters that are shown of one text of somebody else's."""

MAX_PRINTABLE_LINES = 1000
"""Most lines that are shown of a text of several."""

_UNSHOWN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that draw nothing or change how others are drawn: control, format (bidirectional overrides, zero width,
tags), halves of pairs, private, unassigned, and separators of lines and paragraphs."""


def printable(text: str, *, at_most: int = MAX_PRINTABLE) -> str:
    r"""Somebody else's text as one line that is safe to show, of at most `at_most` characters.

    A character that is not shown, or changes how others are (escape, line break, bidirectional override, zero width), stands as
    its number: `\x1b`, `\u202e`. What is cut off is marked with `…`. A text without such characters comes back as it is.
    """
    shown_part = text[: at_most + 1]  # each character is at least one of the result
    result = shown_part if shown_part.isascii() and shown_part.isprintable() else "".join(map(_visible, shown_part))
    return result if len(result) <= at_most else f"{result[: max(0, at_most - 1)]}…"


def printable_lines(text: str, *, at_most: int = 10 * MAX_PRINTABLE) -> str:
    """The same for a text of several lines that are our own: its line feeds stay. at_most: characters of a line."""
    lines = text.split("\n")
    cut = [*lines[:MAX_PRINTABLE_LINES], "…"] if len(lines) > MAX_PRINTABLE_LINES else lines
    return "\n".join(printable(line, at_most=at_most) for line in cut)


def _visible(character: str) -> str:
    if character == " " or unicodedata.category(character) not in _UNSHOWN:
        return character

    number = ord(character)
    if number < 0x100:
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character, f"\\x{number:02x}")
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


class PrintableFormatter(logging.Formatter):
    """A log formatter whose records are one printable line each, whoever's text they carry; tracebacks keep their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        """The line of a record; a line break in its message cannot pretend to be another record."""
        record.message = printable(record.message, at_most=10 * MAX_PRINTABLE)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's name
        """The traceback, each line printable."""
        return printable_lines(super().formatException(ei))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was probably meant to be, letter case aside."""
    by_fold = {candidate.casefold(): candidate for candidate in sorted(known)}
    near = difflib.get_close_matches(name.casefold(), by_fold, n=1)
    return by_fold[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the nearest known name, else `; known: A, B`, else nothing."""
    names = sorted(known)
    near = nearest(name, names)
    if near is not None:
        return f"; did you mean {near}?"

    return f"; known: {', '.join(names)}" if names else ""


def shown(value: Any) -> str:
    """A value as TOML would write it, cut to a line; its type where it has too many levels or digits to be written."""
    for written in (_as_json, str):
        try:
            text = written(value)
            break
        except (TypeError, ValueError, RecursionError):
            continue
    else:
        text = f"({type(value).__name__})"
    return printable(text, at_most=_SHOWN_CHARACTERS + 1)


def _as_json(value: Any) -> str:
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def join_path(*parts: str) -> str:
    """Dotted key of a table inside a table; empty parts are left out."""
    return ".".join(part for part in parts if part)


def nested_error(problems: list[tuple[str, str]]) -> PydanticCustomError:
    """What a custom validator raises for problems below its own key: (path below it, text after the path)."""
    text = "; ".join(join_path(path) + problem for path, problem in problems)
    return PydanticCustomError(NESTED, "{text}", {"text": text, "problems": problems})


def problems_of(error: ValidationError, model: type[BaseModel]) -> list[tuple[str, str]]:
    """(path, rest of the sentence) of every problem; `path + rest` is the sentence.

    model: the class that refused the input; its fields are the known keys.
    """
    found: list[tuple[str, str]] = []
    for detail in error.errors(include_url=False):
        loc = detail["loc"]
        path = join_path(*(str(part) for part in loc))
        kind, value = detail["type"], detail["input"]
        context: Mapping[str, Any] = detail.get("ctx") or {}
        if kind == NESTED:
            found.extend((join_path(path, below), text) for below, text in context["problems"])
        elif kind == "extra_forbidden":
            found.append((path, f": unknown key{did_you_mean(str(loc[-1]), _known_keys(model, loc[:-1]))}"))
        elif kind == "missing":
            found.append((path, ": missing; this key is required"))
        elif isinstance(value, BaseModel) or (kind == "value_error" and isinstance(value, Mapping)):
            found.append((path, f": {_rule(detail['msg'])}"))
        else:
            found.append((path, f" = {shown(value)}: {_rule(detail['msg'])}"))

    return found


def validated(model: type[BaseModel], given: Mapping[str, Any], *, where: str) -> BaseModel:
    """A table read by its model; unknown keys are refused also where the model would ignore or keep them.

    where: dotted key of the table. Raises ConfigError with one sentence per problem.
    """
    known = {name for key, field in model.model_fields.items() for name in (key, field.alias) if name}
    unknown = [key for key in given if key not in known] if model.model_config.get("extra") != "forbid" else []
    if unknown:
        raise ConfigError("\n".join(printable(f"{where}.{key}: unknown key{did_you_mean(key, known)}") for key in unknown))

    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise ConfigError("\n".join(sentences(error, model, where=where))) from error


def sentences(error: ValidationError, model: type[BaseModel], *, where: str = "") -> list[str]:
    """One sentence per problem. where: dotted key of the table that `model` describes."""
    return [printable(join_path(where, path) + text) for path, text in problems_of(error, model)]


def _rule(message: str) -> str:
    text = message.removeprefix("Value error, ").replace(" after validation, not ", ", got ")
    for theirs, ours in (
        ("Input should be greater than or equal to", "must be at least"),
        ("Input should be less than or equal to", "must be at most"),
        ("Input should be a valid dictionary or instance of", "must be a table for"),
        ("Input should be a valid tuple", "must be a list"),
        ("Input should be", "must be"),
        ("String should", "must"),
        ("Tuple should", "must"),
        ("List should", "must"),
        ("Value should", "must"),
    ):
        if text.startswith(theirs):
            return ours + text.removeprefix(theirs)

    return text


def _known_keys(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Keys of the table at `loc`; nothing where the path goes through a union or a free table."""
    at: Any = model
    for part in loc:
        if isinstance(part, int):
            at = next(iter(get_args(at)), None)
        elif isinstance(at, type) and issubclass(at, BaseModel) and part in _fields(at):
            at = _fields(at)[part]
        if get_origin(at) in (Union, types.UnionType):
            at = next((option for option in get_args(at) if isinstance(option, type) and issubclass(option, BaseModel)), None)

    return list(_fields(at)) if isinstance(at, type) and issubclass(at, BaseModel) else []


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}
