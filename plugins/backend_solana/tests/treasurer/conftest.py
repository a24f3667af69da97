"""Fixtures of these tests."""

from __future__ import annotations

import pytest

from plugins.backend_solana.tests.treasurer.treasurer_world import (
    World,
)
from psyche_backend_solana.layouts import treasurer


@pytest.fixture(scope="module")
def world() -> World:
    """Only rehearsed upon: nobody changes it. Here dora has earned nothing that was not slashed."""
    made = World()
    made.earn({made.alice.pubkey(): (100, 0), made.bob.pubkey(): (50, 20), made.dora.pubkey(): (10, 10)})
    made.send(treasurer.participant_create(made.payer.pubkey(), made.dora.pubkey(), treasury=made.treasury), made.payer)
    return made


@pytest.fixture
def fresh() -> World:
    return World()
