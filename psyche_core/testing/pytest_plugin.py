"""For pytest, which finds it by its entry point: failed assertions of the conformance classes show what was compared.

pytest rewrites the assertions of test files only; those of the classes that they inherit were a bare `AssertionError`. And a run
that has imported torch ends sooner.
"""

from __future__ import annotations

import atexit
import gc

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
atexit.register(gc.freeze)  # or Python searches all that torch has made for garbage when it ends, for more than a second
