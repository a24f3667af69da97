"""For pytest, which finds it by its entry point: failed tests of conformance classes show what was compared, and the contract.

pytest rewrites the assertions of test files only; those of the classes that they inherit would not show their values. A section
"the contract" says what the test wants and where that is written. And a run that has imported torch ends sooner.
"""

from __future__ import annotations

import atexit
import gc
import inspect
import re
from collections.abc import Generator
from typing import Any

import pytest

MODULES = (
    "backend",
    "command",
    "conformance",
    "data",
    "model",
    "optimizer",
    "ports",
    "registration",
    "relay",
    "sharding",
    "store",
    "tracker",
    "transport",
)
"""Modules and packages of psyche_core.testing with assertions."""

pytest.register_assert_rewrite(*(f"psyche_core.testing.{name}" for name in MODULES))
atexit.register(gc.freeze)  # or Python searches all that torch has made for garbage when it ends, for more than a second


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add a section to the report of a test of ours that failed, or whose fixtures did."""
    report = yield
    if report.failed and report.when != "teardown":
        told = contract_of(item)
        if told:
            report.sections.append(("the contract", told))
    return report


def contract_of(item: pytest.Item) -> str:
    """What a test of a conformance class wants, and where that is written; empty for all other tests."""
    cls: type | None = getattr(item, "cls", None)
    name: str = getattr(item, "originalname", None) or item.name
    definer = next((each for each in (cls.__mro__ if cls else ()) if name in vars(each)), None)
    if definer is None or not definer.__module__.startswith("psyche_core.testing."):
        return ""
    contract: Any = getattr(definer, "contract", None)  # of psyche_core.testing.contracts, which is not imported here
    return f"{wanted_by(vars(definer)[name])}\n{str(contract)[:1].upper()}{str(contract)[1:]}."


def wanted_by(test: object) -> str:
    """The first sentence of a test's docstring; its name as words if it has none."""
    text = " ".join((inspect.getdoc(test) or "").split())
    sentence = re.match(r".+?[.!?](?= |$)|.+", text)
    if sentence is not None:
        return sentence[0]
    words = getattr(test, "__name__", "").removeprefix("test_").replace("_", " ")
    return f"{words[:1].upper()}{words[1:]}."
