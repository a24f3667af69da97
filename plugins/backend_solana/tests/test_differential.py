"""The coordinator in Python and the program on a chain do the same: random commands, images compared byte for byte.

A slice in every run of the tests, and thousands of sequences with the marker `soak`. What was compared is counted, so that a
comparison of nothing fails.
"""

from __future__ import annotations

from random import Random

import pytest

from plugins.backend_solana.tests.svm.differential import Comparison, Coverage
from plugins.backend_solana.tests.svm.random_commands import RandomCommands
from psyche_core.coordinator.commands import Command, WarmupWitness
from psyche_core.coordinator.errors import NAMES
from psyche_core.coordinator.history import held_digest, signed_digests
from psyche_core.coordinator.state import CoordinatorState
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
    "VerifierCommit",
    "WarmupWitness",
    "Withdraw",
    "Witness",
}
SEEDS = ("of a hash", "of clock and slot", "hash taken in", "hash forgotten")
"""Both ways in which a seed is made, and what a beacon goes through."""
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
    assert all(coverage.seeds[kind] >= 5 for kind in SEEDS), coverage.seeds


class Forgetful(RandomCommands):
    """Members that agree about their masters in every round, and have lost the newest of them when the next epoch begins.

    joining: probability that somebody joins in a warmup, for whom it may begin again.
    """

    joining = 0.0

    def warming_up(self, state: CoordinatorState) -> Command:
        return self.join(state) if self.chance(self.joining) else super().warming_up(state)

    def ready(self, state: CoordinatorState, slot: int) -> Command:
        start = state.epoch.start_step - 1
        held = [digest for step, digest in signed_digests(state).items() if step < start]
        if start == 0 or self.chance(0.2):
            return super().ready(state, slot)
        digest = held_digest(self.random.choice(held)) if held and self.chance(0.7) else bytes(32)
        return WarmupWitness(state.epoch.clients[slot].id, state.progress.epoch, slot, digest)


class Watched(Comparison):
    """Counts how often a run went back to a step of the last rounds, and how often a warmup began again before it did."""

    attested = 0
    repeated = 0

    def compare(self, state: CoordinatorState, command: Command, now: int) -> CoordinatorState:
        after = super().compare(state, command, now)
        step = after.progress.step - 1
        self.attested += after.generation > state.generation and not after.from_checkpoint and step in after_rounds(state)
        self.repeated += after.epoch.repeats > state.epoch.repeats
        return after


def after_rounds(state: CoordinatorState) -> set[int]:
    """The steps that stored statements sign, and that are no ends."""
    return signed_digests(state).keys() - {end.step for end in state.ends}


def test_going_back_into_the_last_rounds() -> None:
    comparison = Watched()
    for number in range(60):
        random = Random(f"forgetful {number}")
        drawn = Forgetful(random, random.choice([1, 2, 3, 4, 5]), witness_nodes=0, init_min_clients=1, min_clients=1)
        drawn.blind = random.choice([0.0, 0.1])
        comparison.play(drawn, 100, name=f"run {number}")
    assert not comparison.coverage.differences, "\n".join(comparison.coverage.differences)
    print(f"{comparison.attested} times, {comparison.coverage.commands} commands")
    assert comparison.attested >= 10


def test_warmups_that_begin_again_for_who_joined() -> None:
    comparison = Watched()
    for number in range(30):
        random = Random(f"joined {number}")
        drawn = Forgetful(random, random.choice([3, 4, 5, 6]), witness_nodes=0, init_min_clients=1, min_clients=1)
        drawn.blind, drawn.joining = 0.0, 0.3
        comparison.play(drawn, 100, name=f"run {number}")
    assert not comparison.coverage.differences, "\n".join(comparison.coverage.differences)
    print(f"{comparison.repeated} times, {comparison.coverage.commands} commands")
    assert comparison.repeated >= 10


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_random_commands_for_long() -> None:
    coverage = compared(10_000, 4000, 60)
    assert not coverage.differences, "\n".join(coverage.differences)
    assert set(NAMES) - set(coverage.names) <= NEVER_HERE
    assert all(coverage.accepted[kind] > 100 for kind in KINDS)
