"""The tracker: one run of MLflow for each start of a client. Figures are metrics, settings parameters, texts files of the run.

Figures of fast steps are gathered for SEND_SECONDS and sent in one request; the rest goes with the next figures or at the end.
While the server cannot be used they wait here, WAITING_METRICS at most, the oldest are dropped first, and the server is asked
again after pauses that grow. What it refuses for good is dropped.
"""

from __future__ import annotations

import math
import time as clock
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TypeVar

from psyche_core.interfaces import TrackedRun, Tracker
from psyche_tracker_mlflow.api import (
    MAX_KEY,
    MAX_METRICS,
    MAX_PARAM,
    MAX_PARAMS,
    MAX_TAG,
    Metric,
    MlflowApi,
    MlflowRefused,
    MlflowUnavailable,
    RemoteRun,
)
from psyche_tracker_mlflow.settings import MlflowSettings, authorization, server_address

SEND_SECONDS = 1.0
"""Least time between two requests with figures."""

WAITING_METRICS = 100_000
"""Values of figures that may wait for the server: some thousand steps."""

WAITING_TEXTS = 1_000
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds until a server that could not be used is asked again; doubled each time."""

FINISH_SECONDS, REQUEST_AT_END = 10.0, 2.5
"""Seconds in which figures are sent at the end, and that a request then may wait: together less than a client waits."""

_Item = TypeVar("_Item")


class MlflowTracker(Tracker):
    """Writes one run. now: a clock in seconds that only grows, for tests.

    Raises MlflowUnavailable for each record that comes while the server cannot be used, though it is kept for later, and
    MlflowRefused for what it does not take. A server that is away at first is no error until then.
    """

    def __init__(self, run: TrackedRun, settings: MlflowSettings, *, now: Callable[[], float] = clock.monotonic) -> None:
        self._run = run
        self._settings = settings
        self._now = now
        self._api = MlflowApi(server_address(settings), authorization())
        self._remote: RemoteRun | None = None
        self._started = _milliseconds(clock.time())
        self._params = deque((str(name)[:MAX_KEY], str(value)[:MAX_PARAM]) for name, value in run.config.items())
        self._metrics: deque[Metric] = deque(maxlen=WAITING_METRICS)
        self._texts: deque[tuple[int, str, str]] = deque(maxlen=WAITING_TEXTS)
        self._next_at = self._now()
        self._pause = 0.0
        self._failure = ""
        try:
            self._remote = self._open()
        except MlflowUnavailable:
            pass  # tried again, and said, with the first figures
        except BaseException:
            self._api.close()
            raise

    def log_figures(self, step: int, figures: Mapping[str, float], *, time: float) -> None:
        """Keep them, and send what waits if it is time to."""
        moment = _milliseconds(time)
        self._metrics += [Metric(key=key, value=float(value), timestamp=moment, step=step) for key, value in figures.items()]
        self._send_in_time()

    def log_text(self, step: int, key: str, text: str, *, time: float) -> None:  # noqa: ARG002  # a file has the server's time
        """The same with a text."""
        self._texts.append((step, key, text))
        self._send_in_time()

    def finish(self, *, success: bool, reason: str) -> None:
        """Send the rest, for a bounded time, and mark the run as finished or failed."""
        self._api.limit(REQUEST_AT_END)
        try:
            try:
                self._send(until=self._now() + FINISH_SECONDS)
            finally:
                if self._remote is not None and not self._failure:
                    self._api.log_batch(self._remote.run_id, tags=[("psyche.ended", reason[:MAX_TAG])])
                    self._api.end_run(self._remote.run_id, "FINISHED" if success else "FAILED", end=_milliseconds(clock.time()))
        finally:
            self._api.close()
        left = len(self._metrics) + len(self._texts)
        if left:
            message = f"{self._api.address} is slow: {left} figures and texts were not sent within {FINISH_SECONDS:.0f} s"
            raise MlflowUnavailable(message)

    def _send_in_time(self) -> None:
        """Send, unless that was done just now; while the server cannot be used, say so instead."""
        now = self._now()
        if now >= self._next_at:
            self._send()
        elif self._failure:
            raise MlflowUnavailable(self._failure)

    def _send(self, *, until: float = math.inf) -> None:
        """Send everything that waits, to a run that is made if need be. until: no request with figures begins after that time."""
        self._next_at = self._now() + SEND_SECONDS
        try:
            run = self._remote = self._remote or self._open()
            refusals = [
                *self._drain(self._params, MAX_PARAMS, lambda part: self._api.log_batch(run.run_id, params=part), until=until),
                *self._drain(self._metrics, MAX_METRICS, lambda part: self._api.log_batch(run.run_id, metrics=part), until=until),
                *self._drain(self._texts, 1, lambda part: self._send_text(run, *part[0]), until=until),
            ]
        except MlflowUnavailable as unavailable:
            self._failure = str(unavailable)
            self._pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, 2 * self._pause))
            self._next_at = self._now() + self._pause
            raise

        self._failure, self._pause = "", 0.0
        if refusals:
            raise refusals[0]

    def _drain(
        self, waiting: deque[_Item], at_most: int, send: Callable[[list[_Item]], None], *, until: float
    ) -> Iterator[MlflowRefused]:
        """Send items in parts. A part that is refused is dropped, and its refusal given; one that may succeed later stays."""
        while waiting and self._now() < until:
            part = list(islice(waiting, at_most))
            try:
                send(part)
            except MlflowRefused as refused:
                yield refused
            for _ in part:
                waiting.popleft()

    def _open(self) -> RemoteRun:
        tags = {"psyche.run_id": self._run.run_id, "mlflow.source.name": "psyche", "mlflow.source.type": "JOB"}
        if self._run.member:
            tags["psyche.member"] = self._run.member
        experiment = self._api.experiment_id(self._settings.mlflow_experiment)
        name = self._settings.mlflow_run_name or self._run.name
        return self._api.create_run(experiment, name, start=self._started, tags=tags)

    def _send_text(self, run: RemoteRun, step: int, key: str, text: str) -> None:
        """A file for each text where the server takes files; otherwise the newest text as a tag."""
        if run.artifacts is None:
            self._api.log_batch(run.run_id, tags=[(key, f"step {step}: {text}"[:MAX_TAG])])
        else:
            self._api.put_text(run, f"{key}/step-{step:08d}.txt", text)


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
