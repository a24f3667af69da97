"""Converts the state to a tree of dicts, lists, strings, bytes and integers that a backend can send, and strictly back.

The tree contains a version, and then the fields by name as declared in `state`. Fields of verification are left out where they
have their defaults (`_LEFT_OUT`): the states of runs without it have the bytes that they had before. When a tree is read, its
types, keys, sizes and order must be exactly as `apply` would produce them (`state_checks`), so that code that uses the state
later does not fail. Anything else raises WireError, and so does a configuration that breaks a rule. The canonical image is
another format, see `canonical_image`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import IntEnum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from psyche_core.config import run_config
from psyche_core.coordinator.state import Client, CoordinatorState, Epoch, Round
from psyche_core.coordinator.state_checks import check_state, expectation
from psyche_core.errors import ConfigError, WireError
from psyche_core.types import WitnessStatement

VERSION = 7

_LEFT_OUT: dict[type, frozenset[str]] = {
    Client: frozenset({"standing"}),
    Epoch: frozenset({"challenges"}),
    Round: frozenset({"recomputing"}),
    WitnessStatement: frozenset({"words"}),
}
"""Fields that are in the tree only where they have another value than their default."""

_NO_FIELDS: frozenset[str] = frozenset()
_Conversion = Callable[[Any], Any]


def to_plain(state: CoordinatorState) -> dict[str, Any]:
    """Return the state as plain values that `wire.codec.encode` accepts."""
    return {"version": VERSION, "state": _written(state)}


def from_plain(plain: Any) -> CoordinatorState:
    """Read a state written by `to_plain`. Raises only WireError, whatever `plain` is."""
    if not isinstance(plain, dict) or plain.keys() != {"version", "state"}:
        message = "expected a coordinator state with version and state"
        raise WireError(message)
    if plain["version"] != VERSION:
        message = f"expected version {VERSION} of the coordinator state, got {plain['version']!r}; update the older side"
        raise WireError(message)

    state: CoordinatorState = _read(CoordinatorState, plain["state"], at="state")
    check_state(state)
    return state


def _written(value: Any) -> Any:
    return _writer(type(value))(value)  # type: ignore[arg-type]  # typeshed does not know that type[Any] is hashable


@cache
def _writer(kind: Any) -> _Conversion:
    """Return the function that converts values of a type to plain ones.

    Cached for each type, because a state with 256 members has thousands of values.
    """
    if issubclass(kind, run_config.CoordinatorConfig | run_config.ModelConfig):
        return run_config.to_plain
    if issubclass(kind, IntEnum):
        return int
    if dataclasses.is_dataclass(kind):
        return _fields_writer(kind)
    if issubclass(kind, tuple):
        return lambda value: [_written(item) for item in value]

    return lambda value: value


def _fields_writer(table: Any) -> _Conversion:
    names = tuple(field.name for field in dataclasses.fields(table))
    defaults = _defaults_left_out(table)
    if not defaults:
        return lambda value: {name: _written(getattr(value, name)) for name in names}

    def write(value: Any) -> dict[str, Any]:
        fields = ((name, getattr(value, name)) for name in names)
        return {name: _written(field) for name, field in fields if name not in defaults or field != defaults[name]}

    return write


def _defaults_left_out(table: Any) -> dict[str, Any]:
    """Return the fields of a table that may be left out, with their defaults."""
    names = _LEFT_OUT.get(table, _NO_FIELDS)
    return {field.name: field.default for field in dataclasses.fields(table) if field.name in names}


class _MismatchError(Exception):
    """A value is not as expected. sentence: end of the message. path: steps to the value, the innermost first."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.path: list[str] = []


def _read(hint: Any, value: Any, *, at: str) -> Any:
    """Read `value` as the type `hint`. at: path of the value, for messages. Raises WireError."""
    try:
        return _reader(hint)(value)
    except _MismatchError as error:
        message = f"{at}{''.join(reversed(error.path))}{error.sentence}"
        raise WireError(message) from error


@cache
def _reader(hint: Any) -> _Conversion:
    """Return the function that reads values of a type. Cached for each type. The function raises _MismatchError."""
    if isinstance(hint, UnionType):
        (present,) = (option for option in get_args(hint) if option is not NoneType)
        of_present = _reader(present)
        return lambda value: None if value is None else of_present(value)
    if get_origin(hint) is tuple:
        return _list_reader(_reader(get_args(hint)[0]))
    if issubclass(hint, BaseModel):
        return partial(_read_table, hint)
    if dataclasses.is_dataclass(hint):
        return _fields_reader(hint)
    if issubclass(hint, IntEnum):
        members = {int(member): member for member in hint}
        return lambda value: (
            members[value] if type(value) is int and value in members else _mismatch(f"a number of {hint.__name__}", value)
        )
    if hint is int:
        return _read_int

    return lambda value: value if type(value) is hint else _mismatch(hint.__name__, value)


def _read_int(value: Any) -> Any:
    if type(value) is not int:
        _mismatch("int", value)
    return value if 0 <= value < 2**64 else _mismatch("a number of 64 bits", value)


def _read_table(table: type[BaseModel], value: Any) -> Any:
    try:
        return run_config.from_plain(table, value)
    except ConfigError as error:
        sentence = f" is not a valid configuration: {error}"
        raise _MismatchError(sentence) from error


def _list_reader(item_reader: _Conversion) -> _Conversion:
    def read(value: Any) -> Any:
        if not isinstance(value, list):
            _mismatch("a list", value)
        items: list[Any] = []
        try:
            for item in value:
                items.append(item_reader(item))  # noqa: PERF401 - the error path needs len(items)
        except _MismatchError as error:
            error.path.append(f"[{len(items)}]")
            raise
        return tuple(items)

    return read


def _fields_reader(table: Any) -> _Conversion:
    readers = {name: _reader(hint) for name, hint in get_type_hints(table).items()}
    names = readers.keys()
    defaults = _defaults_left_out(table)

    def read(value: Any) -> Any:
        if not isinstance(value, dict) or (value.keys() | defaults.keys() if defaults else value.keys()) != names:
            _mismatch(f"the fields {', '.join(names)}", value)
        fields: dict[str, Any] = {}
        name = ""
        try:
            for name, reader in readers.items():
                if name in value:
                    fields[name] = reader(value[name])
                    if name in defaults and fields[name] == defaults[name]:
                        _mismatch("another value than the default, which is left out", value[name])
        except _MismatchError as error:
            error.path.append(f".{name}")
            raise
        try:
            return table(**fields)
        except ValueError as error:
            sentence = f": {error}"
            raise _MismatchError(sentence) from error

    return read


def _mismatch(expected: str, got: Any) -> NoReturn:
    sentence = f": {expectation(expected, got)}"
    raise _MismatchError(sentence)
