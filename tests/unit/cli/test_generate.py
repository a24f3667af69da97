"""`psyche generate`: what it prints, and what it says of models and prompts that it cannot use."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Psyche
from tests.unit.evaluation.tiny_checkpoint import EXAMPLE, make_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


def test_several_prompts_are_continued_in_order(psyche: Psyche, folder: Path, tmp_path: Path) -> None:
    more = tmp_path / "prompts.txt"
    more.write_text("The king\n\nWhether\n")
    options = ("generate", folder, "--device", "cpu", "-n", 8, "-p", "To be", "--prompt-file", more)
    shown, objects = psyche(*options), psyche(*options, "--json")
    assert (shown.code, objects.code) == (0, 0), shown.err + objects.err
    written = [json.loads(line) for line in objects.out.splitlines()]
    assert [each["prompt"] for each in written] == ["To be", "The king", "Whether"]
    assert shown.out.startswith("To be")
    for each in written:
        assert each["tokens"] == 8


def test_standard_input_is_a_prompt(psyche: Psyche, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("To be,\nor not\n"))
    result = psyche("generate", folder, "--device", "cpu", "-n", 2, "--top-k", 3, "--json")
    assert json.loads(result.out)["prompt"] == "To be,\nor not"


def test_what_cannot_be_used_is_one_sentence(psyche: Psyche, folder: Path, tmp_path: Path) -> None:
    for arguments, said in (
        ((tmp_path / "none", "-p", "x"), "there is no folder"),
        ((EXAMPLE, "-p", "x"), "holds no weights"),
        ((make_checkpoint(tmp_path / "silent", tokenizer=False), "-p", "x"), "holds no tokenizer (tokenizer.json)"),
        ((folder, "--prompt-file", tmp_path / "none"), "cannot read the prompts in"),
        ((folder, "-p", "x", "--device", "cuda:77"), "cuda:77"),
    ):
        result = psyche("generate", *arguments)
        assert (result.code, said in result.err) == (2, True), result.err
        assert "Traceback" not in result.err
    other = psyche("generate", tmp_path / "silent", "--tokenizer", EXAMPLE, "-p", "x", "-n", 2, "--device", "cpu")
    assert other.code == 0, other.err
