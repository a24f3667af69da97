"""Which members may be left behind: by their averages, or by the lateness that their rounds add up to."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from psyche_core.simulator.stragglers import LATENESS_SECONDS, NEWEST, TrainingTimes, is_straggler


@dataclass
class Member:
    training: TrainingTimes = field(default_factory=TrainingTimes)


def trained(seconds: list[float], *, round_seconds: float = 1.0, epoch: int = 1) -> Member:
    """A member whose share of each round began when the round did."""
    member = Member()
    for height, took in enumerate(seconds):
        member.training.add(took, place=(epoch, height), done_at=height * round_seconds + took)
    return member


@pytest.mark.parametrize(("ratio", "straggles"), [(1.14, False), (1.16, True)])
def test_a_member_that_is_always_slower_by_more_than_the_ratio(ratio: float, straggles: bool) -> None:
    others = [trained([0.5] * 60), trained([0.2] * 60)]
    assert is_straggler(trained([0.5 * ratio] * 60), others) is straggles


def test_a_member_that_was_slower_lately() -> None:
    others = [trained([0.5] * 300)]
    assert is_straggler(trained([0.4] * (300 - NEWEST) + [0.6] * NEWEST), others)
    assert not is_straggler(trained([0.4] * (300 - NEWEST // 2) + [0.6] * (NEWEST // 2)), others)


@pytest.mark.parametrize(("late", "straggles"), [(0.35, True), (0.25, False)])
def test_a_member_whose_late_rounds_add_up_though_it_is_as_fast_on_average(late: float, straggles: bool) -> None:
    """Late in every second round, as early in the others. 60 rounds of a second allow 9 seconds and one more."""
    assert LATENESS_SECONDS == 1.0
    others = [trained([0.5] * 60)]
    assert is_straggler(trained([0.5 + late, 0.5 - late] * 30), others) is straggles


def test_lateness_of_an_earlier_epoch_does_not_count() -> None:
    member, other = Member(), Member()
    for epoch, late in ((1, 0.4), (2, 0.0)):
        for height in range(60):
            began = 100.0 * epoch + height
            other.training.add(0.5, place=(epoch, height), done_at=began + 0.5)
            member.training.add(0.5, place=(epoch, height), done_at=began + 0.5 + (late if height % 2 else 0.0))
    assert not is_straggler(member, [other])


def test_a_few_late_rounds_are_no_excuse() -> None:
    others = [trained([0.5] * 3)]
    assert not is_straggler(trained([0.5, 0.5, 0.9]), [*others, trained([1.0] * 3)])
    assert not is_straggler(trained([0.57, 0.57, 0.57]), others)


def test_nobody_straggles_alone_or_without_work() -> None:
    assert not is_straggler(trained([0.5]), [])
    assert not is_straggler(Member(), [trained([0.5])])
    assert not is_straggler(trained([0.5] * 10), [trained([0.1] * 4)]), "who trained less than half as often is not compared"
