"""What a program and its screen say to each other."""

from __future__ import annotations

import pytest

from psyche_core.telemetry.events import StepTrained
from psyche_core.testing.backend import small_state
from psyche_core.tui.lines import (
    EndLine,
    EventLine,
    OutputLine,
    Request,
    StateLine,
    feed_line,
    parse_feed,
    parse_request,
    request_line,
)


@pytest.mark.parametrize(
    "line",
    [
        EventLine("client-1", 12.5, StepTrained(0, 1, 2.5, 3, 4.0, 5)),
        StateLine(3.0, small_state()),
        OutputLine(1.0, "a\nb"),
        EndLine(stays=True),
        EndLine(),
    ],
)
def test_lines_come_back_as_they_were(line: EventLine | StateLine | OutputLine | EndLine) -> None:
    written = feed_line(line)
    assert written.count(b"\n") == 1
    assert parse_feed(written) == line


def test_requests_come_back_as_they_were() -> None:
    assert parse_request(request_line(Request("expel", "ab"))) == Request("expel", "ab")


@pytest.mark.parametrize(
    "junk", [b"", b"{", b"[]", b"3", b'{"event": 3}', b'{"state": "AAAA", "time": 1}', b'{"ask": 1}', b"\xff"]
)
def test_what_is_not_understood_is_left_out(junk: bytes) -> None:
    assert parse_feed(junk) is None
    assert parse_request(junk) is None
