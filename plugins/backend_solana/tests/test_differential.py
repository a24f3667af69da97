"""The coordinator in Python and the program on a chain do the same: random commands, images compared byte for byte.

A slice in every run of the tests, and thousands of sequences with the marker `soak`. What was compared is counted, so that a
comparison of nothing fails.
"""

from __future__ import annotations

import pytest

from psyche_backend_solana.svm.differential import Comparison, Coverage
from psyche_core.coordinator.errors import NAMES
from psyche_core.types import RunState

KINDS = {
    "Checkpoint",
    "Equivocation",
    "HealthCheck",
    "Join",
    "Pause",
    "Resume",
    "SetFutureEpochRates",
    "Settle",
    "Tick",
    "UpdateConfig",
    "WarmupWitness",
    "Withdraw",
    "Witness",
}
NEVER_HERE = {"WitnessesFull", "ClientsFull", "InvalidCommitteeSelection"}
"""Refusals that need hundreds of members, or that the rules of configuration keep from happening."""


def compared(first: int, sequences: int, length: int) -> Coverage:
    comparison = Comparison()
    for number in range(first, first + sequences):
        comparison.sequence(number, length=length)
    print(comparison.coverage.table())
    return comparison.coverage


def test_random_commands() -> None:
    coverage = compared(0, 40, 60)
    assert not coverage.differences, "\n".join(coverage.differences)
    assert {kind for kind in KINDS if coverage.accepted[kind]} == KINDS
    assert set(coverage.states) == {phase.name for phase in RunState}


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_random_commands_for_long() -> None:
    coverage = compared(10_000, 4000, 60)
    assert not coverage.differences, "\n".join(coverage.differences)
    assert set(NAMES) - set(coverage.names) <= NEVER_HERE
    assert all(coverage.accepted[kind] > 100 for kind in KINDS)
