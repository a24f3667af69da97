"""Runs one tracker in a thread of its own, behind a bounded queue: however it behaves, who tells the events never waits for it.

Events are entered in a `MetricBook` in that thread. Figures are handed over once a step. What is wrong is said on the logger
`psyche.trackers`, once and then now and then. The thread is a daemon: a tracker that hangs cannot keep the process alive.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict

from psyche_core.interfaces.tracker import TrackedRun, Tracker
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.events import Event
from psyche_core.telemetry.metrics import MetricBook
from psyche_core.telemetry.repeated_problem import RepeatedProblem

logger: logging.Logger = logging.getLogger("psyche.trackers")

QUEUE_EVENTS = 10_000
"""Events that may wait for a tracker; at one or two a second and a few a step, hours of them."""

FINISH_SECONDS = 20.0
"""How long a program that has ended waits for all its trackers together."""


CALLS_TO_TRUST = 20
"""Calls in a row that must go well before people are told that a tracker works again: one that fails now and then would flood."""

QUIET_SECONDS = 2.0
"""How much of that passes before people are told."""


class TrackerThread:
    """A sink for one tracker.

    name: of the tracker, for messages. create: makes it, in the thread, once events have said which run this is. explain: one
    sentence about an exception. queue_events: see QUEUE_EVENTS.
    """

    def __init__(
        self,
        name: str,
        create: Callable[[TrackedRun], Tracker],
        *,
        explain: Callable[[BaseException], str],
        queue_events: int = QUEUE_EVENTS,
    ) -> None:
        self.name: str = name
        self.left_out: int = 0
        self._explain = explain
        self._limit = queue_events
        self._waiting: deque[tuple[float, Event]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._crowded = RepeatedProblem()
        self._failing = RepeatedProblem()
        self._good_calls = 0
        self._writer = _Writer(create)
        self._thread = threading.Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Queue an event; returns at once. With a full queue the event is left out, but never the last one of a run."""
        with self._changed:
            if len(self._waiting) < self._limit or isinstance(event, telemetry.Ended):
                self._waiting.append((time.time(), event))
                self._changed.notify()
                return
            self.left_out += 1
        if self._crowded.failed():
            logger.warning("the tracker %s is slower than the run, or hangs; %d events were left out", self.name, self.left_out)

    def close(self) -> None:
        """Say that no more events come; the thread writes those that wait and finishes the tracker."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def wait(self, seconds: float) -> bool:
        """Wait until the thread has ended after `close`; returns whether it has."""
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (entry := self._next()) is not None:
            self._tolerant(functools.partial(self._writer.enter, *entry))
        self._tolerant(self._writer.finish)

    def _next(self) -> tuple[float, Event] | None:
        """The next event, waiting for it; None after the last."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            return self._waiting.popleft() if self._waiting else None

    def _tolerant(self, action: Callable[[], bool]) -> None:
        """Do it; tell people about what it raises, and when that is over. action: returns whether it called the tracker."""
        try:
            self._good_calls += action()
        except _Off as off:
            logger.warning("the tracker %s is off, training goes on: %s", self.name, self._explain(off.error))
        except BaseException as error:  # a plugin may raise anything, SystemExit too
            logger.debug("a tracker failed", exc_info=error)
            self._good_calls = 0
            if self._failing.failed():
                logger.warning("the tracker %s failed, training goes on: %s", self.name, self._explain(error))
        else:
            if self._good_calls >= CALLS_TO_TRUST and self._failing.went_well():
                logger.warning("the tracker %s works again", self.name)


class _Off(Exception):
    """A tracker could not be made. error: why."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class _Writer:
    """Turns events into calls of a tracker. Used by its thread only."""

    def __init__(self, create: Callable[[TrackedRun], Tracker]) -> None:
        self._create = create
        self._book = MetricBook()
        self._tracker: Tracker | None = None
        self._off = False
        self._started: telemetry.Started | None = None
        self._described: telemetry.RunDescribed | None = None
        self._ended: telemetry.Ended | None = None
        self._step = 0

    def enter(self, moment: float, event: Event) -> bool:
        """Enter an event that was told at a moment (unix seconds); returns whether that called the tracker.

        Raises _Off, and what the tracker raises.
        """
        if self._off:
            return False

        self._book.handle(event)
        match event:
            case telemetry.Started():
                self._started = self._started or event
            case telemetry.RunDescribed():
                self._described = self._described or event
            case telemetry.StepTrained():
                self._step = event.step
            case telemetry.Ended():
                self._ended = event
        if self._tracker is None and self._described is not None:
            self._open()
        if self._tracker is None:
            return False

        if isinstance(event, telemetry.PromptAnswered):
            text = f"{event.prompt}{event.text}"
            self._tracker.log_text(event.step, f"prompts/{event.number}", text, time=moment)
        figures = self._due(event)
        if figures:
            step = event.step if isinstance(event, telemetry.Validated | telemetry.Evaluated) else self._step
            self._tracker.log_figures(step, figures, time=moment)
        return bool(figures) or isinstance(event, telemetry.PromptAnswered)

    def _due(self, event: Event) -> dict[str, float]:
        """The figures to hand over after an event: a measurement belongs to its own step, everything else to the step trained."""
        match event:
            case telemetry.Validated():
                return self._book.take_changed("validation/")
            case telemetry.Evaluated():
                return self._book.take_changed("eval/")
            case telemetry.StepTrained() | telemetry.Ended():
                return self._book.take_changed()
            case _:
                return {}

    def finish(self) -> bool:
        """End the tracker, if there is one; returns whether there is."""
        if self._tracker is None or self._off:
            return False

        self._off = True
        ended = self._ended or telemetry.Ended("the program ended", success=False)
        self._tracker.finish(success=ended.success, reason=ended.reason)
        return True

    def _open(self) -> None:
        assert self._described is not None
        run = TrackedRun(
            run_id=self._described.run_id,
            member="" if self._started is None else self._started.id,
            config=asdict(self._described),
        )
        try:
            tracker: object = self._create(run)
            if not isinstance(tracker, Tracker):
                message = f"its create returned {type(tracker).__name__}, expected a Tracker"
                raise TypeError(message)
        except BaseException as error:
            self._off = True
            raise _Off(error) from error

        self._tracker = tracker


def close_all(threads: Iterable[TrackerThread], *, seconds: float = FINISH_SECONDS) -> list[str]:
    """End trackers, waiting at most so long for all of them together; returns the names of those that have not ended."""
    closing = list(threads)
    for thread in closing:
        thread.close()
    began = time.monotonic()
    slow = [thread.name for thread in closing if not thread.wait(began + QUIET_SECONDS - time.monotonic())]
    if slow and seconds > QUIET_SECONDS:
        logger.warning("waiting up to %.0f s for the trackers to finish: %s", seconds, ", ".join(slow))
    deadline = began + seconds
    left = [thread.name for thread in closing if not thread.wait(deadline - time.monotonic())]
    for name in left:
        logger.warning("the tracker %s did not finish within %.0f s; its last figures may be missing", name, seconds)
    return left
