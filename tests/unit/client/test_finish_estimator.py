"""Finished is said in time for the next round: the estimates, and whole runs in virtual time with and without them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.machine.rounds.finish_estimator import RECENT, FinishEstimator
from stage import Member, Stage

seconds = st.floats(min_value=0.001, max_value=1e4)


def one_round(
    estimator: FinishEstimator, tag: int, *, samples: int, training: float, gap: float, now: float = 0.0
) -> float | None:
    """Play a round in which nothing is said ahead; what `begins` foresaw."""
    foreseen = estimator.training_started(tag, samples=samples, now=now)
    estimator.training_finished(tag, now=now + training)
    estimator.finished_sent(tag, now=now + training)
    estimator.round_opened(tag + 1, now=now + training + gap)
    return foreseen


def test_nothing_is_foreseen_before_one_training_and_one_gap() -> None:
    estimator = FinishEstimator()
    assert one_round(estimator, 1, samples=2, training=4.0, gap=0.25) is None
    assert estimator.training_started(2, samples=2, now=10.0) == pytest.approx(3.75)


def test_the_expectation_grows_with_the_share() -> None:
    estimator = FinishEstimator()
    one_round(estimator, 1, samples=2, training=4.0, gap=0.25)
    assert estimator.training_started(2, samples=6, now=10.0) == pytest.approx(12.0 - 0.25)


def test_waiting_for_slower_members_is_no_gap_as_long_as_one_round_had_none() -> None:
    estimator = FinishEstimator()
    one_round(estimator, 1, samples=1, training=8.0, gap=0.25)
    one_round(estimator, 2, samples=1, training=8.0, gap=3.0)
    assert estimator.training_started(3, samples=1, now=100.0) == pytest.approx(7.75)


def test_an_old_gap_is_forgotten() -> None:
    estimator = FinishEstimator()
    one_round(estimator, 1, samples=1, training=8.0, gap=0.25)
    for tag in range(2, 2 + RECENT):
        one_round(estimator, tag, samples=1, training=8.0, gap=1.0)
    assert estimator.training_started(100, samples=1, now=100.0) == pytest.approx(7.0)


def test_a_round_that_was_missed_gives_no_gap() -> None:
    estimator = FinishEstimator()
    estimator.training_started(1, samples=1, now=0.0)
    estimator.training_finished(1, now=4.0)
    estimator.finished_sent(1, now=4.0)
    estimator.round_opened(3, now=9.0)
    assert not estimator.gaps


def test_only_the_training_that_began_last_is_measured() -> None:
    estimator = FinishEstimator()
    estimator.training_started(1, samples=1, now=0.0)
    estimator.training_started(2, samples=1, now=5.0)
    estimator.training_finished(1, now=6.0)
    assert estimator.seconds_per_sample is None


@given(st.lists(st.tuples(seconds, seconds, st.integers(1, 100)), min_size=2, max_size=20))
def test_never_more_than_half_of_the_training_ahead_and_never_after_its_expected_end(
    rounds: list[tuple[float, float, int]],
) -> None:
    estimator, now = FinishEstimator(), 0.0
    for tag, (training, gap, samples) in enumerate(rounds, start=1):
        expected = None if estimator.seconds_per_sample is None else estimator.seconds_per_sample * samples
        foreseen = one_round(estimator, tag, samples=samples, training=training, gap=gap, now=now)
        assert (foreseen is None) == (tag == 1)
        if foreseen is not None and expected is not None:
            assert expected / 2 <= foreseen * (1 + 1e-9)
            assert foreseen <= expected
        now += training + gap


def test_the_journeys_between_two_rounds_pass_while_the_members_train() -> None:
    def idle_seconds(*, ahead: bool) -> float:
        """Mean seconds between two trainings of a member, in a run of one epoch."""
        world = Stage(4, total_steps=12, rounds_per_epoch=12, link_seconds=0.1)
        world.reminds = ahead
        began: list[float] = []

        def trains(member: Member) -> float:
            if member is world.members[0]:
                began.append(world.now)
            return 4.0

        world.train_delay = trains
        world.run()
        assert len({member.masters for member in world.members}) == 1
        assert len(began) == 12
        return sum(later - earlier - 4.0 for earlier, later in pairwise(began)) / 11

    waiting, ahead = idle_seconds(ahead=False), idle_seconds(ahead=True)
    assert waiting > 0.3  # a message, a command, a state: three journeys of 0.1 s
    assert ahead < waiting / 2


def test_who_stalls_after_it_said_finished_is_waited_for_in_the_next_round() -> None:
    world = Stage(4, total_steps=12, rounds_per_epoch=12)
    world.train_delay = lambda member: 2.0
    slow = world.members[2]
    world.run(until=lambda: world.state.progress.step == 6)
    world.train_delay = lambda member: 9.0 if member is slow else 2.0  # less than max_round_train_time
    world.run(until=lambda: world.state.progress.step == 7)
    world.train_delay = lambda member: 2.0
    world.run()

    assert len({member.masters for member in world.members}) == 1
    assert [step for step, _ in slow.applied] == list(range(1, 13))
    assert not any(settled.refused for settled in world.settled())


def test_a_training_that_fails_after_finished_was_said_is_refused_and_trained_again() -> None:
    world = Stage(4, total_steps=12, rounds_per_epoch=12)
    world.train_delay = lambda member: 2.0
    failing = world.members[1]
    world.breaks = lambda member, work: (
        ev.TrainFailed(work.height, "no samples")
        if member is failing and isinstance(work, act.Train) and work.step == 6
        else None
    )
    world.run()

    refused = [(settled.step, len(settled.refused)) for settled in world.settled() if settled.refused]
    assert refused == [(6, 1)]
    assert len({member.masters for member in world.members}) == 1
    assert world.state.lost_samples == 0
    assert not world.state.requeue
