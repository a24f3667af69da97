"""The words on the page of troubleshooting are those that the programs say."""

from __future__ import annotations

import ast
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "how-to" / "troubleshooting.md").read_text()
SEEN = [row.split("|")[1] for row in PAGE.splitlines() if row.startswith("| `")]


def texts() -> set[str]:
    """All strings of the programs; those of f-strings piece by piece."""
    sources = [*(REPOSITORY / "psyche_core").rglob("*.py"), *(REPOSITORY / "plugins").glob("*/psyche_*/**/*.py")]
    return {
        node.value
        for path in sources
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_each_sentence_is_one_that_a_program_says() -> None:
    said = "\n".join(texts())
    pieces = [piece for cell in SEEN for piece in re.findall(r"`([^`]+)`", cell)]
    assert len(pieces) >= 25
    assert [piece for piece in pieces if piece not in said] == []
