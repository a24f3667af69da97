"""What must not appear in any package: readers that run code hidden in the bytes they read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
PACKAGES = [REPOSITORY / "psyche_core", *sorted((REPOSITORY / "plugins").glob("*/psyche_*"))]
MODULES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml"}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "torch.load",
    "np.load",
    "numpy.load",
    "torch.jit.load",
    "torch.package.PackageImporter",
    "os.system",
}


def offences(source: str) -> Iterator[str]:
    """Forbidden imports and calls in a module's text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in FORBIDDEN_CALLS:
                yield f"line {node.lineno}: {called}(…)"
            if any(keyword.arg == "shell" for keyword in node.keywords):
                yield f"line {node.lineno}: shell="
            if any(keyword.arg == "trust_remote_code" and ast.unparse(keyword.value) != "False" for keyword in node.keywords):
                yield f"line {node.lineno}: trust_remote_code"
            continue
        else:
            continue
        yield from (f"line {node.lineno}: import {name}" for name in names if name.partition(".")[0] in FORBIDDEN_MODULES)


def test_28_nothing_that_can_run_code_reads_bytes() -> None:
    assert len(MODULES) > 80, "the packages moved: this test looks at nothing"
    found = {str(path.relative_to(REPOSITORY)): said for path in MODULES if (said := list(offences(path.read_text())))}
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load(file)",
        "eval(text)",
        "import numpy as np\nnp.load(path)",
        "subprocess.run(command, shell=True)",
        "AutoModel.from_pretrained(path, trust_remote_code=True)",
    ],
)
def test_an_offence_is_seen(source: str) -> None:
    assert list(offences(source))


def test_what_only_sounds_like_one_is_not() -> None:
    assert not list(offences("model.eval()\nre.compile(text)\nast.literal_eval(text)\nsafetensors.torch.load_file(path)"))
