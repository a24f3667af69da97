"""Fixtures of these tests."""

from __future__ import annotations

import pytest

from plugins.backend_solana.tests.bond.bond_world import World


@pytest.fixture
def fresh() -> World:
    return World()
