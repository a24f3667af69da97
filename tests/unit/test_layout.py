"""Modules import each other in one direction only, and each test module is found once, under one name."""

from __future__ import annotations

import ast
import graphlib
import tomllib
from pathlib import Path

import grimp

REPOSITORY = Path(__file__).parents[2]


def test_no_modules_import_each_other() -> None:
    """Directly or not, imports within functions included; what only type checkers see does not count.

    import-linter has the contract for packages (`make lint`), but for the client machine's.
    """
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    packages = settings["tool"]["importlinter"]["root_packages"]
    graph = grimp.build_graph(*packages, exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 500
    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle


def test_no_folder_is_listed_twice() -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    folders = settings["tool"]["pytest"]["ini_options"]["pythonpath"]
    assert len(folders) == len(set(folders))
    assert [folder for folder in folders if not (REPOSITORY / folder).is_dir()] == []


def test_no_test_module_is_imported_by_another() -> None:
    """pytest has imported it under another name already, so its fixtures, parameters and marks would exist twice."""
    importing = []
    for folder in ("tests", "plugins", "examples"):
        for path in (REPOSITORY / folder).rglob("test_*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                importing += [f"{path.name}: {name}" for name in names if name.rpartition(".")[2].startswith("test_")]
    assert importing == []
