"""What a terminal shows while a check trains, and that nothing else is written to."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from psyche_core.cli.progress_line import ProgressLine, steps_trained


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_that_goes_away() -> None:
    terminal = Terminal()
    line = ProgressLine(terminal)
    line.tell("step 1 of 6,")
    line.tell("step 2 of 6,")
    line.clear()
    first, second, rest = terminal.getvalue().split("\r\x1b[K")[1:]
    assert first == "step 1 of 6, 0 s"
    assert second == "step 2 of 6, 0 s"
    assert rest == ""


def test_a_line_never_wraps_and_obeys_nobody() -> None:
    terminal = Terminal()
    ProgressLine(terminal).tell("\x1b[31m" + "x" * 500)
    shown = terminal.getvalue().removeprefix("\r\x1b[K")
    assert len(shown) < 80
    assert "\x1b" not in shown


def test_a_file_gets_nothing() -> None:
    file = io.StringIO()
    line = ProgressLine(file)
    line.tell("step 1 of 6")
    line.clear()
    assert file.getvalue() == ""


@pytest.mark.parametrize("torn", ["", '{"event": "step_trained", "st'])
def test_the_last_step_of_any_member_counts(tmp_path: Path, torn: str) -> None:
    assert steps_trained([]) == 0
    files = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for file, steps in zip(files, ((1, 2), (1, 2, 3)), strict=True):
        lines = [json.dumps({"event": "step_trained", "step": step}) for step in steps]
        file.write_text("\n".join([json.dumps({"event": "ended"}), *lines, ""]) + torn)
    assert steps_trained(files) == 3
