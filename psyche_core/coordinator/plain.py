"""The state as a tree of dicts, lists, strings, bytes and integers, for a backend to send; and back, strictly.

Decided: fields by name as declared in `state`, a version in front, exact types, exact keys, sizes as `apply` keeps them, so
that a state from outside can be used without raising later. Refuses anything else with a WireError. Not the canonical image.
"""

from __future__ import annotations

import dataclasses
from enum import IntEnum
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from psyche_core import run_config
from psyche_core.coordinator.requeue import MAX_INTERVALS, merged
from psyche_core.coordinator.state import STORED_ROUNDS, CoordinatorState, Round
from psyche_core.coordinator.witness import BLOOM_BYTES
from psyche_core.errors import ConfigError, WireError
from psyche_core.types import MAX_CLIENTS, MAX_WITNESSES, BatchId

VERSION = 1

_MAX_TEXT = 1024
_STATEMENT_BYTES = {"participants": MAX_CLIENTS // 8, "broadcast_bloom": BLOOM_BYTES, "merkle_root": 32, "model_digest": 32}


def to_plain(state: CoordinatorState) -> dict[str, Any]:
    """The state as plain values, fit for `wire.codec.encode`."""
    return {"version": VERSION, "state": _written(state)}


def from_plain(plain: Any) -> CoordinatorState:
    """The state written by `to_plain`. Raises WireError and nothing else, whatever `plain` is."""
    if not isinstance(plain, dict) or plain.keys() != {"version", "state"}:
        message = "expected a coordinator state with version and state"
        raise WireError(message)
    if plain["version"] != VERSION:
        message = f"expected version {VERSION} of the coordinator state, got {plain['version']!r}; update the older side"
        raise WireError(message)

    state: CoordinatorState = _read(CoordinatorState, plain["state"], at="state")
    _check(state)
    return state


def _written(value: Any) -> Any:
    if isinstance(value, run_config.CoordinatorConfig | run_config.ModelConfig):
        return run_config.to_plain(value)
    if isinstance(value, IntEnum):
        return int(value)
    if dataclasses.is_dataclass(value):
        return {field.name: _written(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_written(item) for item in value]

    return value


@cache
def _hints(table: type) -> dict[str, Any]:
    return get_type_hints(table)


def _read(hint: Any, value: Any, *, at: str) -> Any:
    """`value` as the type `hint` says. at: where it stands, for messages."""
    if isinstance(hint, UnionType):
        (present,) = (option for option in get_args(hint) if option is not NoneType)
        return None if value is None else _read(present, value, at=at)
    if get_origin(hint) is tuple:
        _expect(isinstance(value, list), at, "a list", value)
        return tuple(_read(get_args(hint)[0], item, at=f"{at}[{place}]") for place, item in enumerate(value))
    if issubclass(hint, BaseModel):
        try:
            return run_config.from_plain(hint, value)
        except ConfigError as error:
            message = f"{at} is not a valid configuration: {error}"
            raise WireError(message) from error
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _read_fields(hint, value, at=at)
    if issubclass(hint, IntEnum):
        _expect(type(value) is int and value in hint.__members__.values(), at, f"a number of {hint.__name__}", value)
        return hint(value)

    _expect(type(value) is hint, at, hint.__name__, value)
    if hint is int:
        _expect(0 <= value < 2**64, at, "a number of 64 bits", value)
    return value


def _read_fields(table: type, value: Any, *, at: str) -> Any:
    hints = _hints(table)
    _expect(isinstance(value, dict) and value.keys() == hints.keys(), at, f"the fields {', '.join(hints)}", value)
    fields = {name: _read(hint, value[name], at=f"{at}.{name}") for name, hint in hints.items()}
    try:
        return table(**fields)
    except ValueError as error:
        message = f"{at}: {error}"
        raise WireError(message) from error


def _expect(condition: bool, at: str, expected: str, got: Any) -> None:
    if not condition:
        text = repr(got)
        message = f"{at}: expected {expected}, got {text if len(text) <= 80 else text[:80] + '…'}"
        raise WireError(message)


def _check(state: CoordinatorState) -> None:
    """What types cannot say, but computing with a state relies on."""
    clients = len(state.epoch.clients)
    _expect(len(state.run_id) <= _MAX_TEXT, "state.run_id", "a short text", state.run_id)
    _expect(clients <= MAX_CLIENTS, "state.epoch.clients", f"at most {MAX_CLIENTS}", clients)
    _expect(len(state.pending) <= MAX_CLIENTS, "state.pending", f"at most {MAX_CLIENTS}", len(state.pending))
    _expect(all(slot < clients for slot in state.epoch.ready), "state.epoch.ready", "slots of the epoch", state.epoch.ready)
    _expect(len(state.epoch.rounds) <= STORED_ROUNDS, "state.epoch.rounds", f"at most {STORED_ROUNDS}", len(state.epoch.rounds))
    heights = [stored.height for stored in state.epoch.rounds]
    consecutive = all(later == earlier + 1 for earlier, later in pairwise(heights))
    _expect(consecutive, "state.epoch.rounds", "consecutive heights", heights)
    for stored in state.epoch.rounds:
        _check_round(stored, clients)
    _check_intervals(state.requeue, at="state.requeue", at_most=MAX_INTERVALS)


def _check_round(stored: Round, clients: int) -> None:
    at = f"round {stored.height}"
    ascending = all(earlier < later for earlier, later in pairwise(stored.slots))
    _expect(ascending and all(slot < clients for slot in stored.slots), at, "ascending slots of the epoch", stored.slots)
    _check_intervals(stored.batches, at=at, at_most=MAX_INTERVALS + 1)
    _expect(len(stored.statements) <= MAX_WITNESSES, at, f"at most {MAX_WITNESSES} statements", len(stored.statements))
    for statement in stored.statements:
        _expect(statement.index < clients, at, "a statement of a slot of the epoch", statement.index)
        for name, size in _STATEMENT_BYTES.items():
            _expect(len(getattr(statement, name)) == size, f"{at}.{name}", f"{size} bytes", getattr(statement, name))


def _check_intervals(batches: tuple[BatchId, ...], *, at: str, at_most: int) -> None:
    _expect(len(batches) <= at_most, at, f"at most {at_most} intervals", len(batches))
    try:
        merged(batches)
    except ValueError as error:
        message = f"{at}: {error}"
        raise WireError(message) from error
