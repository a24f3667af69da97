"""How the tests themselves are found: each module once, under one name."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


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
