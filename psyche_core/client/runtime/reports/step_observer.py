"""What is kept of each step beside training, if somebody asked for it: results as files, statistics of the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from psyche_core.client.runtime.reports.result_files import ResultFiles
from psyche_core.telemetry.events import Event, OptimizerStatistics


class Statistics(Protocol):
    """psyche_core.training.update_statistics.UpdateStatistics is one; it needs torch."""

    def trained(self, step: int) -> None:
        """Our result of a step was made."""

    def around(self, step: int) -> AbstractContextManager[None]:
        """Measures the step that is applied inside."""

    def take(self) -> tuple[OptimizerStatistics, ...]:
        """What was measured since this was last called."""


class StepObserver:
    """Watches one trainer's steps. Without arguments it does nothing."""

    def __init__(self, *, files: ResultFiles | None = None, statistics: Statistics | None = None) -> None:
        self._files = files
        self._statistics = statistics

    def compressed(self, step: int) -> None:
        """Our result of a step was made. Call it in the thread that made it."""
        if self._statistics is not None:
            self._statistics.trained(step)

    def trained(self, step: int, payload: bytes) -> None:
        """Our result of a step can be used."""
        if self._files is not None:
            self._files.trained(step, payload)

    @contextmanager
    def applying(self, step: int) -> Iterator[None]:
        """Put this around applying the results of a step, in the thread that does it."""
        if self._statistics is None:
            yield
            return

        with self._statistics.around(step):
            yield

    def applied(self, step: int, payloads: Sequence[bytes], report: Callable[[Event], None]) -> None:
        """The results of a step are applied; reports its statistics."""
        if self._files is not None:
            self._files.applied(step, payloads)
        for event in () if self._statistics is None else self._statistics.take():
            report(event)
