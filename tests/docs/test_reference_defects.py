"""The page of the reference's defects lists each once, and each test it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "explanation" / "reference-defects.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if re.match(r"\| \d+ ", line)]

MODELING_ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if re.match(r"\| M\d+ ", line)
]


def test_every_defect_has_its_row_in_order() -> None:
    assert [int(row[0]) for row in ROWS] == list(range(31, 61))


@pytest.mark.parametrize("row", ROWS + MODELING_ROWS, ids=lambda row: row[0])
def test_each_answer_has_a_test_that_exists_or_says_not_yet(row: list[str]) -> None:
    answer, named = row[2], re.findall(r"`([^`]+)`", row[3])
    if not named:
        assert answer.startswith("**not yet**")
        return

    for each in named:
        path, _, test = each.partition("::")
        tree = ast.parse((REPOSITORY / path).read_text())
        assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
