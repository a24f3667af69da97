"""A problem that comes again and again is told now and then, and so is its end."""

from __future__ import annotations

from psyche_core.telemetry.repeated_problem import AGAIN_SECONDS, RepeatedProblem


def test_a_problem_is_told_once_and_then_every_five_minutes_and_its_end_once() -> None:
    now = 1000.0
    problem = RepeatedProblem(clock=lambda: now)
    told = []
    for second in range(700):
        now = 1000.0 + second
        told += [second] if problem.failed() else []
    assert told == [0, 300, 600]
    assert AGAIN_SECONDS == 300
    assert [problem.went_well() for _ in range(3)] == [True, False, False]
    assert problem.failed(), "another one is told at once"


def test_it_counts_what_was_not_told() -> None:
    times = iter((0.0, 1.0, 2.0, AGAIN_SECONDS, AGAIN_SECONDS + 1, 0.0))
    problem = RepeatedProblem(clock=lambda: next(times))
    told = [problem.times for _ in range(5) if problem.failed()]
    assert told == [1, 3]
    problem.went_well()
    assert problem.failed()
    assert problem.times == 1


def test_what_never_went_wrong_is_not_told_to_go_well() -> None:
    assert not RepeatedProblem().went_well()
