"""Scores of benchmarks go with the next statements, each once, the newest of each."""

from __future__ import annotations

from psyche_core.client.runtime.reports.score_reports import ScoreReports
from psyche_core.telemetry import events as telemetry
from psyche_core.types import MAX_SCORE_NAME_BYTES, MAX_SCORES, EvaluationScore


def evaluated(task: str, value: float, step: int = 7, metric: str = "acc") -> telemetry.Evaluated:
    return telemetry.Evaluated(task, metric, value, 100, step - 3, step)


def test_each_score_is_given_once_the_oldest_first() -> None:
    reports = ScoreReports()
    assert reports.take() == ()
    for number, task in enumerate(("arc_easy", "piqa", "boolq")):
        reports(evaluated(task, number / 10))
    reports(telemetry.Leaving("SIGINT", saves=True))
    assert [score.task for score in reports.take()] == ["arc_easy", "piqa"][:MAX_SCORES]
    assert reports.take() == (EvaluationScore("boolq", "acc", 0.2, 100, 7),)
    assert reports.take() == ()


def test_the_newest_of_a_benchmark_takes_the_place_of_one_that_waits() -> None:
    reports = ScoreReports()
    for task, value, step in (("arc_easy", 0.1, 7), ("piqa", 0.2, 8), ("arc_easy", 0.3, 9)):
        reports(evaluated(task, value, step))
    assert reports.take() == (EvaluationScore("piqa", "acc", 0.2, 100, 8), EvaluationScore("arc_easy", "acc", 0.3, 100, 9))


def test_long_names_are_cut_where_a_letter_ends() -> None:
    reports = ScoreReports()
    reports(evaluated("é" * 40, 0.5, metric="m" * 99))
    (score,) = reports.take()
    assert (score.task, score.metric) == ("é" * (MAX_SCORE_NAME_BYTES // 2), "m" * MAX_SCORE_NAME_BYTES)
