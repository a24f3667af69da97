"""OpenTelemetry, decoded by a collector of our own: figures, rounds, log lines; and a collector that fails or hangs."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from psyche_core.cli.otlp_export import otlp_sinks
from psyche_core.config.options.client import ClientSettings
from psyche_core.config.options.loading import load_settings
from psyche_core.errors import ConfigError
from psyche_core.exporters.otlp import CLOSE_SECONDS, OtlpSink, OtlpTargets, exported_name
from psyche_core.exporters.round_spans import MAX_PARTS, RoundSpans
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.metrics import METRICS
from tests.unit.exporters.otlp_server import Collector, collector, plain

STARTED = telemetry.Started("client", "ab" * 32, "first-light", "127.0.0.1:1")
ENDED = telemetry.Ended("the run finished", success=True)
PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "trackers-and-metrics.md").read_text()


@pytest.fixture
def there() -> Iterator[Collector]:
    with collector() as running:
        yield running


def targets(there: Collector, **more: object) -> OtlpTargets:
    kinds = (("metrics", "metrics"), ("tracing", "traces"), ("logs", "logs"))
    urls = {f"{kind}_url": f"{there.url}/v1/{path}" for kind, path in kinds}
    return OtlpTargets(**{**urls, **more})  # type: ignore[arg-type]


ROUND = (
    telemetry.PhaseChanged("RoundTrain", 2, 41, 5, 7),
    telemetry.StepApplied(2, 39, 4, 5, 0.25),
    telemetry.StepFigures(41, 0.01, 9.0, 0.5, 1.5, 500, 5000, compress_seconds=0.125),
    telemetry.StepTrained(2, 41, 2.5, 100, 0.5, 999),
    telemetry.PhaseChanged("RoundWitness", 2, 41, 5, 7),
    telemetry.WitnessSent(2, 7, opportunistic=True),
    telemetry.ResultsFetched(2, 7, 4, 1, 4096, seconds=0.75, idle_seconds=2.0),
    telemetry.PhaseChanged("RoundTrain", 2, 42, 5, 8),
)


def test_figures_have_prometheus_names_and_the_resource_says_who(there: Collector) -> None:
    sink = OtlpSink(targets(there, auth_header="Bearer secret"))
    peers = telemetry.PeerPaths((telemetry.PathOfPeer("aa", "direct", 20.0),))
    for event in (STARTED, *ROUND, peers, ENDED):
        sink(event)
    assert sink.close()
    values = there.values()
    assert values["psyche_training_loss"] == [({}, 2.5)]
    assert values["psyche_steps_trained_total"] == [({}, 1)]
    assert values["psyche_results_lost_total"] == [({}, 1)]
    assert values["psyche_peer_round_trip_seconds"] == [({"peer": "aa", "path": "direct"}, 0.02)]
    assert set(values) <= {exported_name(metric) for metric in METRICS.values()}
    assert "psyche_validation_loss" not in values, "what is not known is not sent"
    resource = plain(there.requests["/v1/metrics"][-1].resource_metrics[0].resource.attributes)
    names = ("service.name", "service.namespace", "service.instance.id", "run.id")
    assert [resource[name] for name in names] == ["psyche-client", "psyche", "ab" * 32, "first-light"]
    assert all(name in PAGE for name in names)
    assert {headers["authorization"] for headers in there.headers} == {"Bearer secret"}


def test_figures_come_at_intervals(there: Collector) -> None:
    sink = OtlpSink(targets(there, tracing_url=None, logs_url=None, interval=0.05))
    sink(STARTED)
    for step in (1, 2, 3):
        sink(telemetry.StepTrained(0, step, 2.5, 100, 0.5, 999))
        while not there.requests["/v1/metrics"] or there.values().get("psyche_steps_trained_total") != [({}, step)]:
            assert there.came.wait(20)
            there.came.clear()
    assert sink.close()


def test_a_round_is_a_trace_of_what_was_done_in_it(there: Collector) -> None:
    sink = OtlpSink(targets(there, metrics_url=None, logs_url=None))
    for event in (STARTED, *ROUND, ENDED):
        sink(event)
    assert sink.close()
    spans = there.spans()
    assert sorted(span.name for span in spans) == ["apply", "compress", "fetch", "round", "round", "train", "witness"]
    first = next(span for span in spans if span.name == "round" and plain(span.attributes)["height"] == 7)
    assert plain(first.attributes) == {"epoch": 2, "height": 7, "step": 41, "clients": 5}
    parts = {span.name: span for span in spans if span.parent_span_id == first.span_id}
    assert set(parts) == {"apply", "compress", "fetch", "train", "witness"}
    assert {span.trace_id for span in parts.values()} == {first.trace_id}
    assert parts["train"].end_time_unix_nano - parts["train"].start_time_unix_nano == pytest.approx(5e8, abs=1e4)
    assert parts["apply"].end_time_unix_nano - parts["apply"].start_time_unix_nano == pytest.approx(2.5e8, abs=1e4)
    lasted = {name: (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 for name, span in parts.items()}
    assert (lasted["compress"], lasted["fetch"]) == (pytest.approx(0.125, abs=1e-5), pytest.approx(0.75, abs=1e-5))
    assert parts["train"].start_time_unix_nano < parts["compress"].start_time_unix_nano
    before_the_end = (first.end_time_unix_nano - parts["fetch"].end_time_unix_nano) / 1e9
    assert before_the_end == pytest.approx(2.0, abs=1.0)
    assert plain(parts["compress"].attributes) == {"step": 41}
    assert plain(parts["fetch"].attributes) == {"results": 4, "failed": 1, "bytes": 4096}
    assert plain(parts["train"].attributes) == {"step": 41, "loss": 2.5, "tokens": 100}
    table = dict(re.findall(r"^\| `(\w+)` \| (.*?) \| .* \|$", PAGE.partition("| span |")[2], flags=re.MULTILINE))
    named = {
        span.name: "".join(f"`{name}`, " for name in plain(span.attributes)).removesuffix(", ")
        for span in (first, *parts.values())
    }
    assert table == named, "the table of spans and attributes"


def test_events_and_log_lines_are_logs(there: Collector) -> None:
    settings = ClientSettings(run_id="r", otlp_logs_url=f"{there.url}/v1/logs")
    with otlp_sinks(settings) as (sink,):
        for event in (STARTED, telemetry.Problem("warning", "a peer is slow\x1b[2J"), telemetry.NetworkTotals(1, 1, 1), ENDED):
            sink(event)
        logging.getLogger("psyche.client").warning("about %s", "something")
    logging.getLogger("psyche.client").warning("too late")
    said = [(record.body.string_value, record.severity_text, plain(record.attributes)["name"]) for record in there.logs()]
    assert said == [
        ("client abababababababab has reached run first-light at 127.0.0.1:1", "info", "Started"),
        ("warning: a peer is slow\\x1b[2J", "warning", "Problem"),
        ("the run finished", "info", "Ended"),
        ("about something", "warning", "psyche.client"),
    ]


def test_a_collector_that_refuses_is_told_once_and_when_it_is_back(there: Collector, caplog: pytest.LogCaptureFixture) -> None:
    there.status = 400
    settings = load_settings(ClientSettings, {"run_id": "r", "otlp_metrics_url": f"{there.url}/v1/metrics"})
    with otlp_sinks(settings) as (sink,):
        assert isinstance(sink, OtlpSink)
        sink._targets = targets(there, tracing_url=None, logs_url=None, interval=0.02)
        sink(STARTED)
        while len(there.headers) < 5:
            assert there.came.wait(20)
            there.came.clear()
        there.status = 200
        while not there.requests["/v1/metrics"]:
            assert there.came.wait(20)
            there.came.clear()
    url = f"{there.url}/v1/metrics"
    assert [record.getMessage() for record in caplog.records if record.name != "urllib3.connectionpool"] == [
        f"telemetry could not be sent to {url}; it is tried again, and the run goes on",
        f"telemetry can be sent to {url} again",
    ]


def test_a_collector_that_hangs_holds_up_neither_events_nor_the_end(there: Collector, caplog: pytest.LogCaptureFixture) -> None:
    there.hangs = threading.Event()
    sink = OtlpSink(targets(there, interval=0.05))
    sink(STARTED)
    assert there.came.wait(20)
    began = time.thread_time()
    for step in range(5000):
        sink(telemetry.StepTrained(0, step, 2.5, 100, 0.5, 999))
    assert time.thread_time() - began < 20
    assert not sink.close(1.0)
    assert "telemetry was not all sent within 1 s" in caplog.text
    there.hangs.set()
    for thread in threading.enumerate():
        if thread.name == "otlp end":  # it would go on with its attempts beside later tests
            thread.join(60)
            assert not thread.is_alive()


def test_nothing_is_sent_where_no_url_says_so() -> None:
    with otlp_sinks(ClientSettings(run_id="r", otlp_auth_header="x")) as sinks:
        assert sinks == []


def test_a_wrong_url_is_one_sentence_and_the_header_is_not_shown() -> None:
    with pytest.raises(ConfigError, match=r"^--otlp-metrics-url: got 'collector:4318'; must be a URL"):
        load_settings(ClientSettings, {"run_id": "r", "otlp_metrics_url": "collector:4318"})
    assert "hush" not in repr(ClientSettings(run_id="r", otlp_auth_header="hush"))


def test_the_page_says_how_long_the_end_takes() -> None:
    assert f"waits {CLOSE_SECONDS:.0f} s" in PAGE


# ----------------------------------------------------------------------------------------------------------- rounds, pure


def test_a_round_ends_with_the_next_with_its_epoch_or_with_the_program() -> None:
    spans = RoundSpans()
    assert spans.handle(telemetry.StepTrained(0, 1, 1.0, 1, 1.0, 1), now=1.0) is None, "outside of any round"
    assert spans.handle(telemetry.PhaseChanged("RoundTrain", 0, 1, 3, 0), now=2.0) is None
    assert spans.handle(telemetry.PhaseChanged("RoundWitness", 0, 1, 3, 0), now=3.0) is None
    first = spans.handle(telemetry.PhaseChanged("RoundTrain", 0, 2, 3, 1), now=4.0)
    assert first is not None
    assert (first.height, first.start, first.end, first.parts) == (0, 2.0, 4.0, [])
    second = spans.handle(telemetry.PhaseChanged("Cooldown", 0, 3, 3, None), now=5.0)
    assert second is not None
    assert (second.height, second.end) == (1, 5.0)
    assert spans.handle(telemetry.PhaseChanged("WaitingForMembers", 1, 3, 1, None, 2), now=6.0) is None
    spans.handle(telemetry.PhaseChanged("RoundTrain", 1, 3, 3, 0), now=7.0)
    assert spans.handle(ENDED, now=8.0) is not None
    assert spans.handle(ENDED, now=9.0) is None


def test_a_round_has_a_bounded_number_of_parts_and_finite_times() -> None:
    spans = RoundSpans()
    spans.handle(telemetry.PhaseChanged("RoundTrain", 0, 1, 3, 0), now=2.0)
    for _ in range(2 * MAX_PARTS):
        spans.handle(telemetry.StepTrained(0, 1, float("nan"), 1, float("inf"), 1), now=3.0)
    ended = spans.handle(ENDED, now=4.0)
    assert ended is not None
    assert len(ended.parts) == MAX_PARTS
    assert (ended.parts[0].start, ended.parts[0].attributes) == (3.0, {"step": 1, "tokens": 1})


def test_in_a_local_run_each_step_is_a_round() -> None:
    spans = RoundSpans(local=True)
    figures = telemetry.StepFigures(4, 0.01, 9.0, 0.5, 1.5, 500, 5000, compress_seconds=0.5)
    assert spans.handle(figures, now=10.0) is None
    ended = spans.handle(telemetry.StepTrained(0, 4, 2.5, 100, 2.0, 9), now=10.0)
    assert ended is not None
    assert (ended.epoch, ended.height, ended.step, ended.clients, ended.start, ended.end) == (0, 3, 4, 1, 8.0, 10.0)
    assert [(part.name, part.start, part.end) for part in ended.parts] == [("compress", 9.5, 10.0), ("train", 8.0, 10.0)]
    following = spans.handle(telemetry.StepTrained(0, 5, 2.5, 100, 1.0, 9), now=12.0)
    assert following is not None
    assert (following.step, [part.name for part in following.parts]) == (5, ["train"])
    assert spans.handle(ENDED, now=13.0) is None


def test_a_program_without_a_start_is_a_local_run(there: Collector) -> None:
    sink = OtlpSink(targets(there, metrics_url=None, logs_url=None))
    described = telemetry.RunDescribed("alone", "m", "HfAuto", "Distro", 9, 16, 8, 8, 0)
    for event in (described, telemetry.StepTrained(0, 1, 2.5, 100, 0.5, 9), ENDED):
        sink(event)
    assert sink.close()
    assert sorted(span.name for span in there.spans()) == ["round", "train"]
