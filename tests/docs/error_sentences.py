"""The sentences of errors and of programs' ends, read from the code without running it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
INNER = ("psyche_core/testing/", "psyche_core/simulator/", "/localnet/", "/programs/")
"""Folders whose errors nobody meets who uses the programs."""

SHOWN = {
    *("UserError", "ConfigError", "PluginError", "PluginMissing", "IdentityError", "InputError", "CannotBind", "UnknownHost"),
    *("KeyUsedElsewhere", "AccessRefused", "LoginRefused", "CommandRefused", "BackendError", "BackendClosed", "NoSuchBucket"),
    *("ModelError", "NoSuchModel", "NoSuchDevice", "NoModelSource", "DamagedCheckpoint", "ReplayFailed", "RanksLost"),
    *("DataError", "StoreError", "TransportError", "MlflowUnavailable", "MlflowRefused", "PsycheError"),
    *("UsageError", "BadParameter"),
}
"""Errors that a program shows to people. The others are caught inside, or refuse what another program sent."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """What may be said at a place of the code. text: `…` stands for what is known at run time only."""

    place: str
    text: str


def sources() -> list[Path]:
    """The code of core and plugins."""
    return [*(REPOSITORY / "psyche_core").rglob("*.py"), *(REPOSITORY / "plugins").glob("*/psyche_*/**/*.py")]


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All that the code of a file consists of, in the order in which it stands there."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.stmt | ast.expr)]
    return tuple(sorted(nodes, key=lambda node: (node.lineno, node.col_offset)))


def error_sentences() -> Iterator[Sentence]:
    """Of each place that raises an error for people, if any of its words stand in the code."""
    for path in sources():
        name = str(path.relative_to(REPOSITORY))
        if any(part in name for part in INNER):
            continue
        known: dict[str, str] = {}
        for node in nodes_of(path):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                known[node.targets[0].id] = _text(node.value, known)
            elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and _called(node.exc) in SHOWN:
                text = " ".join(_text(argument, known) for argument in node.exc.args)
                if " " in text.strip(" …:"):  # neither the name of a refusal alone nor what another error said
                    yield Sentence(f"{name}:{node.lineno}", text)


def reasons_to_end() -> Iterator[Sentence]:
    """Of each place at which a program of a run says why it ends."""
    for path in sources():
        name = str(path.relative_to(REPOSITORY))
        if any(part in name for part in INNER) or "/ui/" in name:
            continue
        known: dict[str, str] = {}
        for node in nodes_of(path):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                known[node.targets[0].id] = _text(node.value, known)
            elif isinstance(node, ast.Call) and _called(node) in ("stop", "give_up", "Ended") and node.args:
                text = _text(node.args[0], known)
                if text.strip(" …"):
                    yield Sentence(f"{name}:{node.lineno}", text)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""


def _text(node: ast.AST, known: dict[str, str]) -> str:
    """The words of an expression."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_text(value, known) for value in values)
        case ast.FormattedValue(value=ast.Call(func=ast.Name(id="did_you_mean"))):
            return "; did you mean …"
        case ast.FormattedValue(value=ast.Name(id=name)) if name.isupper():
            return known.get(name, "…")
        case ast.BinOp(left=left, right=right):
            return _text(left, known) + _text(right, known)
        case ast.IfExp(body=body, orelse=other):
            return _text(body, known) + _text(other, known)
        case ast.Name(id=name):
            return known.get(name, "…")
        case _:
            return "…"
