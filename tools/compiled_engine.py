"""Compile the engine that the simulator plays to machine code, so that more seeds are played in the same time.

    python tools/compiled_engine.py        compile it, or find it compiled; print the folder to put first in sys.path

The protocol's engine (`ENGINE`: coordinator, client machine, simulator, verification, wire format, types) is copied,
compiled there with mypyc and gcc (minutes), and kept for the next call. A run then takes about half the processor time. A Python
built with optimisations, as Debian's is and pyenv's is not unless told, takes a quarter less than one without.

The copy differs from the source in this, and nothing of it may change what a run does:

- It has only the modules that a simulated run imports. Anything else cannot be imported from it, so it never mixes two engines.
- `psyche_core/__init__.py` has no lazy imports.
- Dataclasses have no `slots=True` (mypyc gives every class fixed fields). They are not frozen, but have a frozen class's hash.
  Their `__init__` is written out: the one that `dataclass` makes would be interpreted, and takes a tenth of the time.
- Modules with an annotation `object` import it by name: mypyc's C code needs that.
- mypyc drops the parameters of annotations such as `tuple[int, ...]`, which the coordinator reads from its state's classes when
  a state arrives as bytes. `restore_annotations` puts them back as they are in the source.

What it does not do: the source stays as it is, the package is never shipped compiled, and nothing but the simulator's runs has
been compared. `simulated_seeds.py --compare` plays seeds with both and compares. Only the trainer "hash" is there, not "torch".

The folder's name is a digest over the code of all copied modules as prepared, the options of mypyc, and the versions of Python
and mypy. So a change of any of them compiles anew, and docstrings and comments of the engine do not count.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import fcntl
import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "build" / "compiled-engine"
ENTRIES = ("psyche_core.simulator.world", "psyche_core.simulator.parallel_runs")
ENGINE = (
    "psyche_core.client",
    "psyche_core.coordinator",
    "psyche_core.simulator",
    "psyche_core.verification",
    "psyche_core.wire",
    "psyche_core.types",
)
INTERPRETED = ("psyche_core.simulator.parallel_runs",)
"""Modules of the engine that stay Python: processes exchange its dataclasses, and compiled ones cannot be pickled."""

OPTIONS: dict[str, Any] = {"opt_level": "2", "debug_level": "0", "multi_file": True, "group_name": "engine"}
"""How mypyc is called. multi_file: many C files, compiled side by side."""

COMPILER = "gcc"
DONE = "done"
_FIND = """\
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
files = {name: module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "psyche_core"}
print(json.dumps(files))
"""
_CONFIGURATION = """\
[mypy]
python_version = {version}
strict_optional = true
ignore_missing_imports = true
disable_error_code = import-untyped

[mypy-torch.*,numpy.*]
follow_imports = skip

[mypy-psyche_core.simulator.replicas.torch_replica]
follow_imports = skip
"""


class CompiledEngineError(Exception):
    """The engine could not be compiled, or is not compiled where it should be. The message says what to do."""


def in_engine(name: str) -> bool:
    """Whether a module, by its full name, decides what a simulated run does."""
    return any(name == package or name.startswith(f"{package}.") for package in ENGINE)


def sources() -> dict[str, Path]:
    """The file of each module of psyche_core that a simulated run imports, by the module's name, sorted.

    Found in a fresh process: what the caller has imported does not matter.
    """
    command = [sys.executable, "-c", _FIND, str(ROOT), *ENTRIES]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ourselves
    if listed.returncode:
        message = f"the simulator cannot be imported:\n{listed.stderr}"
        raise CompiledEngineError(message)

    found: dict[str, str] = json.loads(listed.stdout)
    return {name: Path(file) for name, file in sorted(found.items())}


def to_compile(names: Iterable[str]) -> list[str]:
    """Those of the modules that are compiled."""
    return [name for name in names if in_engine(name) and name not in INTERPRETED]


def code_of(source: str) -> str:
    """A module's syntax tree as text, without docstrings and other expressions that are only text."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [part for part in body if not _is_text(part)] or [ast.Pass()]  # type: ignore[attr-defined] # has a body
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def prepared(source: str) -> str:
    """A module's source as mypyc takes it: dataclasses as below, and with `object` imported where it is used."""
    tree = ast.parse(source)
    lines = source.splitlines(keepends=True)
    for node in reversed(list(ast.walk(tree))):
        if isinstance(node, ast.ClassDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) in ("dataclass", "dataclasses.dataclass"):
                    _prepare_dataclass(lines, node, decorator)
    if any(isinstance(node, ast.Name) and node.id == "object" for node in ast.walk(tree)):
        lines.insert(_first_import(tree), "from builtins import object as object\n")
    return "".join(lines)


def _prepare_dataclass(lines: list[str], node: ast.ClassDef, decorator: ast.Call) -> None:
    """Rewrite the lines of one dataclass: no slots, not frozen but with the hash of a frozen one, and with its own `__init__`.

    The one that `dataclass` makes is interpreted, and calls `object.__setattr__` for each field of a frozen class.
    """
    options = {word.arg: ast.unparse(word.value) for word in decorator.keywords}
    options.pop("slots", None)
    if options.pop("frozen", None) and options.get("eq") != "False":
        options["unsafe_hash"] = "True"
    init = _init(node, keywords=bool(options.get("kw_only")))
    if init:
        options["init"] = "False"
        lines.insert(node.end_lineno or 0, init)
    text = ", ".join(f"{name}={value}" for name, value in options.items())
    lines[decorator.lineno - 1 : decorator.end_lineno] = [f"@{ast.unparse(decorator.func)}({text})\n"]


def _init(node: ast.ClassDef, *, keywords: bool) -> str:
    """The `__init__` of a dataclass as source; empty if it inherits fields or one calls `field`."""
    fields = [
        part for part in node.body if isinstance(part, ast.AnnAssign) and not ast.unparse(part.annotation).startswith("ClassVar")
    ]
    special = any(isinstance(part.value, ast.Call) and ast.unparse(part.value.func).endswith("field") for part in fields)
    if node.bases or special or not fields:
        return ""

    methods = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
    parameters = ["self", "*"] if keywords else ["self"]
    for part in fields:
        default = f" = {ast.unparse(part.value)}" if part.value else ""
        parameters.append(f"{ast.unparse(part.target)}: {ast.unparse(part.annotation)}{default}")
    body = [f"self.{ast.unparse(part.target)} = {ast.unparse(part.target)}" for part in fields]
    body += ["self.__post_init__()"] if "__post_init__" in methods else []
    return f"\n    def __init__({', '.join(parameters)}) -> None:\n" + "".join(f"        {line}\n" for line in body)


def _first_import(tree: ast.Module) -> int:
    """The line, from 0, before which an import may be put."""
    for node in tree.body:
        if not (_is_text(node) or (isinstance(node, ast.ImportFrom) and node.module == "__future__")):
            decorators = getattr(node, "decorator_list", [])
            first: int = min([node.lineno, *(decorator.lineno for decorator in decorators)])
            return first - 1
    return len(tree.body)


def docstring_only(source: str) -> str:
    """A module with nothing but its docstring."""
    return f'"""{ast.get_docstring(ast.parse(source)) or ""}"""\n'


def copied(files: Mapping[str, Path]) -> dict[Path, str]:
    """The text of each file of the copy, by its path in the copy: the modules, prepared, and the configuration of mypy."""
    compiled = set(to_compile(files))
    found = {}
    for name, file in files.items():
        source = file.read_text(encoding="utf-8")
        if name == "psyche_core":
            source = docstring_only(source)
        found[_place_of(name, file)] = prepared(source) if name in compiled else source
    found[Path("mypy.ini")] = _CONFIGURATION.format(version=".".join(platform.python_version_tuple()[:2]))
    return found


def _place_of(name: str, file: Path) -> Path:
    parts = name.split(".")
    return Path(*parts, "__init__.py") if file.name == "__init__.py" else Path(*parts).with_suffix(".py")


def built(place: Path = PLACE, *, jobs: int = 2) -> Path:
    """Compile the present engine if that has not been done, and return its folder.

    Args:
        place: the folder that holds compiled engines; made if it is not there.
        jobs: files that gcc compiles at a time.

    Raises:
        CompiledEngineError: mypyc or gcc is missing or failed.
    """
    files = sources()
    copy = copied(files)
    folder = place / _key(copy)
    if (folder / DONE).exists():
        return folder
    if shutil.which(COMPILER) is None:
        message = f"expected {COMPILER} to compile the engine, found none; install it, or play the seeds without --compiled"
        raise CompiledEngineError(message)

    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second call waits for the first one's engine
        if not (folder / DONE).exists():
            _build(copy, [_place_of(name, files[name]) for name in to_compile(files)], folder, jobs=jobs)
    return folder


def _key(copy: Mapping[Path, str]) -> str:
    """First 16 hex digits of the SHA-256 over all that decides what the compiled engine does."""
    try:
        mypy = importlib.metadata.version("mypy")
    except importlib.metadata.PackageNotFoundError:
        message = "expected mypy, whose mypyc compiles the engine, found none; run this with the Python of .venv (make setup)"
        raise CompiledEngineError(message) from None

    digest = hashlib.sha256(f"{platform.python_implementation()} {platform.python_version()} {mypy} {OPTIONS}\n".encode())
    for path, text in copy.items():
        digest.update(f"{path}\n{code_of(text) if path.suffix == '.py' else text}\n".encode())
    return digest.hexdigest()[:16]


def _build(copy: Mapping[Path, str], to_compile: list[Path], folder: Path, *, jobs: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for path, text in copy.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    print(f"compiling {len(to_compile)} modules in {folder}; this takes minutes", file=sys.stderr, flush=True)
    started = time.monotonic()
    log = folder / "log.txt"
    with log.open("w", encoding="utf-8") as output:
        command = [sys.executable, str(Path(__file__).resolve()), "--compile-here", str(jobs), *map(str, to_compile)]
        environment = {**os.environ, "CC": COMPILER}
        done = subprocess.run(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False)  # noqa: S603 - ourselves
    if done.returncode:
        last = "\n".join(log.read_text(encoding="utf-8").splitlines()[-15:])
        message = f"the engine could not be compiled; its log is {log}, which ends with:\n{last}"
        raise CompiledEngineError(message)

    shutil.rmtree(folder / "build", ignore_errors=True)
    (folder / DONE).touch()
    print(f"compiled in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _compile_here(paths: list[str], *, jobs: int) -> None:
    """Compile modules of the working directory in place; in a process of its own, since setuptools changes global things."""
    from mypyc.build import mypycify
    from setuptools import setup  # type: ignore[import-untyped]
    from setuptools._distutils.compilers.C import unix

    one_after_another = unix.Compiler.compile

    def side_by_side(self: Any, sources: list[str], *arguments: Any, **named: Any) -> list[str]:
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            objects = pool.map(lambda source: one_after_another(self, [source], *arguments, **named), sources)
            return [name for names in objects for name in names]

    unix.Compiler.compile = side_by_side  # type: ignore[method-assign, assignment]
    extensions = mypycify(["--config-file=mypy.ini", *paths], **OPTIONS)
    setup(name="engine", packages=[], py_modules=[], ext_modules=extensions, script_args=["build_ext", "--inplace"])


def compiled_modules(folder: Path) -> dict[str, Path]:
    """The copied source of each module that is compiled in a folder, by the module's name."""
    found = {}
    for path in sorted((folder / "psyche_core").rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {name: found[name] for name in to_compile(found)}


def use_compiled(folder: Path) -> None:
    """Import the compiled engine, in a process whose sys.path has the folder first, and make it play as the source does.

    Raises:
        CompiledEngineError: a module does not come from the folder's machine code.
    """
    modules = compiled_modules(folder)
    for name in modules or ENTRIES:
        file = importlib.import_module(name).__file__ or ""
        if not (file.endswith(".so") and Path(file).is_relative_to(folder)):
            message = f"expected {name} compiled in {folder}, got {file}; remove that folder and call again"
            raise CompiledEngineError(message)
    restore_annotations(modules)


def restore_annotations(files: Mapping[str, Path]) -> None:
    """Give the classes of compiled modules the annotations of their sources, as text. files: the sources by module."""
    for name, file in files.items():
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                fields = {
                    part.target.id: ast.unparse(part.annotation)
                    for part in node.body
                    if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
                }
                if fields:
                    getattr(sys.modules[name], node.name).__annotations__ = fields


def main() -> int:
    """Return 1 if the engine cannot be compiled."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--place", type=Path, default=PLACE, help="folder for compiled engines (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="files that gcc compiles at a time")
    parser.add_argument("--compile-here", nargs="+", help=argparse.SUPPRESS)  # how this program calls itself
    asked = parser.parse_args()
    if asked.compile_here:
        _compile_here(asked.compile_here[1:], jobs=int(asked.compile_here[0]))
        return 0

    try:
        print(built(asked.place, jobs=asked.jobs))
    except CompiledEngineError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
