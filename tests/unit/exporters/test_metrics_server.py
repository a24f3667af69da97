"""The metrics port, over real sockets: what it answers, to whom, and that nobody can hold it up."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from psyche_core.errors import UserError
from psyche_core.exporters.local_status import STALE_SECONDS
from psyche_core.exporters.metrics_server import MAX_CONNECTIONS, ProgramFigures, serving_figures
from psyche_core.telemetry import events as telemetry

EXAMPLE = Path(__file__).parents[3] / "examples" / "local_testnet"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def figures(clock: Clock) -> ProgramFigures:
    figures = ProgramFigures(clock=clock)
    for event in (
        telemetry.Started("client", "ab" * 32, 'a "run"\n', "h:1"),
        telemetry.PhaseChanged("RoundTrain", 2, 41, 5, 7),
        telemetry.StepTrained(2, 40, 2.5, 100, 0.5, 999),
        telemetry.StepApplied(2, 39, 4, 5, 0.25),
        telemetry.PeerPaths((telemetry.PathOfPeer("aa", "direct", 20.0), telemetry.PathOfPeer("bb", "none"))),
    ):
        figures(event)
    return figures


@pytest.fixture
def port(figures: ProgramFigures) -> Iterator[int]:
    with serving_figures(figures, 0, silent_seconds=0.2) as port:
        yield port


def get(port: int, path: str, *, method: str = "GET", host: str | None = None) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, answer.headers["Content-Type"], body


def test_prometheus_reads_it(port: int) -> None:
    status, kind, body = get(port, "/metrics")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    families = {family.name: family for family in text_string_to_metric_families(body)}
    values = {name: [(sample.labels, sample.value) for sample in family.samples] for name, family in families.items()}
    assert values["psyche_training_loss"] == [({}, 2.5)]
    assert values["psyche_results_lost"] == [({}, 1.0)]
    assert families["psyche_results_lost"].type == "counter"
    assert values["psyche_phase"] == [({"phase": "RoundTrain"}, 1.0)]
    assert values["psyche_peer_round_trip_seconds"] == [({"peer": "aa", "path": "direct"}, 0.02)]
    assert values["psyche_info"] == [({"role": "client", "run_id": 'a "run"\n', "id": "ab" * 32}, 1.0)]
    assert values["psyche_validation_loss"] == [], "a name without a value is there all the same"
    assert "psyche_results_lost_total 1.0\n" in body


def test_figures_are_those_of_now(port: int, figures: ProgramFigures) -> None:
    figures(telemetry.StepTrained(2, 41, 2.25, 100, 0.5, 999))
    assert "psyche_training_loss 2.25\n" in get(port, "/metrics")[2]
    assert "psyche_steps_trained_total 2.0\n" in get(port, "/metrics")[2]


def test_the_json_object(port: int, figures: ProgramFigures, clock: Clock) -> None:
    figures(telemetry.NetworkTotals(10, 1000, 1, 5, 20, 1, 6, 4, 1, 444))
    clock.now += 2
    figures(telemetry.NetworkTotals(10, 3000, 1, 5, 20, 1, 8, 6, 1, 666))
    figures(telemetry.WitnessSent(2, 6, False))
    status, kind, body = get(port, "/")
    assert (status, kind) == (200, "application/json")
    said = json.loads(body)
    assert said["connected_peers"] == [
        {"endpoint_id": "aa", "selected_path": {"addr": "direct", "rtt": {"secs": 0, "nanos": 20_000_000}}}
    ]
    assert (said["bandwidth"], said["round_step"], said["role"]) == (1000.0, 41, "Witness")
    assert (said["broadcasts_seen"], said["apply_message_failure"], said["witnesses_sent"]) == (20, 1, 1)
    assert (said["downloads_started"], said["downloads_finished"], said["downloads_bytes"]) == (8, 6, 666)
    figures(telemetry.PhaseChanged("RoundTrain", 2, 42, 5, 8))
    figures(telemetry.NetworkTotals(10, 3000, 1, 5, 20, 1, 9, 9, 1, 777))
    figures(telemetry.PhaseChanged("RoundWitness", 2, 42, 5, 8))
    said = json.loads(get(port, "/")[2])
    assert (said["results_downloaded_current_round"], said["results_downloaded_previous_round"]) == (3, 6)
    figures(telemetry.PhaseChanged("WaitingForMembers", 3, 43, 2, None, 3))
    assert json.loads(get(port, "/")[2])["role"] == "NotInRound"


def test_who_connects_and_says_nothing_gets_the_object(port: int) -> None:
    """`nc 127.0.0.1 PORT`"""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        content = b"".join(iter(lambda: plain.recv(4096), b""))
    assert json.loads(content)["round_step"] == 41


def test_health_is_that_of_the_event_loop(port: int, figures: ProgramFigures, clock: Clock) -> None:
    assert get(port, "/healthz")[0] == 200, "before the network is there"
    figures(telemetry.NetworkTotals(1, 1, 1))
    clock.now += STALE_SECONDS - 1
    assert get(port, "/healthz")[0] == 200
    clock.now += 1
    status, _, body = get(port, "/healthz")
    assert (status, json.loads(body)["status"]) == (503, "stalled")
    figures(telemetry.NetworkTotals(1, 1, 1))
    assert get(port, "/healthz")[0] == 200
    figures(telemetry.Ended("the coordinator is gone", success=False))
    status, _, body = get(port, "/healthz")
    assert (status, json.loads(body)["ended"]) == (503, "the coordinator is gone")


def test_a_page_of_another_name_is_refused(port: int) -> None:
    """A page in a browser may give 127.0.0.1 a name of its own (DNS rebinding)."""
    assert get(port, "/metrics", host="evil.example.org")[0] == 403
    assert get(port, "/metrics", host=f"localhost:{port}")[0] == 200
    assert get(port, "/metrics", host="[::1]:80")[0] == 200


def test_other_paths_and_methods(port: int) -> None:
    assert get(port, "/metrics?x=1")[0] == 200
    assert get(port, "/nothing")[0] == 404
    assert get(port, "/metrics", method="POST")[0] == 501
    status, _, body = get(port, "/metrics", method="HEAD")
    assert (status, body) == (200, "")


def test_garbage_and_silent_connections_hold_up_nobody(port: int) -> None:
    crowd = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(MAX_CONNECTIONS - 1)]
    try:
        for each in crowd:
            each.sendall(b"GET /metrics HT")  # and then nothing
        with socket.create_connection(("127.0.0.1", port), timeout=10) as garbage:
            garbage.sendall(b"\xff" * 70_000 + b"\r\n\r\n")
        assert get(port, "/healthz")[0] == 200
    finally:
        for each in crowd:
            each.close()


def test_it_is_bound_to_this_machine_only_and_a_taken_port_is_one_sentence(port: int, figures: ProgramFigures) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.2", port))  # free, since 0.0.0.0 is not bound
    with pytest.raises(UserError, match=rf"cannot serve metrics on 127.0.0.1, port {port}: .*--metrics-local-port"):
        with serving_figures(figures, port):
            pass


def test_a_server_serves_its_figures(tmp_path: Path) -> None:
    """The real command, whose port nobody else had."""
    files = ("--state", str(EXAMPLE / "state.toml"), "--data-config", str(EXAMPLE / "data.toml"))
    words = [sys.executable, "-m", "psyche_core", "server", "run", *files, "--metrics-local-port", "0", "--logs", "none"]
    program = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        assert program.stderr is not None
        (url,) = [word for word in program.stderr.readline().split() if word.startswith("http://127.0.0.1:")]
        served = b""
        while b"psyche_total_steps 360.0" not in served:
            with urllib.request.urlopen(url, timeout=10) as answer:
                served = answer.read()
        assert b'psyche_info{id="' in served
    finally:
        program.send_signal(signal.SIGTERM)
        program.communicate(timeout=30)
