"""The commands of docs/reference/exit-codes.md end with the codes that it gives."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from psyche_core.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "exit-codes.md"
ROWS = re.findall(r"^\| `psyche (.+?)` \| (\d+) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_the_table_has_an_example_of_each_code_that_a_command_gives_by_itself() -> None:
    assert {code for _, code in ROWS} == {"0", "1", "2"}


@pytest.mark.parametrize(("command", "code"), ROWS, ids=[command for command, _ in ROWS])
def test_a_command_ends_with_the_code_of_the_table(
    command: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.bin").write_bytes(b"abc")
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command))
    said = capsys.readouterr()
    assert ended.value.code == int(code), said.err
    assert bool(said.err) == (code == "2"), "one sentence, where something is wrong with what was asked"
