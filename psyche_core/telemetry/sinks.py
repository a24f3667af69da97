"""Delivery of events: the bus that passes each event to every sink, and events as JSON lines.

A sink that raises is removed with one warning: a broken display must never stop training.
"""

from __future__ import annotations

import json
import logging
import math
import re
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, TextIO

from psyche_core.telemetry.events import Event, OverlapOfResult, PathOfPeer

logger: logging.Logger = logging.getLogger("psyche.telemetry")

_CLASSES: tuple[type[Any], ...] = Event.__args__
_BY_NAME = {re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower(): cls for cls in _CLASSES}
_NAMES = {cls: name for name, cls in _BY_NAME.items()}
_EXACT = {"int": int, "float": float, "str": str, "bool": bool}
_FIELDS: dict[type[Any], tuple[tuple[str, str, type[Any] | None], ...]] = {
    cls: tuple((field.name, str(field.type), _EXACT.get(str(field.type))) for field in fields(cls))
    for cls in (*_CLASSES, PathOfPeer, OverlapOfResult)
}
"""Of each class: name, annotation and, if there is only one, type of each field."""

_MAX_TIME = 1e11
"""Unix seconds of a time that `time.gmtime` and browsers can show."""

_USUAL_COUNT = 2**53
_MAX_COUNT = 2**64

Sink = Callable[[Event], None]


def to_json(event: Event) -> str:
    """One line: `{"event": "step_trained", "time": <unix seconds>, ...fields}`. A number that is not finite becomes null."""
    told = {name: _finite(value) for name, value in asdict(event).items()}
    return json.dumps({"event": _NAMES[type(event)], "time": round(time.time(), 3), **told}, allow_nan=False)


def _finite(value: Any) -> Any:
    """The value; None for a number that JSON cannot represent."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def from_json(line: str) -> tuple[float, Event] | None:
    """Parse a line of `to_json` as (time, event); null for a float becomes NaN. None for any other line.

    Also None for a value of another type than the field's, for a field that is missing without a default, and for a number that
    no clock or counter shows. Fields that this version does not know are left out: a newer program may tell more.
    """
    try:
        told = json.loads(line)
        cls = _BY_NAME[told["event"]]
        moment = float(told["time"])
        event: Event = _instance(cls, told)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None

    return (moment, event) if 0 <= moment < _MAX_TIME else None


def _instance(cls: type[Any], told: dict[str, Any]) -> Any:
    """An object with the values that were told. Raises TypeError, ValueError, AttributeError for anything else."""
    values = {}
    for name, kind, exact in _FIELDS[cls]:
        if name in told:
            value = told[name]
            usual = type(value) is exact and (exact is not int or 0 <= value < _USUAL_COUNT)
            values[name] = value if usual else _checked(kind, value)
    return cls(**values)


def _checked(kind: str, value: Any) -> Any:
    """The value of a field annotated with `kind`. Raises TypeError if it is of another type, ValueError if it is out of range."""
    if value is None and kind.endswith("| None"):
        return None

    match kind.removesuffix(" | None"), value:
        case "float", None:
            return math.nan
        case "float", int() | float() if not isinstance(value, bool):
            return float(value)
        case "int", int() if not isinstance(value, bool):
            if not -_MAX_COUNT <= value < _MAX_COUNT:
                raise ValueError(value)
            return value
        case "str", str():
            return value
        case "bool", bool():
            return value
        case "tuple[str, ...]", list():
            return tuple(_checked("str", each) for each in value)
        case "tuple[PathOfPeer, ...]", list():
            return tuple(_instance(PathOfPeer, dict(each)) for each in value)
        case "tuple[OverlapOfResult, ...]", list():
            return tuple(_instance(OverlapOfResult, dict(each)) for each in value)
        case _:
            raise TypeError(kind)


class EventBus:
    """Passes events to all sinks. Sinks are called in the emitter's thread and must return quickly."""

    def __init__(self, *sinks: Sink) -> None:
        self._sinks = list(sinks)

    def __call__(self, event: Event) -> None:
        """Pass an event to every sink."""
        for sink in tuple(self._sinks):
            try:
                sink(event)
            except Exception as error:  # a display must never stop training
                self._sinks.remove(sink)
                logger.warning("an event sink failed and was removed: %r", error)


def json_lines(stream: TextIO) -> Sink:
    """A sink that writes one JSON line per event and flushes it."""

    def write(event: Event) -> None:
        stream.write(to_json(event) + "\n")
        stream.flush()

    return write
