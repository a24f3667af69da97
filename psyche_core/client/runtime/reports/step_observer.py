"""Records each step while training continues, if the user wants it: result files and statistics of the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from psyche_core.client.runtime.reports.result_files import ResultFiles
from psyche_core.telemetry.events import Event, OptimizerStatistics


class Statistics(Protocol):
    """Interface of statistics; psyche_core.training.update_statistics.UpdateStatistics implements it, but that needs torch."""

    def trained(self, step: int) -> None:
        """Note that our result of a step was made."""

    def around(self, step: int) -> AbstractContextManager[None]:
        """Return a context that measures the step applied inside it."""

    def take(self) -> tuple[OptimizerStatistics, ...]:
        """Return what was measured since the last call."""


class StepObserver:
    """Observes one trainer's steps. Without arguments it does nothing."""

    def __init__(self, *, files: ResultFiles | None = None, statistics: Statistics | None = None) -> None:
        self._files = files
        self._statistics = statistics

    def compressed(self, step: int) -> None:
        """Note that our result of a step was made. Call it in the thread that made it."""
        if self._statistics is not None:
            self._statistics.trained(step)

    def trained(self, step: int, payload: bytes) -> None:
        """Note that our result of a step passed its check and can be used."""
        if self._files is not None:
            self._files.trained(step, payload)

    @contextmanager
    def applying(self, step: int) -> Iterator[None]:
        """Enter this while applying the results of a step, in the thread that applies them."""
        if self._statistics is None:
            yield
            return

        with self._statistics.around(step):
            yield

    def applied(self, step: int, payloads: Sequence[bytes], report: Callable[[Event], None]) -> None:
        """Note that the results of a step are applied, and report the step's statistics."""
        if self._files is not None:
            self._files.applied(step, payloads)
        for event in () if self._statistics is None else self._statistics.take():
            report(event)
