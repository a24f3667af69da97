"""What a run is called on the server, how much goes in one request, and how it ends."""

from __future__ import annotations

import pytest

from plugins.tracker_mlflow.tests.clock import MOMENT, Clock, tracker
from plugins.tracker_mlflow.tests.mlflow_server import MlflowServer
from psyche_core.interfaces import TrackedRun
from psyche_tracker_mlflow.tracker import SEND_SECONDS


def batches(server: MlflowServer, kind: str) -> list[int]:
    """How many of that kind each request held."""
    return [len(asked[kind]) for what, asked in server.asked if what == "runs/log-batch" and asked[kind]]


def test_names_times_and_tags_follow_from_run_and_member(server: MlflowServer) -> None:
    using = tracker(server)
    using.log_figures(4, {"train/loss": 2.5}, time=MOMENT)
    assert (server.run.status, server.run.end) == ("RUNNING", None)
    using.finish(success=True, reason="over")
    run = server.run
    assert (run.name, server.experiments["psyche"]) == ("first-light-cdcdcdcd", run.experiment)
    assert run.metrics == [("train/loss", 4, int(MOMENT) * 1000, 2.5)]
    assert run.tags == {
        "psyche.run_id": "first-light",
        "psyche.member": "cd" * 32,
        "psyche.ended": "over",
        "mlflow.source.name": "psyche",
        "mlflow.source.type": "JOB",
    }
    assert run.status == "FINISHED"
    assert run.end is not None
    assert run.end >= run.start


def test_options_name_it_otherwise_and_a_failure_is_one(server: MlflowServer) -> None:
    server.experiments["mine"] = "7"
    tracker(server, mlflow_experiment="mine", mlflow_run_name="named").finish(success=False, reason="left")
    assert (server.run.experiment, server.run.name, server.run.status) == ("7", "named", "FAILED")
    assert "experiments/create" not in server.paths()


def test_two_clients_that_make_the_experiment_at_once_share_it(server: MlflowServer) -> None:
    def other_client_is_faster(path: str) -> None:
        if path.endswith("experiments/create"):
            server.experiments["psyche"] = "8"

    server.answer = other_client_is_faster
    tracker(server).finish(success=True, reason="over")
    assert server.run.experiment == "8"


def test_an_address_may_have_a_path(server: MlflowServer) -> None:
    server.prefix = "/team/mlflow"
    using = tracker(server)
    using.log_text(1, "prompts/0", "x", time=MOMENT)
    using.finish(success=True, reason="over")
    assert server.run.files == {"prompts/0/step-00000001.txt": "x"}


def test_no_request_holds_more_than_a_server_takes(server: MlflowServer) -> None:
    now = Clock()
    config = {f"setting_{number}": "x" * 10_000 for number in range(250)}
    using = tracker(server, run=TrackedRun(run_id="r", member="", config=config), now=now)
    using.log_figures(0, {"train/loss": 1.0}, time=MOMENT)
    for step in range(1, 301):  # within one second
        using.log_figures(step, {f"optim/{group}/weight_norm": 0.5 for group in range(10)}, time=MOMENT + step / 300)
    assert batches(server, "metrics") == [1], "fast steps wait for each other"
    now.seconds += SEND_SECONDS
    using.log_figures(301, {"train/loss": 1.0}, time=MOMENT + 2)
    assert batches(server, "metrics") == [1, 1000, 1000, 1000, 1]
    assert batches(server, "params") == [100, 100, 50]
    using.finish(success=True, reason="over")
    assert len(server.run.metrics) == 3002
    assert set(server.run.params.values()) == {"x" * 6000}


def test_slow_steps_are_sent_at_once_and_the_rest_at_the_end(server: MlflowServer) -> None:
    now = Clock()
    using = tracker(server, now=now)
    for step in (1, 2, 3):
        now.seconds += SEND_SECONDS
        using.log_figures(step, {"train/loss": 2.0}, time=MOMENT)
        assert len(server.run.metrics) == step
    using.log_figures(4, {"train/loss": 2.0}, time=MOMENT)
    assert len(server.run.metrics) == 3
    using.finish(success=True, reason="over")
    assert len(server.run.metrics) == 4


def test_texts_are_tags_where_a_server_takes_no_files(server: MlflowServer) -> None:
    server.takes_files = False
    using = tracker(server)
    for step in (3, 150):
        using.log_text(step, "prompts/0", "To be\ud800 " * 2000, time=MOMENT)
    using.finish(success=True, reason="over")
    assert server.run.tags["prompts/0"].startswith("step 150: To be? To be?")
    assert len(server.run.tags["prompts/0"]) == 5000


@pytest.mark.parametrize(
    ("variables", "header"),
    [
        ({"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "secret"}, "Basic bWU6c2VjcmV0"),
        ({"MLFLOW_TRACKING_TOKEN": "secret"}, "Bearer secret"),
    ],
)
def test_every_request_says_who_asks(
    server: MlflowServer, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], header: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    server.authorization = header
    using = tracker(server)
    using.log_figures(1, {"train/loss": 2.0}, time=MOMENT)
    using.log_text(1, "prompts/0", "x", time=MOMENT)
    using.finish(success=True, reason="over")
    assert {headers["authorization"] for headers in server.headers} == {header}
    assert server.run.kept.texts == {("prompts/0", 1): "x"}
