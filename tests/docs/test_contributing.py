"""The pages for contributors say what is there: packages, recipes, kinds of plugin, slow tests. Links lead somewhere."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from pathlib import Path

import pytest

from psyche_core import __version__, hookspecs

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "CONTRIBUTING.md").read_text()
SLOW = (REPOSITORY / "docs" / "reference" / "slow-tests.md").read_text()
POLICY = (REPOSITORY / "docs" / "policy.md").read_text()
MAKEFILE = (REPOSITORY / "Makefile").read_text()
FOLDERS = ("docs", "plugins", "examples", "changelog.d")
PAGES = sorted([*REPOSITORY.glob("*.md"), *(path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*.md"))])
SLOW_MARKS = {"slow", "e2e", "packaging"}


def table(page: str, heading: str) -> list[list[str]]:
    """The rows of the first table below a heading, without its head."""
    _, _, rest = page.partition(f"\n## {heading}\n")
    rows = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", prose) if not re.match(r"https?://|mailto:|#", target)]
    assert [target for target in targets if not (page.parent / target.partition("#")[0]).exists()] == []


@pytest.mark.parametrize(
    "name", ["CONTRIBUTING.md", "SECURITY.md", "changelog.d/README.md", "docs/policy.md", "docs/plugins/policy.md"]
)
def test_recipes_that_are_named_exist(name: str) -> None:
    text = (REPOSITORY / name).read_text()
    named = set(re.findall(r"^make ([a-z-]+)$|`make ([a-z-]+)", text, flags=re.MULTILINE))
    targets = {one or other for one, other in named}
    assert [target for target in targets if not re.search(rf"^{target}:", MAKEFILE, flags=re.MULTILINE)] == []


def test_paths_that_are_named_exist() -> None:
    named = set(re.findall(r"`((?:psyche_core|plugins|tests|examples|docs|tools|changelog\.d)/[\w./-]*)`", PAGE + SLOW))
    assert len(named) > 40
    assert [path for path in sorted(named) if not (REPOSITORY / path).exists()] == []


def test_each_common_change_names_the_file_where_it_lands() -> None:
    rows = table(PAGE, "Where do I change …?")
    assert len(rows) >= 12
    files = [row[1].strip("`") for row in rows]
    assert [file for file in files if not (REPOSITORY / file).is_file()] == []


def test_every_package_is_on_the_map() -> None:
    told = " ".join(row[0] for row in table(PAGE, "Where things are"))
    named = set(re.findall(r"`([\w/]+)`", told))
    packages = [*REPOSITORY.glob("psyche_core/*/__init__.py"), *REPOSITORY.glob("plugins/*/pyproject.toml")]
    assert {path.parent.relative_to(REPOSITORY).as_posix() for path in packages} - named == set()
    assert {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "tests").iterdir() if holds_tests(path)} <= named


def holds_tests(folder: Path) -> bool:
    return next(folder.rglob("test_*.py"), None) is not None


def test_every_kind_of_plugin_has_its_row() -> None:
    assert [row[0] for row in table(PAGE, "Add a plugin")] == list(hookspecs.KINDS)


def marks_of(path: Path) -> set[str]:
    """Of the module's tests, but not where soak leaves the test out of `make test`."""
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
        ):
            found |= marks_in(node.value)
    if "soak" in found:
        return set()
    for part in ast.walk(tree):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own = set().union(*(marks_in(one) for one in part.decorator_list if not is_parametrize(one)), set())
            found |= set() if "soak" in own else own
    return found


def is_parametrize(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "parametrize"


def marks_in(node: ast.expr) -> set[str]:
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Attribute) and each.value.attr == "mark"
    }


def test_every_file_with_slow_tests_says_why() -> None:
    told = {row[0].strip("`"): row[1] for row in table(SLOW, "Which, and why")}
    files = [path for folder in ("tests", "plugins", "examples") for path in (REPOSITORY / folder).rglob("test_*.py")]
    slow = {path.relative_to(REPOSITORY).as_posix() for path in files if marks_of(path) & SLOW_MARKS}
    assert len(slow) > 15
    assert slow - set(told) == set()
    assert all(told.values())


def test_each_mark_that_the_page_explains_is_a_mark() -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    marks = {mark.partition(":")[0] for mark in settings["tool"]["pytest"]["ini_options"]["markers"]}
    assert {row[0].strip("`") for row in table(SLOW, "Marks")} == marks


def test_the_policy_names_what_there_is() -> None:
    modules = set(re.findall(r"`(psyche_core\.[a-z]+)`", POLICY))
    assert {"psyche_core.interfaces", "psyche_core.hookspecs", "psyche_core.testing"} <= modules
    for module in modules:
        assert importlib.import_module(module).__doc__
    assert hookspecs.GROUP in POLICY
    major, minor, *_ = __version__.split(".")
    assert f"psyche-core>={major}.{minor},<{major}.{int(minor) + 1}" in POLICY


def test_what_make_check_runs_is_there() -> None:
    words = re.findall(r"^FAST := ((?:.*\\\n)*.*)", MAKEFILE, flags=re.MULTILINE)[0].replace("\\\n", " ")
    folders = re.sub(r"\$\(.*?\)", "", words).split()
    assert "tests/unit/coordinator" in folders
    assert [folder for folder in folders if not (REPOSITORY / folder).is_dir()] == []
    left_out = re.findall(r"^LONG := ((?:.*\\\n)*.*)", MAKEFILE, flags=re.MULTILINE)[0].replace("\\\n", " ").split()
    assert [path for path in left_out if not (REPOSITORY / path).is_file() or path not in SLOW] == []


def test_make_check_leaves_out_only_marks_that_there_are() -> None:
    (marks,) = re.findall(r"^NOT_FAST := (.*)", MAKEFILE, flags=re.MULTILINE)
    assert set(marks.split(" or ")) <= {row[0].strip("`") for row in table(SLOW, "Marks")}
