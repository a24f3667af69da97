"""Fixtures: the programs' toolchain, where this machine has its compiler."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from plugins.backend_solana.tests.coordinator_parts import (
    CONFIG,
    MODEL,
    THIEF,
)
from plugins.backend_solana.tests.svm.coordinator_svm import (
    AUTHORIZER_ID,
    CoordinatorSvm,
    open_authorization,
)
from psyche_core.types import RunState

BUILD = Path(__file__).parents[1] / "programs/toolchain/build.py"


@pytest.fixture(scope="session")
def build_module() -> ModuleType:
    """programs/toolchain/build.py."""
    spec = importlib.util.spec_from_file_location("psyche_toolchain_build", BUILD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def toolchain(build_module: ModuleType) -> Any:
    """A `Toolchain` of it. Skips, saying what to install, where its rustc or the sources are missing."""
    try:
        return build_module.Toolchain()
    except build_module.BuildError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def made() -> CoordinatorSvm:
    chain = CoordinatorSvm(members=4)
    chain.svm.airdrop(THIEF.pubkey(), 10**12)
    return chain


@pytest.fixture
def chain(made: CoordinatorSvm) -> CoordinatorSvm:
    """A run that waits for members."""
    state = replace(made.fresh(CONFIG, MODEL), run_state=RunState.WaitingForMembers)
    made.begin(state)
    made.put(made.authorization, open_authorization(made.owner.pubkey()), owner=AUTHORIZER_ID)
    made.at(1_700_000_000, 5)
    return made
