"""The messages between a program and its screen: JSON lines over two pipes.

The program sends events, states of the coordinator and lines of output; the screen sends requests. Both are processes of one user
on one machine; even so, each ignores lines that it does not understand. Pure.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass

from psyche_core.coordinator.serialization import from_plain, to_plain
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import WireError
from psyche_core.telemetry.events import Event
from psyche_core.telemetry.sinks import from_json, to_json
from psyche_core.wire.codec import decode, encode

MAX_STATE_BYTES = 1 << 22
MAX_TEXT = 4000
"""Longest line of output that is passed on, in characters."""


@dataclass(frozen=True, slots=True)
class EventLine:
    """An event of `source`, at `time` (unix seconds)."""

    source: str
    time: float
    event: Event


@dataclass(frozen=True, slots=True)
class StateLine:
    """A state of the coordinator, seen at `time` (unix seconds)."""

    time: float
    state: CoordinatorState


@dataclass(frozen=True, slots=True)
class OutputLine:
    """A line that the program wrote to its standard output or error; usually a warning."""

    time: float
    text: str


@dataclass(frozen=True, slots=True)
class EndLine:
    """The program's last line. stays: the screen stays until the user closes it."""

    stays: bool = False


FeedLine = EventLine | StateLine | OutputLine | EndLine


@dataclass(frozen=True, slots=True)
class Request:
    """A request of the user, by key, to the program.

    what: `interrupt` (as Ctrl+C), `leave` (the screen is closed, the program continues), `failed` (as `leave`, because the screen
    failed), `pause` (pause, or continue a paused run), `expel`, `update`. argument: a member's signer in hex, or a reason.
    """

    what: str
    argument: str = ""


def feed_line(line: FeedLine) -> bytes:
    """Return a line for the screen, with its line break."""
    match line:
        case EventLine():
            told = json.loads(to_json(line.event)) | {"time": line.time}
            return _line({"source": line.source, "event": told})
        case StateLine():
            written = base64.b64encode(encode(to_plain(line.state))).decode()
            return _line({"time": line.time, "state": written})
        case OutputLine():
            return _line({"time": line.time, "output": line.text[:MAX_TEXT]})
        case EndLine():
            return _line({"end": line.stays})


def parse_feed(line: bytes) -> FeedLine | None:
    """Read a line that `feed_line` returned; return None for other lines."""
    try:
        told = json.loads(line)
        if "event" in told:
            parsed = from_json(json.dumps(told["event"]))
            return None if parsed is None else EventLine(str(told["source"]), *parsed)
        if "state" in told:
            plain = decode(base64.b64decode(told["state"], validate=True), max_bytes=MAX_STATE_BYTES)
            return StateLine(float(told["time"]), from_plain(plain))
        if "output" in told:
            return OutputLine(float(told["time"]), str(told["output"]))
        return EndLine(bool(told["end"]))
    except (ValueError, KeyError, TypeError, RecursionError, WireError):
        return None


def request_line(request: Request) -> bytes:
    """Return a line for the program, with its line break."""
    return _line({"ask": request.what, "argument": request.argument})


def parse_request(line: bytes) -> Request | None:
    """Read a line that `request_line` returned; return None for other lines."""
    try:
        told = json.loads(line)
        return Request(str(told["ask"]), str(told["argument"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"
