"""Sends scores of benchmarks to the coordinator, with this client's next statements. Nobody verifies them.

So people who watch the run at its server see the scores without this client's event file.
"""

from __future__ import annotations

import threading

from psyche_core.telemetry import events as telemetry
from psyche_core.types import MAX_SCORE_NAME_BYTES, MAX_SCORES, EvaluationScore


class ScoreReports:
    """A sink of the client's events, called from any thread. It keeps the newest score of each benchmark until it is sent."""

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
                self._waiting.pop((task, metric), None)  # so that the newest one is last in the order
                self._waiting[task, metric] = EvaluationScore(task, metric, event.value, event.documents, event.step)

    def take(self) -> tuple[EvaluationScore, ...]:
        """Return the scores for one statement, the oldest first, and remove them."""
        with self._lock:
            names = list(self._waiting)[:MAX_SCORES]
            return tuple(self._waiting.pop(name) for name in names)


def _short(name: str) -> str:
    """Return as much of a name as fits into a statement."""
    return name.encode()[:MAX_SCORE_NAME_BYTES].decode(errors="ignore")
