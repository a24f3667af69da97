"""The threat model lists every known attack once, and each test it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "explanation" / "threat-model.md").read_text()
NAMED = sorted(set(re.findall(r"`((?:tests|plugins)/[\w/]+\.py::\w+)`", PAGE)))
ROWS = {
    cells[0]: cells
    for cells in ([cell.strip() for cell in line.strip().strip("|").split("|")] for line in PAGE.splitlines() if line[:1] == "|")
    if re.fullmatch(r"S?\d+", cells[0])
}
ATTACKS = [*map(str, range(1, 31)), *(f"S{number}" for number in range(1, 10))]


@cache
def functions_in(path: str) -> frozenset[str]:
    tree = ast.parse((REPOSITORY / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("name", NAMED, ids=lambda name: name.rpartition("::")[2])
def test_each_test_that_is_named_exists(name: str) -> None:
    path, _, test = name.partition("::")
    assert (REPOSITORY / path).is_file(), f"the threat model names {path}, which is not there"
    assert test in functions_in(path), f"{path} has no test {test}"


def test_every_known_attack_has_its_row_in_order() -> None:
    assert list(ROWS) == ATTACKS


@pytest.mark.parametrize("number", ATTACKS)
def test_each_attack_has_a_test_or_says_not_yet(number: str) -> None:
    _, attack, answer, tests = ROWS[number]
    assert attack
    assert answer
    assert re.search(r"`(tests|plugins)/[\w/]+\.py::test_\w+`", tests) or "not yet" in answer


def test_paths_that_are_named_exist() -> None:
    for path in re.findall(r"`((?:tests|plugins|psyche_core|docs)/[\w/.]+)`", PAGE):
        assert (REPOSITORY / path).exists(), path


def test_no_attack_stands_twice() -> None:
    numbers = [line.split("|")[1].strip() for line in PAGE.splitlines() if re.match(r"\| S?\d+ \|", line)]
    assert len(numbers) == len(set(numbers)) == len(ATTACKS)
