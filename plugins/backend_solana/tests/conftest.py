"""Fixtures: the programs' toolchain, where this machine has its compiler."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

BUILD = Path(__file__).parents[1] / "programs/toolchain/build.py"


@pytest.fixture(scope="session")
def toolchain() -> Any:
    """A `Toolchain` of programs/toolchain/build.py. Skips, saying what to install, where rustc or its sources are missing."""
    spec = importlib.util.spec_from_file_location("psyche_toolchain_build", BUILD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    try:
        return module.Toolchain()
    except module.BuildError as error:
        pytest.skip(str(error))
