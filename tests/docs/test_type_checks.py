"""mypy checks every folder. pyright checks that everything public in the packages has types, as a user of them sees it."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
TOOLS: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]
PLUGINS = sorted(REPOSITORY.glob("plugins/*/psyche_*"))
PYRIGHT = Path(sys.prefix) / "pyright" / "node_modules" / ".bin"


def test_mypy_looks_into_every_folder() -> None:
    roots = [REPOSITORY / folder for folder in TOOLS["mypy"]["mypy_path"]]
    checked = {root / name.replace(".", "/") for name in TOOLS["mypy"]["packages"] for root in roots}
    tracked = subprocess.check_output(["git", "ls-files", "*.py"], cwd=REPOSITORY, text=True).split()
    copies = [path for path in map(Path, tracked) if path.name == "hatch_build.py"]  # of tools/wheel_man_pages.py
    assert [name for name in tracked if Path(name) not in copies and checked.isdisjoint((REPOSITORY / name).parents)] == []


def test_mypy_finds_what_tests_import() -> None:
    assert set(TOOLS["pytest"]["ini_options"]["pythonpath"]) <= set(TOOLS["mypy"]["mypy_path"])


PACKAGES = sorted(
    path for folder in (REPOSITORY / "psyche_core", *PLUGINS) for path in folder.rglob("*.py") if "templates" not in path.parts
)
INHERITED = {"RunScreen.theme"}
"""Names that have their type from a base class elsewhere."""
GUESSED = """
items = make()
_own = make()
size = 3
LIMITS = (1, 2)
Alias = dict[str, int]

class Shown:
    names = ["a"]
    most = 3
    typed: int = make()

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.first = words[0]
        self._own = make()
        self.typed = make()
        self.later: int = make()
        self.counted = 0
        self.added: int = 0

    def begin(self) -> None:
        self.later = make()
        self.counted += 1
        self.added += 1
        with make() as self.opened:
            self.a, self.b = make()

class Kind(Enum):
    A = auto()

class _Own:
    names = ["a"]
"""


def test_no_public_name_has_a_type_that_is_guessed() -> None:
    """mypy demands types of functions, and guesses those of names that are given a value; a user's type checker may not agree.

    So says `pyright --verifytypes`, which reads core and plugins for more than a minute: only `make soak` does that.
    """
    assert len(PACKAGES) > 500
    assert {str(path.relative_to(REPOSITORY)): found for path in PACKAGES if (found := guessed(path.read_text()))} == {}
    assert guessed(GUESSED) == ["items", "Shown.names", "Shown.first", "Shown.counted", "Shown.opened", "Shown.a", "Shown.b"]


def guessed(source: str) -> list[str]:
    """Public names of a module that get values, but no type, nor one value whose type is plain."""
    values = [*untyped_names(ast.parse(source).body)]
    clear = {name for name, value in values if plain(value)} - {
        name for name, value in values if isinstance(value, ast.AugAssign)
    }
    return list(dict.fromkeys(name for name, _ in values if name not in clear | INHERITED))


def untyped_names(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """What a module or a class assigns, with the values. A name with a capital is a constant, of its value's type, or a type."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            if not any("Enum" in ast.unparse(base) for base in node.bases):
                names = [*untyped_names(node.body), *untyped_attributes(node)]
                yield from ((f"{node.name}.{name}", value) for name, value in names)
        elif isinstance(node, ast.Assign):
            yield from ((name.id, node.value) for name in assigned(node) if isinstance(name, ast.Name) and name.id[0].islower())


def untyped_attributes(class_: ast.ClassDef) -> Iterator[tuple[str, ast.AST]]:
    """What the methods of a class assign to attributes of `self` that have no type in the class."""
    typed = {ast.unparse(node.target).removeprefix("self.") for node in ast.walk(class_) if isinstance(node, ast.AnnAssign)}
    properties = {node.name for node in class_.body if isinstance(node, ast.FunctionDef)}  # with setters
    for node in ast.walk(class_):
        value = node.value if isinstance(node, ast.Assign) else node
        for target in assigned(node) if isinstance(node, ast.Assign | ast.AugAssign | ast.withitem) else []:
            if not isinstance(target, ast.Attribute) or ast.unparse(target.value) != "self":
                continue
            if target.attr[0].islower() and target.attr not in typed | properties:
                yield target.attr, value


def assigned(node: ast.Assign | ast.AugAssign | ast.withitem) -> Iterator[ast.expr]:
    """Each target, those of `a, b = …` too."""
    if isinstance(node, ast.AugAssign):
        yield node.target
        return
    targets = node.targets if isinstance(node, ast.Assign) else [node.optional_vars] if node.optional_vars else []
    for target in targets:
        yield from target.elts if isinstance(target, ast.Tuple) else [target]


def plain(value: ast.AST) -> bool:
    """Whether every type checker says the same of it: a literal, a name."""
    if isinstance(value, ast.BinOp):
        return plain(value.left) and plain(value.right)
    return isinstance(value, ast.Constant | ast.Name | ast.UnaryOp)


@pytest.mark.soak  # the test above finds what mypy does not
@pytest.mark.timeout(900)
def test_everything_public_in_the_core_has_types() -> None:
    assert untyped("psyche_core") == []


@pytest.mark.soak  # mypy reads plugins each time
@pytest.mark.timeout(900)
def test_everything_public_in_plugins_has_types(tmp_path: Path) -> None:
    """All plugins in one go, as parts of one package, so that what they import is read once."""
    together = tmp_path / "together"
    together.mkdir()
    (together / "__init__.py").touch()
    (together / "py.typed").touch()
    for package in PLUGINS:
        assert (package / "py.typed").exists()
        (together / package.name).symlink_to(package)
    assert untyped(together.name, *(f"{together.name}.{package.name}" for package in PLUGINS), path=str(tmp_path)) == []


def untyped(package: str, *parts: str, path: str = "") -> list[str]:
    """What pyright says about a package whose public names lack types. parts: packages that it must have looked into."""
    pyright = shutil.which("pyright", path=f"{PYRIGHT}{os.pathsep}{os.environ['PATH']}")
    if pyright is None:
        pytest.skip("needs pyright in .venv/pyright, where `make setup` installs it when there is npm")

    # With --verifytypes pyright looks for packages with the first `python` of PATH, whatever --pythonpath says.
    here = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": path}
    command = [pyright, "--verifytypes", package, "--ignoreexternal"]
    told = subprocess.run(command, cwd=REPOSITORY, env=here, capture_output=True, text=True, check=False)
    assert told.returncode in (0, 1), told.stderr
    lines = [line.strip() for line in told.stdout.splitlines()]
    assert {package, *parts} <= set(lines), told.stdout[:2000]
    wrong = [line for line in lines if "error:" in line]
    return wrong or ([] if told.returncode == 0 else [told.stdout[-2000:]])
