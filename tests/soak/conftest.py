"""Runs of real processes that are attacked for as long as it takes; small models, many steps."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from live_run import RUN_KEYS, fork_server, live_run

__all__ = ["fork_server", "live_run"]  # fixtures


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def run_keys() -> Mapping[str, object]:
    return {**RUN_KEYS, "rounds_per_epoch": 40, "warmup_time": 30}
