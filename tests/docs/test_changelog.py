"""Fragments of the change log have names that towncrier takes, and towncrier makes a section of them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SETTINGS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["towncrier"]
TYPES = [kind["directory"] for kind in SETTINGS["type"]]
FRAGMENTS = [path for path in (REPOSITORY / "changelog.d").iterdir() if path.name != "README.md"]
NAME = re.compile(rf"(\d+|\+[\w-]+)\.({'|'.join(TYPES)})(\.\d+)?\.md")


@pytest.mark.parametrize("name", ["12.added.md", "+two-words.fixed.md", "12.breaking.1.md"])
def test_names_that_are_right(name: str) -> None:
    assert NAME.fullmatch(name)


@pytest.mark.parametrize("name", ["12.md", "12.feature.md", "words.added.md", "12.added.txt"])
def test_names_that_are_wrong(name: str) -> None:
    assert not NAME.fullmatch(name)


def test_every_fragment_has_a_type_and_says_something() -> None:
    assert [path.name for path in FRAGMENTS if not NAME.fullmatch(path.name)] == []
    assert [path.name for path in FRAGMENTS if not path.read_text().strip()] == []


def test_the_page_lists_the_types() -> None:
    page = (REPOSITORY / "changelog.d" / "README.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE) == TYPES


def test_towncrier_puts_a_section_above_the_older_ones(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "CHANGELOG.md"):
        (tmp_path / name).write_text((REPOSITORY / name).read_text())
    (tmp_path / "changelog.d").mkdir()
    for kind in TYPES:
        (tmp_path / "changelog.d" / f"+one.{kind}.md").write_text(f"About {kind}.")
    words = ["--yes", "--version", "9.9.9", "--date", "2030-01-01", "--dir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "towncrier", "build", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

    text = (tmp_path / "CHANGELOG.md").read_text()
    assert text.startswith("# Changes\n")
    assert "## 9.9.9 (2030-01-01)" in text
    assert text.index("## 9.9.9") < text.index("About internal.") < text.index("## 0.1.0")
    assert [kind for kind in TYPES if f"About {kind}." not in text] == []
