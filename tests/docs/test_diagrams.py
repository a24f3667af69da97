"""The pages' diagrams say what the code says: names, states, layers and calls; a kind's page has its options and errors."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from psyche_core import errors, hookspecs, interfaces
from psyche_core.cli.plugin_check import _CLASSES
from psyche_core.plugins.loading import HOOKS
from psyche_core.testing.conformance import Conformance
from psyche_core.types import RunState
from psyche_core.verification.challenge import Outcome, Stage

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
DIAGRAMS = [
    (path.relative_to(DOCS).as_posix(), block)
    for path in sorted(DOCS.rglob("*.md"))
    for block in re.findall(r"```mermaid\n(.*?)```", path.read_text(), flags=re.DOTALL)
]
KINDS = {kind: (DOCS / "plugins" / "kinds" / f"{kind}.md").read_text() for kind in hookspecs.KINDS}
CONTRACTS = {
    "backend": (interfaces.Backend, interfaces.BackendServer),
    "optimizer": (interfaces.Optimizer,),
    "data": (interfaces.DataProvider,),
    "transport": (interfaces.Transport,),
    "model": (interfaces.Model,),
    "sharding": (interfaces.ShardingEngine, interfaces.RankGroup),
    "relay": (interfaces.Relay,),
    "tracker": (interfaces.Tracker,),
    "store": (interfaces.ModelStore,),
    "command": (),
}
OURS = {"create", "create_server", "load", "check", "check_client_command"}
"""Calls of registrations and helpers."""


def _names_of_the_code() -> set[str]:
    """Every identifier of the core and of the plugins, and the parts of module names."""
    found: set[str] = set()
    for path in [*(REPOSITORY / "psyche_core").rglob("*.py"), *(REPOSITORY / "plugins").glob("*/psyche_*/**/*.py")]:
        found |= {*path.with_suffix("").relative_to(REPOSITORY).parts}
        found |= {*re.findall(r"[A-Za-z_][A-Za-z0-9_]*", path.read_text())}
    return found


NAMES = _names_of_the_code()


def labels(diagram: str) -> str:
    """What people read of a diagram: without its keywords and its own names of boxes."""
    lines = [line.strip() for line in diagram.splitlines()]
    if lines[0].startswith("flowchart"):
        return "\n".join(re.findall(r'"([^"]*)"', diagram))
    if lines[0].startswith("sequenceDiagram"):
        told = [line.partition(" as ")[2] or line.partition(" ")[2] for line in lines if line.startswith("participant")]
        calls = [line.partition(":")[2] for line in lines if re.match(r"\w+\s*(-->>|->>|--x)", line)]
        around = [line.partition(" ")[2] for line in lines if line.startswith(("loop ", "opt ", "alt ", "Note "))]
        return "\n".join((*told, *calls, *around))
    return "\n".join(line for line in lines[1:] if "-->" in line)


def written_as_code(text: str) -> set[str]:
    """Words that can only be names of the code: with an underscore, a second capital, a dot between them, or a call."""
    words = set(re.findall(r"\b[A-Za-z]\w*_\w+\b|\b[A-Z][a-z]+(?:[A-Z][a-z]*)+\b|\b\w+(?=\(\))", text))
    for dotted in re.findall(r"\b[a-z_]+(?:\.[A-Za-z_]+)+\b", text):
        words |= {*dotted.split(".")}
    return words


def test_there_are_diagrams() -> None:
    pages = {page for page, _ in DIAGRAMS}
    assert {f"plugins/kinds/{kind}.md" for kind in hookspecs.KINDS} <= pages
    assert {f"explanation/{name}.md" for name in ("architecture", "protocol", "verification")} <= pages


@pytest.mark.parametrize(("page", "diagram"), DIAGRAMS, ids=[page for page, _ in DIAGRAMS])
def test_every_name_in_a_diagram_is_one_of_the_code(page: str, diagram: str) -> None:
    assert diagram.startswith(("flowchart ", "sequenceDiagram\n", "stateDiagram-v2\n")), page
    told = written_as_code(labels(diagram))
    assert told, page
    assert sorted(told - NAMES) == [], page


@pytest.mark.parametrize(("page", "diagram"), DIAGRAMS, ids=[page for page, _ in DIAGRAMS])
def test_a_diagram_has_nothing_that_breaks_its_drawing(page: str, diagram: str) -> None:
    """Semicolons end a statement of Mermaid, and what is opened is closed."""
    assert not re.search(r"[;#]", diagram), page
    lines = [line.strip() for line in diagram.splitlines()]
    opened = sum(line.startswith(("loop ", "opt ", "alt ", "subgraph ")) for line in lines)
    assert opened == lines.count("end"), page
    if diagram.startswith("sequenceDiagram"):
        known = {line.split()[1] for line in lines if line.startswith("participant ")}
        said = [re.match(r"(\w+)\s*(?:-->>|->>|--x)\s*(\w+):", line) for line in lines]
        assert {name for match in said if match for name in match.groups()} <= known, page


def test_the_layers_are_those_that_are_enforced() -> None:
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each["name"].startswith("Layers: a package imports"))
    (drawn,) = (block for page, block in DIAGRAMS if page == "explanation/architecture.md" and "layer00" in block)
    boxes = dict(re.findall(r'(layer\d\d)\["(.*)"\]', drawn))
    chains = re.findall(r"^ +(layer\d\d(?: --> layer\d\d)+)$", drawn, flags=re.MULTILINE)
    (order,) = re.findall(r"^    (\w+(?: --> \w+)+)$", drawn, flags=re.MULTILINE)
    assert order.split(" --> ") == re.findall(r"subgraph (\w+)", drawn)
    shown = [boxes[name] for chain in chains for name in chain.split(" --> ")]
    assert shown == [" · ".join(name.strip().removeprefix("psyche_core.") for name in each.split(":")) for each in layers]


def states(page: str) -> list[tuple[str, str, str]]:
    (drawn,) = (block for at, block in DIAGRAMS if at == page and block.startswith("stateDiagram"))
    return re.findall(r"^ +(\S+) --> (\S+)(?:: (.*))?$", drawn, flags=re.MULTILINE)


def test_the_epoch_s_states_are_the_coordinator_s_and_each_is_entered() -> None:
    moves = states("explanation/protocol.md")
    named = {name for one, other, _ in moves for name in (one, other)} - {"[*]"}
    assert named == {state.name for state in RunState}
    entered = set()
    for path in (REPOSITORY / "psyche_core" / "coordinator").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "entered":
                entered.add(ast.unparse(call.args[1]).removeprefix("RunState."))
    assert {other for one, other, _ in moves if one != "[*]"} - {"[*]"} == entered


def test_the_stages_of_a_challenge_are_drawn_with_their_outcomes() -> None:
    moves = states("explanation/verification.md")
    assert {name for one, other, _ in moves for name in (one, other)} - {"[*]"} == {stage.name for stage in Stage}
    onward = [(one, other) for one, other, _ in moves if other not in ("CLOSED", "[*]") and one != "[*]"]
    assert all(Stage[one] < Stage[other] for one, other in onward)
    assert {other for _, other in onward} == {stage.name for stage in Stage} - {"COMMIT", "CLOSED"}
    told = {word for _, other, why in moves if other == "CLOSED" for word in re.findall(r"[A-Z_]{3,}", why)}
    assert told == {outcome.name for outcome in Outcome}


@pytest.mark.parametrize("kind", hookspecs.KINDS)
def test_the_lifecycle_of_a_kind_calls_what_its_contract_has(kind: str) -> None:
    (drawn,) = re.findall(r"```mermaid\n(.*?)```", KINDS[kind], flags=re.DOTALL)
    has = {name for contract in CONTRACTS[kind] for name in dir(contract)} | OURS
    if kind in ("model", "optimizer"):  # each calls the other
        has |= {*dir(interfaces.Model), *dir(interfaces.Optimizer)}
    hook, _ = HOOKS[kind]
    called = set(re.findall(r"\b(\w+)\(\)", drawn))
    assert called <= {*has, hook}
    demanded = {
        name for contract in CONTRACTS[kind] if contract is not interfaces.RankGroup for name in contract.__abstractmethods__
    }
    assert sorted(name for name in demanded if not re.search(rf"\b{name}\b", KINDS[kind])) == []


@pytest.mark.parametrize("kind", hookspecs.KINDS)
def test_the_page_of_a_kind_names_its_registration_and_every_field_of_it(kind: str) -> None:
    hook, registration = HOOKS[kind]
    (told,) = re.findall(r"## Registration\n\n(.*?)\n\n## ", KINDS[kind], flags=re.DOTALL)
    named = set(re.findall(r"`(\w+)`", told))
    assert {hook, registration.__name__} <= named
    there = {each.name for each in fields(registration)}
    assert there <= named
    assert ("settings" in there) != (
        "takes no\nsettings" in told or "takes no settings of its own" in told or "takes no settings:" in told
    )


def test_a_kind_names_the_errors_of_its_contract() -> None:
    known = {name for name, each in vars(errors).items() if inspect.isclass(each) and issubclass(each, errors.PsycheError)}
    for kind, contracts in CONTRACTS.items():
        told = set(re.findall(r"`(\w+)`", KINDS[kind].partition("## Errors")[2].partition("\n## ")[0]))
        assert {name for name in told if name.endswith("Error") and name[0].isupper()} <= {
            *known,
            "ValueError",
            "TimeoutError",
            "OSError",
        }
        said = {name for contract in contracts for name in re.findall(r"\b[A-Z]\w+\b", inspect.getsource(contract))}
        assert said & known <= told, kind


@pytest.mark.parametrize("kind", hookspecs.KINDS)
def test_every_option_of_a_conformance_class_is_on_the_page(kind: str) -> None:
    """Attributes that classes declare, and methods that must be written."""
    module, _, name = _CLASSES[kind].partition(".")
    conformance: type[Conformance] = getattr(importlib.import_module(f"psyche_core.testing.{module}"), name)
    assert f"psyche_core.testing.{_CLASSES[kind]}" in KINDS[kind]
    options: dict[str, object] = {}
    for each in reversed(conformance.__mro__):
        if each is object:
            continue
        options.update(
            {
                option: vars(each).get(option, ...)
                for option in each.__annotations__
                if option not in ("contract", "optional", "_hung")
            }
        )
        for option, method in vars(each).items():
            if inspect.isroutine(method) and "raise NotImplementedError" in inspect.getsource(inspect.unwrap(method)):
                options[option] = ...
    rows = dict(
        re.findall(r"^\| `(\w+)(?:\([\w, ]*\))?` \| (.*?) \|", KINDS[kind].partition("## Conformance")[2], flags=re.MULTILINE)
    )
    optional = {"cut", "mend"} if kind == "transport" else set()
    assert {*options} - optional <= {*rows}
    for option, default in options.items():
        if option not in optional:
            assert rows[option] == f"`{default!r}`" if default is not ... else rows[option].startswith("must be "), option
