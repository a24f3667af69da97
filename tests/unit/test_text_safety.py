"""Text of others, made safe to show."""

from __future__ import annotations

import io
import logging
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from psyche_core.telemetry.events import Ended, Problem
from psyche_core.text_safety import MAX_PRINTABLE, PrintableFormatter, printable, printable_lines
from psyche_core.ui.event_text import describe
from psyche_core.ui.live import LineDisplay, LiveDisplay, dashboard
from psyche_core.ui.run_metrics import RunMetrics
from psyche_core.ui.summary import summary

HOSTILE = "run\x1b]0;owned\x07\x1b[2J\x1b[31m\r\n12:00:00 ended well \u202egnp.exe\u2066\u200b\x9b1m [bold]x[/bold][/nothing]"
UNSHOWN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def is_safe(text: str, *, lines: bool = False) -> bool:
    return all(unicodedata.category(letter) not in UNSHOWN or (lines and letter == "\n") for letter in text)


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=300)  # surrogates and unassigned ones, too


@given(ANY_TEXT, st.integers(1, 400))
def test_whatever_it_is_one_printable_line_of_bounded_length(text: str, at_most: int) -> None:
    shown = printable(text, at_most=at_most)
    assert is_safe(shown)
    assert len(shown) <= at_most
    assert printable(shown, at_most=at_most) == shown
    assert shown.splitlines() in ([shown], [])


@given(ANY_TEXT)
def test_what_is_harmless_stays_and_nothing_is_hidden(text: str) -> None:
    shown = printable(text, at_most=100_000)
    assert (shown == text) == is_safe(text)
    kept = "".join(letter for letter in text if is_safe(letter))
    assert len(shown) >= len(text)
    assert all(letter in shown for letter in kept)


@given(ANY_TEXT)
def test_only_line_feeds_are_kept_between_lines(text: str) -> None:
    shown = printable_lines(text)
    assert is_safe(shown, lines=True)
    assert shown.count("\n") == text.count("\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("größer – 言語 ✓", "größer – 言語 ✓"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("one\ntwo\r\tthree", r"one\ntwo\r\tthree"),
        ("a\u202eb\u2028c\x9b", r"a\u202eb\u2028c\x9b"),
        ("\U000e0041", r"\U000e0041"),
        ("\ud800", r"\ud800"),
        ("x" * (MAX_PRINTABLE + 1), "x" * (MAX_PRINTABLE - 1) + "…"),
    ],
)
def test_what_changes_others_stands_as_its_number(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_very_many_lines_are_cut() -> None:
    assert printable_lines("x\n" * 100_000).count("\n") == 1000


def test_events_in_lines() -> None:
    for event in (Problem("warning", HOSTILE), Ended(HOSTILE, success=False)):
        assert is_safe(describe(event))


def test_the_panel_the_lines_and_the_summary() -> None:
    """Escape sequences, line breaks and rich's own markup in names and reasons are shown, not followed."""
    metrics = RunMetrics(run_id=HOSTILE)
    metrics.handle("client-1", 0.0, Ended(HOSTILE, success=False))
    metrics.violations.append(HOSTILE)
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=False, width=400, color_system=None)
    console.print(dashboard(metrics, now=0.0, width=400))
    report = {"steps": 1, "epochs": 1, "identical": True, "validation": [], "train_seconds": 1.0, "wall_seconds": 1.0}
    console.print(summary(metrics, report, files=[]))
    LineDisplay(metrics, console).show("client-1", Problem("warning", HOSTILE))
    with LiveDisplay(metrics, console) as live:
        live.show("client-1", Problem("warning", HOSTILE))
    written = stream.getvalue()
    assert is_safe(written, lines=True)
    assert "[bold]x[/bold]" in written
    assert "\\x1b[2J" in written


def test_a_log_record_is_one_line() -> None:
    formatter = PrintableFormatter("%(levelname)s %(message)s")
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "refused: %s", (HOSTILE,), None)
    shown = formatter.format(record)
    assert is_safe(shown)
    try:
        raise ValueError(HOSTILE)
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed", (), (type(error), error, error.__traceback__))
    shown = formatter.format(record)
    assert is_safe(shown, lines=True)
    assert "Traceback" in shown
