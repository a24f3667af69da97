"""Scores of benchmarks on their way to the coordinator: with the next statements of this client. Nobody verifies them.

People who watch a run by its server see them so, without this client's event file.
"""

from __future__ import annotations

import threading

from psyche_core.telemetry import events as telemetry
from psyche_core.types import MAX_SCORE_NAME_BYTES, MAX_SCORES, EvaluationScore


class ScoreReports:
    """A sink of the client's events, from any thread: keeps the newest score of each benchmark until it is sent."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], EvaluationScore] = {}
        self._lock = threading.Lock()

    def __call__(self, event: telemetry.Event) -> None:
        """Note a score."""
        if not isinstance(event, telemetry.Evaluated):
            return

        task, metric = _short(event.task), _short(event.metric)
        if task and metric:
            with self._lock:
                self._waiting.pop((task, metric), None)  # the newest goes last
                self._waiting[task, metric] = EvaluationScore(task, metric, event.value, event.documents, event.step)

    def take(self) -> tuple[EvaluationScore, ...]:
        """The scores for one statement, those that wait longest first. They are not given again."""
        with self._lock:
            names = list(self._waiting)[:MAX_SCORES]
            return tuple(self._waiting.pop(name) for name in names)


def _short(name: str) -> str:
    """As much of a name as a statement has room for."""
    return name.encode()[:MAX_SCORE_NAME_BYTES].decode(errors="ignore")
