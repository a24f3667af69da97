"""Fixtures of these tests."""

from __future__ import annotations

import pytest

from plugins.backend_solana.tests.mining_pool.mining_pool_world import World


@pytest.fixture(scope="module")
def world() -> World:
    """Before any opening; only rehearsed upon."""
    made = World()
    made.deposit(0, 300)
    return made


@pytest.fixture
def fresh() -> World:
    return World()
