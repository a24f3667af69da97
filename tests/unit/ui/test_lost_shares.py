"""How often shares were lost, and what helps: it depends on whose they were."""

from __future__ import annotations

import pytest

from psyche_core.telemetry.events import StepApplied
from psyche_core.ui.lost_shares import MAX_KNOWN, LostShares


def counted(*events: StepApplied) -> LostShares:
    lost = LostShares()
    for event in events:
        lost.note(event)
    return lost


def short(step: int, *, ours: bool | None, names: tuple[str, ...] = ("a1b2c3d4",)) -> StepApplied:
    return StepApplied(0, step, 2, 3, 0.1, names, ours)


def test_nothing_is_said_where_nothing_was_lost() -> None:
    lost = counted(StepApplied(0, 1, 3, 3, 0.1), StepApplied(0, 2, 0, 0, 0.1))
    assert lost.sentence() is None
    assert not lost.is_due()
    assert lost.rounds == 1, "a drain round assigns nothing"


@pytest.mark.parametrize(
    ("ours", "advice", "other"),
    [
        ((False, False), "results of other members (a1b2c3d4) reached too few", "doctor"),
        ((True, False), "this client's own result came too late in 1 of them", "nothing to do"),
        ((True, True), "this client's own result came too late in 2 of them", "nothing to do"),
        ((None, None), "A member with much other work, or on a slow line, loses most", "doctor"),
        ((None, False), "results of other members (a1b2c3d4)", "doctor"),
    ],
)
def test_what_helps_depends_on_whose_shares_they_were(ours: tuple[bool | None, bool | None], advice: str, other: str) -> None:
    """Healthy members were told that their machine was too slow."""
    said = counted(*(short(step, ours=each) for step, each in enumerate(ours, start=1))).sentence()
    assert said is not None
    assert said.startswith("2 of 2 rounds lost shares, last in step 2 (2 of 3 count): ")
    assert advice in said
    assert other not in said


def test_a_round_that_several_members_report_counts_once_and_blames_none() -> None:
    lost = counted(*(short(4, ours=ours) for ours in (True, False, False)))
    assert (lost.rounds, lost.lost) == (1, 1)
    said = lost.sentence(members=3)
    assert said is not None
    assert "1 of 1 round lost shares" in said
    assert "this client" not in said


def test_what_is_remembered_is_bounded() -> None:
    lost = counted(*(short(step, ours=False) for step in range(3 * MAX_KNOWN)))
    assert len(lost._known) == MAX_KNOWN
    assert lost.lost == 3 * MAX_KNOWN


def test_it_is_due_at_the_first_and_whenever_the_number_has_doubled() -> None:
    lost, due = LostShares(), []
    for step in range(1, 101):
        lost.note(short(step, ours=False))
        if lost.is_due():
            due.append(step)
    assert due == [1, 2, 4, 8, 16, 32, 64]
