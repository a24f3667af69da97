"""Trackers that hang, raise, are slow or flood: who tells the events returns at once, and the others go on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import pytest

from psyche_core.exporters.tracker_thread import TrackerThread, close_all
from psyche_core.interfaces import TrackedRun, Tracker
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.sinks import EventBus

TIMEOUT = 30.0
STARTED = telemetry.Started("client", "ab" * 32, "first-light", "127.0.0.1:1")
DESCRIBED = telemetry.RunDescribed("first-light", "m", "HfLlama", "Distro", 100, 64, 4, 8, 0)
ENDED = telemetry.Ended("the run finished", success=True)


def trained(step: int) -> telemetry.StepTrained:
    return telemetry.StepTrained(0, step, 4.0 - step / 10, 100, 0.5, 10)


def steps(count: int) -> list[telemetry.Event]:
    return [trained(step) for step in range(1, count + 1)]


class Recorder(Tracker):
    """Remembers every call."""

    def __init__(self, run: TrackedRun) -> None:
        self.run = run
        self.figures: list[tuple[int, dict[str, float]]] = []
        self.texts: list[tuple[int, str, str]] = []
        self.ended: list[tuple[bool, str]] = []

    def log_figures(self, step: int, figures: Mapping[str, float], *, time: float) -> None:
        self.figures.append((step, dict(figures)))

    def log_text(self, step: int, key: str, text: str, *, time: float) -> None:
        self.texts.append((step, key, text))

    def finish(self, *, success: bool, reason: str) -> None:
        self.ended.append((success, reason))


class Made:
    """A factory that remembers what it made."""

    def __init__(self, make: Callable[[TrackedRun], Tracker] = Recorder) -> None:
        self.trackers: list[Tracker] = []
        self._make = make

    def __call__(self, run: TrackedRun) -> Tracker:
        self.trackers.append(self._make(run))
        return self.trackers[-1]

    @property
    def only(self) -> Recorder:
        (tracker,) = self.trackers
        assert isinstance(tracker, Recorder)
        return tracker


def thread_of(create: Callable[[TrackedRun], Tracker], *, name: str = "t", queue_events: int = 10_000) -> TrackerThread:
    return TrackerThread(name, create, explain=lambda error: f"{type(error).__name__}: {error}", queue_events=queue_events)


def finished(*threads: TrackerThread) -> None:
    assert close_all(threads, seconds=TIMEOUT) == []


# ---------------------------------------------------------------------------------------------------- what a good one gets


def test_a_tracker_gets_run_figures_texts_and_end() -> None:
    made = Made()
    thread = thread_of(made)
    figures = telemetry.StepFigures(1, 0.01, 7.4, 0.6, 1.5, 640, 1280)
    for event in (
        STARTED,
        DESCRIBED,
        figures,
        trained(1),
        telemetry.PromptAnswered(0, "To be", " or not", 1, 1),
        trained(2),
        ENDED,
    ):
        thread(event)
    finished(thread)
    tracker = made.only
    assert (tracker.run.run_id, tracker.run.member, tracker.run.config["optimizer"]) == ("first-light", "ab" * 32, "Distro")
    assert [step for step, _ in tracker.figures] == [1, 2]
    assert tracker.figures[0][1]["train/loss"] == pytest.approx(3.9)
    assert tracker.figures[0][1]["train/lr"] == 0.01
    assert "train/lr" not in tracker.figures[1][1], "what did not change is not told again"
    assert tracker.texts == [(1, "prompts/0", "To be or not")]
    assert tracker.ended == [(True, "the run finished")]


def test_a_measurement_belongs_to_the_step_of_its_weights() -> None:
    made = Made()
    thread = thread_of(made)
    events = (
        DESCRIBED,
        telemetry.StepFigures(9, 0.5, 1, 1, 1, 1, 1),
        telemetry.Validated(6, 3.5),
        telemetry.Evaluated("piqa", "acc", 0.7, 9, 5, 6),
    )
    for event in (*events, trained(9), ENDED):
        thread(event)
    finished(thread)
    assert made.only.figures[:2] == [(6, {"validation/loss": 3.5}), (6, {"eval/piqa/acc": 0.7})]
    assert made.only.figures[2][0] == 9
    assert made.only.figures[2][1]["train/lr"] == 0.5


def test_a_client_that_never_reached_a_run_makes_no_tracker() -> None:
    made = Made()
    thread = thread_of(made)
    thread(STARTED)
    thread(telemetry.Ended("no such run", success=False))
    finished(thread)
    assert made.trackers == []


def test_a_client_that_starts_over_keeps_its_tracker() -> None:
    made = Made()
    thread = thread_of(made)
    for event in (STARTED, DESCRIBED, trained(1), STARTED, DESCRIBED, trained(2), ENDED):
        thread(event)
    finished(thread)
    assert [step for step, _ in made.only.figures] == [1, 2]


def test_a_program_without_a_last_word_counts_as_failed() -> None:
    made = Made()
    thread = thread_of(made)
    thread(DESCRIBED)
    finished(thread)
    assert made.only.ended == [(False, "the program ended")]


# --------------------------------------------------------------------------------------------------------------- bad ones


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """Set after the test, so that threads that hang for ever do not outlive it by much."""
    event = threading.Event()
    yield event
    event.set()


class Hanging(Recorder):
    """Hangs in one of its methods. reached: set when it does."""

    def __init__(self, run: TrackedRun, *, never: threading.Event, where: str, reached: threading.Event) -> None:
        super().__init__(run)
        self.never, self.where, self.reached = never, where, reached
        self.hang("create")

    def hang(self, here: str) -> None:
        if self.where == here:
            self.reached.set()
            self.never.wait()

    def log_figures(self, step: int, figures: Mapping[str, float], *, time: float) -> None:
        self.hang("log_figures")

    def log_text(self, step: int, key: str, text: str, *, time: float) -> None:
        self.hang("log_text")

    def finish(self, *, success: bool, reason: str) -> None:
        self.hang("finish")


@pytest.mark.parametrize("where", ["create", "log_figures", "log_text", "finish"])
def test_one_that_hangs_for_ever_holds_up_nobody(where: str, never: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    reached, good = threading.Event(), Made()
    hanging = thread_of(lambda run: Hanging(run, never=never, where=where, reached=reached), name="bad", queue_events=100)
    other = thread_of(good, name="good")
    report = EventBus(hanging, other)
    for event in (STARTED, DESCRIBED, trained(1), telemetry.PromptAnswered(0, "a", "b", 1, 1)):
        report(event)
    if where != "finish":
        assert reached.wait(TIMEOUT)
    for step in range(2, 1002):  # in this thread: it would never come to an end
        report(trained(step))
    report(ENDED)
    assert close_all([hanging, other], seconds=3.0) == ["bad"]
    assert reached.is_set()
    assert [step for step, _ in good.only.figures] == list(range(1, 1002))
    assert good.only.ended == [(True, "the run finished")]
    assert "waiting up to 3 s for the trackers to finish: bad" in caplog.text
    assert "the tracker bad did not finish within 3 s" in caplog.text
    if where != "finish":
        assert hanging.left_out >= 800
        assert caplog.text.count("is slower than the run, or hangs") == 1


class Raising(Recorder):
    """Raises in each of its methods, whatever one may raise."""

    def log_figures(self, step: int, figures: Mapping[str, float], *, time: float) -> None:
        super().log_figures(step, figures, time=time)
        raise (OSError("disk full"), SystemExit(3), KeyboardInterrupt(), RuntimeError("\x1b[31m"))[step % 4]

    def log_text(self, step: int, key: str, text: str, *, time: float) -> None:
        raise ZeroDivisionError

    def finish(self, *, success: bool, reason: str) -> None:
        super().finish(success=success, reason=reason)
        message = "not even the end"
        raise ValueError(message)


def test_one_that_raises_in_each_method_goes_on_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    made, good = Made(Raising), Made()
    threads = [thread_of(made, name="bad"), thread_of(good, name="good")]
    report = EventBus(*threads)
    for event in (STARTED, DESCRIBED, *steps(100), telemetry.PromptAnswered(0, "a", "b", 1, 1), ENDED):
        report(event)
    finished(*threads)
    assert len(made.only.figures) == 100, "it is called again after each exception"
    assert made.only.ended == [(True, "the run finished")]
    assert len(good.only.figures) == 100
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == ["the tracker bad failed, training goes on: SystemExit: 3"]


@pytest.mark.parametrize(
    ("create", "said"),
    [
        (lambda _: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda _: None, "TypeError: its create returned NoneType, expected a Tracker"),
        (lambda _: (_ for _ in ()).throw(SystemExit(0)), "SystemExit: 0"),
    ],
)
def test_one_that_cannot_be_made_is_off(
    create: Callable[[TrackedRun], Tracker], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[TrackedRun] = []
    thread = thread_of(lambda run: (calls.append(run), create(run))[1], name="bad")
    for event in (STARTED, DESCRIBED, *steps(10), ENDED):
        thread(event)
    finished(thread)
    assert len(calls) == 1
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"the tracker bad is off, training goes on: {said}"
    ]


def test_a_flood_waits_in_bounded_memory_and_the_last_word_arrives(never: threading.Event) -> None:
    """A tracker that takes nothing while a hundred thousand events come, and then everything that waited."""
    reached, made = threading.Event(), Made()

    class Late(Recorder):
        def log_figures(self, step: int, figures: Mapping[str, float], *, time: float) -> None:
            reached.set()
            assert never.wait(TIMEOUT)
            super().log_figures(step, figures, time=time)

    made = Made(Late)
    thread = thread_of(made, queue_events=500)
    for event in (STARTED, DESCRIBED, trained(0)):
        thread(event)
    assert reached.wait(TIMEOUT)
    for step in range(1, 100_001):
        thread(trained(step))
    assert len(thread._waiting) == 500
    thread(ENDED)
    never.set()
    finished(thread)
    assert [step for step, _ in made.only.figures] == list(range(501))
    assert thread.left_out == 100_000 - 500
    assert made.only.ended == [(True, "the run finished")]


class Flooding(Recorder):
    """Says a thousand lines at each call, and starts threads that do so."""

    def log_figures(self, step: int, figures: Mapping[str, float], *, time: float) -> None:
        super().log_figures(step, figures, time=time)
        for _ in range(1000):
            logging.getLogger("flood").debug("a line")
        threading.Thread(target=lambda: [b"x" * 1000 for _ in range(1000)], daemon=True).start()


def test_one_that_floods_slows_nobody_who_waits_for_nothing() -> None:
    made, good = Made(Flooding), Made()
    threads = [thread_of(made, name="flooding"), thread_of(good, name="good")]
    report = EventBus(*threads)
    began = time.thread_time()
    for event in (STARTED, DESCRIBED, *steps(200), ENDED):
        report(event)
    own = time.thread_time() - began
    finished(*threads)
    assert len(made.only.figures) == len(good.only.figures) == 200
    assert own < 5.0, "all that this thread does is to queue"


def test_problems_that_end_are_told_too(caplog: pytest.LogCaptureFixture) -> None:
    class Once(Recorder):
        def log_figures(self, step: int, figures: Mapping[str, float], *, time: float) -> None:
            super().log_figures(step, figures, time=time)
            if step % 10 == 1 and step < 50:
                raise OSError("no route")

    made = Made(Once)
    thread = thread_of(made)
    for event in (DESCRIBED, *steps(99), ENDED):
        thread(event)
    finished(thread)
    assert len(made.only.figures) == 99
    assert [record.getMessage() for record in caplog.records] == [
        "the tracker t failed, training goes on: OSError: no route",
        "the tracker t works again",
    ]
