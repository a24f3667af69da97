"""The package's own names: all there, loaded when asked for, and cheap until then."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import psyche_core as psyche

SOURCE = Path(psyche.__file__)


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_imports_next_to_nothing() -> None:
    found = run_python("import sys, psyche_core; print(*sys.modules)").split()
    heavy = [name for name in found if name.partition(".")[0] in ("psyche_core", "torch", "numpy", "pydantic", "anyio")]
    assert sorted(heavy) == ["psyche_core", "psyche_core.__about__"]


def test_only_what_trains_loads_torch() -> None:
    names = sorted({*psyche.__all__} - {"Client", "train", "train_async", "train_with", "train_with_async"})
    code = f"import sys, psyche_core as p; [getattr(p, name) for name in {names}]; print('torch' in sys.modules)"
    assert run_python(code) == "False"


@pytest.mark.parametrize("name", psyche.__all__)
def test_each_name_resolves(name: str) -> None:
    assert getattr(psyche, name) is not None
    assert name in dir(psyche)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(SOURCE.read_text())
    seen = {alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names if alias.asname}
    assert seen == set(psyche.__all__)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Klient'"):
        psyche.Klient  # noqa: B018
