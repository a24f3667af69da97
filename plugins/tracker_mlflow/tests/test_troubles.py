"""Servers that are away, in trouble, strict or something else: figures wait or are dropped, and one sentence says why."""

from __future__ import annotations

import itertools
import logging
import re
import socket

import pytest

from plugins.tracker_mlflow.tests.clock import MOMENT, RUN, Clock, tracker
from plugins.tracker_mlflow.tests.mlflow_server import MlflowServer
from psyche_core.exporters.tracker_thread import TrackerThread, close_all
from psyche_core.plugin_errors import explain
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.events import Event
from psyche_core.testing.ports import free_port
from psyche_tracker_mlflow import tracker as module
from psyche_tracker_mlflow.api import MlflowRefused, MlflowUnavailable
from psyche_tracker_mlflow.settings import MlflowSettings
from psyche_tracker_mlflow.tracker import FIRST_PAUSE, LONGEST_PAUSE, MlflowTracker


def away(server: MlflowServer) -> None:
    server.answer = lambda path: (503, b"<html>busy</html>")


def back(server: MlflowServer) -> None:
    server.answer = lambda path: None


def test_figures_wait_for_a_server_that_is_away_and_it_is_asked_after_growing_pauses(server: MlflowServer) -> None:
    now = Clock()
    using = tracker(server, now=now)
    attempts: list[float] = []
    server.answer = lambda path: (attempts.append(now.seconds), (503, b""))[1]
    step = 0
    while now.seconds < 300:
        step += 1
        with pytest.raises(MlflowUnavailable, match="answered 503"):
            using.log_figures(step, {"train/loss": 2.0}, time=MOMENT + now.seconds)
        now.seconds += 0.5
    pauses = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert pauses == [FIRST_PAUSE, 2, 4, 8, 16, 32, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
    back(server)
    now.seconds += LONGEST_PAUSE
    using.log_figures(step + 1, {"train/loss": 2.0}, time=MOMENT + 400)
    assert [metric[1] for metric in server.run.metrics] == list(range(1, step + 2))
    using.finish(success=True, reason="over")
    assert server.run.status == "FINISHED"


def test_a_server_that_comes_later_gets_everything(server: MlflowServer) -> None:
    now = Clock()
    away(server)
    using = tracker(server, now=now)
    with pytest.raises(MlflowUnavailable):
        using.log_figures(1, {"train/loss": 2.0}, time=MOMENT)
    with pytest.raises(MlflowUnavailable):
        using.log_text(1, "prompts/0", "x", time=MOMENT)
    back(server)
    using.finish(success=True, reason="over")
    assert server.run.kept.figures == {("train/loss", 1): 2.0}
    assert server.run.kept.texts == {("prompts/0", 1): "x"}
    assert server.run.kept.config == {"total_steps": "9"}


def test_what_waits_is_bounded_and_the_oldest_is_dropped(server: MlflowServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_METRICS", 5)
    away(server)
    using = tracker(server, now=Clock())
    for step in range(1, 9):
        with pytest.raises(MlflowUnavailable):
            using.log_figures(step, {"train/loss": 2.0}, time=MOMENT)
    back(server)
    using.finish(success=True, reason="over")
    assert [metric[1] for metric in server.run.metrics] == [4, 5, 6, 7, 8]


def test_what_is_refused_is_dropped_and_the_rest_arrives(server: MlflowServer) -> None:
    now = Clock()
    using = tracker(server, now=now)
    using.log_figures(1, {"train/loss": 2.0}, time=MOMENT)
    now.seconds += 1
    with pytest.raises(MlflowRefused, match=r"answered 400: a metric: .*bad"):
        using.log_figures(2, {"bad*key": 2.0}, time=MOMENT)
    now.seconds += 1
    using.log_figures(3, {"train/loss": 2.0}, time=MOMENT)
    using.finish(success=True, reason="over")
    assert [metric[1] for metric in server.run.metrics] == [1, 3]
    assert server.run.status == "FINISHED"
    assert len(server.problems) == 1
    server.problems.clear()


def test_a_deleted_experiment_is_one_sentence(server: MlflowServer) -> None:
    server.experiments["psyche"] = "3"
    server.deleted.add("psyche")
    with pytest.raises(MlflowRefused, match="the experiment 'psyche' is deleted; restore it or give another --mlflow-experiment"):
        tracker(server)


def test_a_key_that_is_refused_says_which_variables_count(server: MlflowServer) -> None:
    server.authorization = "Bearer other"
    using = tracker(server)
    with pytest.raises(MlflowUnavailable, match=r"answered 401: .*MLFLOW_TRACKING_TOKEN, say who asks"):
        using.log_figures(1, {"train/loss": 2.0}, time=MOMENT)
    with pytest.raises(MlflowUnavailable):
        using.finish(success=True, reason="over")


def test_credentials_do_not_go_where_a_redirect_leads(server: MlflowServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    other = MlflowServer()
    server.answer = lambda path: (307, f"{other.address}{path}".encode())
    using = tracker(server)
    with pytest.raises(MlflowUnavailable, match=rf"sends us to {re.escape(other.address)}/.*; give that address"):
        using.log_figures(1, {"train/loss": 2.0}, time=MOMENT)
    with pytest.raises(MlflowUnavailable):
        using.finish(success=True, reason="over")
    other.close()
    assert other.headers == []


@pytest.mark.parametrize("body", [b"<html></html>", b"[]", b"{}", b'{"experiment": []}', b"\xff"])
def test_what_is_no_mlflow_server_is_one_sentence(server: MlflowServer, body: bytes) -> None:
    server.answer = lambda path: (200, body)
    using = tracker(server)
    with pytest.raises(MlflowUnavailable, match="is not an MLflow server"):
        using.log_figures(1, {"train/loss": 2.0}, time=MOMENT)
    with pytest.raises(MlflowUnavailable):
        using.finish(success=True, reason="over")


def test_a_server_s_words_cannot_move_the_cursor(server: MlflowServer) -> None:
    server.answer = lambda path: (500, b'{"error_code": "INTERNAL_ERROR", "message": "\\u001b[2Jgone\\nnew line"}')
    using = tracker(server)
    with pytest.raises(MlflowUnavailable) as raised:
        using.log_figures(1, {"train/loss": 2.0}, time=MOMENT)
    assert str(raised.value).endswith("answered 500: \\x1b[2Jgone new line")
    with pytest.raises(MlflowUnavailable):
        using.finish(success=True, reason="over")


def test_nobody_there_is_one_sentence() -> None:
    settings = MlflowSettings(mlflow_tracking_uri=f"http://127.0.0.1:{free_port()}")
    using = MlflowTracker(RUN, settings)
    with pytest.raises(MlflowUnavailable, match=r"cannot be reached: .*refused"):
        using.log_figures(1, {"train/loss": 2.0}, time=MOMENT)
    with pytest.raises(MlflowUnavailable):
        using.finish(success=True, reason="over")


def events() -> list[Event]:
    """Of a run of 200 steps, as a client tells them."""
    started = telemetry.Started("client", "ab" * 32, "first-light", "127.0.0.1:1")
    described = telemetry.RunDescribed("first-light", "m", "HfLlama", "Distro", 100, 64, 4, 8, 0)
    steps = [telemetry.StepTrained(0, step, 4.0, 100, 0.5, 10) for step in range(1, 201)]
    return [started, described, *steps, telemetry.Ended("over", success=True)]


def test_a_server_that_hangs_holds_up_nobody_and_one_warning_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections are taken, and no answer comes. The events are told at once, whatever the tracker does meanwhile."""
    monkeypatch.setattr("psyche_tracker_mlflow.api.REQUEST_SECONDS", 0.2)
    monkeypatch.setattr(module, "REQUEST_AT_END", 0.2)
    caplog.set_level(logging.WARNING)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = MlflowSettings(mlflow_tracking_uri=f"http://127.0.0.1:{silent.getsockname()[1]}")
        thread = TrackerThread("mlflow", lambda run: MlflowTracker(run, settings), explain=lambda error: explain(error, []))
        for event in events():
            thread(event)
        assert close_all([thread], seconds=30.0) == []
    failures = [record.message for record in caplog.records if record.message.startswith("the tracker")]
    assert failures == [f"the tracker mlflow failed, training goes on: {settings.mlflow_tracking_uri} did not answer in time"]
