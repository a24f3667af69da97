"""The page for plugin authors says what the code says: kinds, hooks, registrations, contracts, conformance classes, snippets."""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from pathlib import Path

import pytest

from psyche_core import hookspecs, interfaces
from psyche_core.testing.model import ModelConformance
from psyche_core.testing.registration import RegistrationConformance

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "plugins" / "README.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")][1:]


def snippets(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_every_kind_and_every_hook_is_on_the_page() -> None:
    assert [row[0] for row in ROWS] == [f"[{kind}](kinds/{kind}.md)" for kind in hookspecs.KINDS]
    hooks = {name for name, _ in inspect.getmembers(hookspecs, inspect.isfunction) if name.startswith("psyche_register_")}
    assert {row[2].strip("`") for row in ROWS} == hooks


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_what_a_row_names_exists(row: list[str]) -> None:
    for contract in re.findall(r"`(\w+)`", row[1]):
        assert inspect.isabstract(getattr(interfaces, contract))
    assert hasattr(hookspecs, row[3].strip("`"))
    module, name = row[4].strip("`").split(".")
    assert inspect.isclass(getattr(importlib.import_module(f"psyche_core.testing.{module}"), name))


def test_the_hooks_snippet_registers_a_model() -> None:
    namespace: dict[str, object] = {}
    exec(compile(snippets("python")[0], "docs/plugins/README.md", "exec"), namespace)
    registrations = namespace["psyche_register_models"]()  # type: ignore[operator]  # a hook
    assert [registration.name for registration in registrations] == ["TinyGru"]
    assert namespace["PSYCHE_PLUGIN_API"] == ".".join(str(part) for part in hookspecs.PLUGIN_API)


def test_the_entry_point_snippet_is_the_example_s() -> None:
    shown = tomllib.loads(snippets("toml")[0])
    example = tomllib.loads((REPOSITORY / "examples" / "third_party_model" / "pyproject.toml").read_text())
    assert shown["project"]["entry-points"] == example["project"]["entry-points"]
    assert hookspecs.GROUP in shown["project"]["entry-points"]


def test_the_conformance_snippet_is_a_conformance_test() -> None:
    namespace: dict[str, object] = {}
    exec(compile(snippets("python")[1], "docs/plugins/README.md", "exec"), namespace)
    assert issubclass(namespace["TestTinyGru"], ModelConformance)  # type: ignore[arg-type]  # a class by name


def test_the_registration_snippet_tests_the_example(tmp_path: Path) -> None:
    """Its context makes the example's model."""
    namespace: dict[str, object] = {}
    exec(compile(snippets("python")[2], "docs/plugins/README.md", "exec"), namespace)
    kept: type[RegistrationConformance] = namespace["TestRegistration"]  # type: ignore[assignment]  # a class by name
    assert f"{kept.kind}.{kept.name}" in tomllib.loads(snippets("toml")[0])["project"]["entry-points"][hookspecs.GROUP]
    assert isinstance(kept().context(None, tmp_path), hookspecs.ModelContext)
