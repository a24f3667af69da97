"""The words on the page of troubleshooting are those that the programs say, and it has a row for whatever needs one."""

from __future__ import annotations

import ast
import re

from error_sentences import REPOSITORY, Sentence, error_sentences, nodes_of, reasons_to_end, sources

PAGE = (REPOSITORY / "docs" / "how-to" / "troubleshooting.md").read_text(encoding="utf-8")
EXIT_CODES = (REPOSITORY / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")
PIECES = [piece for row in PAGE.splitlines() if row.startswith("|") for piece in re.findall(r"`([^`]+)`", row.split("|")[1])]

REMEDY = re.compile(
    r"; |\bexpected\b|\bgive\b|\bmust\b|\bneed(s|ed)?\b|\binstall\b|\bchoose\b|\bcheck\b|\bone of\b|\ballow\b|\bpay them\b"
    r"|\bRestore\b|\binstead\b|--[a-z]|, got …"
)
"""Words with which a sentence says what was expected, or what to do."""


def texts() -> set[str]:
    """All strings of the programs; those of f-strings piece by piece."""
    return {
        node.value
        for path in sources()
        for node in nodes_of(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def has_row(sentence: Sentence) -> bool:
    return any(re.search(".*".join(map(re.escape, piece.split("…"))), sentence.text) for piece in PIECES)


def test_each_sentence_is_one_that_a_program_says() -> None:
    said = "\n".join(texts())
    assert len(PIECES) >= 150
    assert [piece for piece in PIECES if any(part not in said for part in piece.split("…"))] == []


def test_no_row_is_so_general_that_it_would_stand_for_anything() -> None:
    assert [piece for piece in PIECES if len(piece) < 8 and piece != "torch"] == []


def test_each_error_says_what_to_do_or_has_a_row() -> None:
    found = list(error_sentences())
    assert len(found) > 500, "the code is read"
    assert [each for each in found if not REMEDY.search(each.text) and not has_row(each)] == []


def test_each_reason_for_which_a_program_of_a_run_ends_has_a_row() -> None:
    found = list(reasons_to_end())
    assert len(found) > 10, "the code is read"
    assert [each for each in found if not has_row(each)] == []


def test_each_exit_code_has_a_row() -> None:
    codes = re.findall(r"^\| (\d+) \|", EXIT_CODES, flags=re.MULTILINE)
    assert len(codes) == 5
    assert re.findall(r"^\| (\d+) \|", PAGE, flags=re.MULTILINE) == codes


def test_each_finding_of_the_doctor_has_a_remedy() -> None:
    code = REPOSITORY / "psyche_core" / "cli" / "commands" / "doctor_checks.py"
    calls = [node for node in nodes_of(code) if isinstance(node, ast.Call) and ast.unparse(node.func) == "CheckResult"]
    bad = [call for call in calls if ast.unparse(call.args[1]) in ("'warning'", "'problem'")]
    assert len(bad) > 10, "the code is read"
    assert [ast.unparse(call) for call in bad if len(call.args) < 4] == []
