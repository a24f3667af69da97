"""Readable sentences about wrong settings: pydantic's validation errors as key, value and rule, and similar known names.

There is one sentence per problem, `key = value: rule`. For an unknown key the most similar known key is shown, but never the
value, which may be a secret in the wrong place.
"""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Iterable, Mapping
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from psyche_core.errors import ConfigError
from psyche_core.text_safety import printable

NESTED = "psyche_nested"
"""Error type of a custom validator that reports several problems; `ctx["problems"]` is a list of (path, text)."""

_SHOWN_CHARACTERS = 80


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to `name`, ignoring case, or None if none is similar."""
    by_fold = {candidate.casefold(): candidate for candidate in sorted(known)}
    near = difflib.get_close_matches(name.casefold(), by_fold, n=1)
    return by_fold[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean X?` if a known name is similar, otherwise `; known: A, B`, or "" if there are no known names."""
    names = sorted(known)
    near = nearest(name, names)
    if near is not None:
        return f"; did you mean {near}?"

    return f"; known: {', '.join(names)}" if names else ""


def shown(value: Any) -> str:
    """Return a value as TOML would write it, shortened to one line. Returns its type if it has too many levels or digits."""
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
    """Return the dotted key of a table inside a table. Empty parts are left out."""
    return ".".join(part for part in parts if part)


def nested_error(problems: list[tuple[str, str]]) -> PydanticCustomError:
    """Return the error that a custom validator raises for problems below its key.

    problems: (path below the key, text after the path) of each problem.
    """
    text = "; ".join(join_path(path) + problem for path, problem in problems)
    return PydanticCustomError(NESTED, "{text}", {"text": text, "problems": problems})


def problems_of(error: ValidationError, model: type[BaseModel]) -> list[tuple[str, str]]:
    """Return (path, rest of the sentence) of every problem; `path + rest` is the sentence.

    model: the class that rejected the input; its fields are the known keys.
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
    """Read a table with its model. Unknown keys are errors even if the model would ignore or keep them.

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
    """Return one sentence per problem. where: dotted key of the table that `model` describes."""
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
    """Return the keys of the table at `loc`; an empty list if the path goes through a union or a table without a model."""
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
