"""A member that applies a step is told whose shares were not accepted: its own, or others'."""

from __future__ import annotations

from psyche_core.client.machine import actions as act
from psyche_core.client.runtime.reports.lost_shares import with_lost_shares
from psyche_core.telemetry import events as telemetry
from stage import Member, Stage, with_a_slow_member_dropped


class _Told(Member):
    """Reports steps as `ClientRuntime` does."""

    def _notify(self, action: act.Notify) -> None:
        event = action.event
        if isinstance(event, telemetry.StepApplied):
            action = act.Notify(with_lost_shares(event, self.machine.notes))
        super()._notify(action)


class _Stage(Stage):
    member = _Told


def steps(member: Member) -> list[telemetry.StepApplied]:
    return [event for event in member.told if isinstance(event, telemetry.StepApplied)]


def test_the_slow_member_is_told_that_its_share_was_lost_and_the_others_whose_it_was() -> None:
    """All were told that a machine with much other work is too slow."""
    world, slow = with_a_slow_member_dropped(_Stage)
    for member in world.members:
        short = [event for event in steps(member) if 0 < event.accepted < event.trained]
        assert short, "its share was lost at least once, which everybody applied so"
        assert {event.lost for event in short} == {(slow.identity.short,)}
        assert {event.ours_lost for event in short} == {member is slow}
        whole = [event for event in steps(member) if event.accepted == event.trained]
        assert {(event.lost, event.ours_lost) for event in whole} == {((), None)}


def test_no_member_is_named_where_nobody_s_share_was_accepted() -> None:
    world = Stage(3, total_steps=12, rounds_per_epoch=12)
    member = world.members[0]
    world.run(until=lambda: len(steps(member)) == 2)
    newest = steps(member)[-1]
    none = telemetry.StepApplied(newest.epoch, newest.step, 0, newest.trained, 0.1)
    assert with_lost_shares(none, member.machine.notes) == none


def test_a_step_of_another_epoch_or_of_no_known_round_is_left_as_it_is() -> None:
    world = Stage(3)
    world.run(until=lambda: world.state.progress.step == 3)
    notes = world.members[0].machine.notes
    assert notes is not None
    for event in (telemetry.StepApplied(notes.number + 1, 2, 2, 3, 0.1), telemetry.StepApplied(notes.number, 77, 2, 3, 0.1)):
        assert with_lost_shares(event, notes) == event
        assert with_lost_shares(event, None) == event
