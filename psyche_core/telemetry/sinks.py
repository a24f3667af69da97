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

from psyche_core.telemetry.events import Event, PathOfPeer, PeerPaths

logger: logging.Logger = logging.getLogger("psyche.telemetry")

_CLASSES: tuple[type[Any], ...] = Event.__args__
_BY_NAME = {re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower(): cls for cls in _CLASSES}
_NAMES = {cls: name for name, cls in _BY_NAME.items()}

Sink = Callable[[Event], None]


def to_json(event: Event) -> str:
    """One line: `{"event": "step_trained", "time": <unix seconds>, ...fields}`. A number that is not finite becomes null."""
    told = {name: _finite(value) for name, value in asdict(event).items()}
    return json.dumps({"event": _NAMES[type(event)], "time": round(time.time(), 3), **told}, allow_nan=False)


def _finite(value: Any) -> Any:
    """The value; None for a number that JSON cannot represent."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def from_json(line: str) -> tuple[float, Event] | None:
    """Parse a line of `to_json` as (time, event); null for a float becomes NaN. None for any other line."""
    try:
        told = json.loads(line)
        cls = _BY_NAME[told.pop("event")]
        moment = float(told.pop("time"))
        unknown = {field.name: math.nan for field in fields(cls) if field.type == "float" and told.get(field.name, 0.0) is None}
        if cls is PeerPaths:
            told["peers"] = tuple(PathOfPeer(**each) for each in told["peers"])
        event: Event = cls(**{**told, **unknown})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None

    return moment, event


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
