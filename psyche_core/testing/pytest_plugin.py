"""For pytest, which finds it by its entry point: failed assertions of the conformance classes show what was compared.

pytest rewrites the assertions of test files only; those of the classes that they inherit were a bare `AssertionError`.
"""

from __future__ import annotations

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
    "tracker",
    "transport",
)
"""Modules and packages of psyche_core.testing with assertions."""

pytest.register_assert_rewrite(*(f"psyche_core.testing.{name}" for name in MODULES))
