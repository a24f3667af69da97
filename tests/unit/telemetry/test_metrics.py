"""Events become named figures: which, when they go, and what trackers call them."""

from __future__ import annotations

import math
import re
import typing

import pytest

from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.metrics import MAX_SERIES, METRICS, MetricBook

FIGURES = telemetry.StepFigures(3, 0.01, 7.4, 0.6, 1.5, 640, 1280, 320.0, 0.5, 1.25)


def book_of(*events: telemetry.Event) -> MetricBook:
    book = MetricBook()
    for event in events:
        book.handle(event)
    return book


def test_names_are_what_prometheus_and_opentelemetry_take() -> None:
    for name, metric in METRICS.items():
        assert re.fullmatch(r"psyche_[a-z_]+", name)
        assert not name.endswith("_total"), "the exposition adds it to counters"
        assert metric.help
    keys = [metric.key for metric in METRICS.values() if metric.key]
    assert len(keys) == len(set(keys))


def test_a_trained_step() -> None:
    book = book_of(telemetry.StepTrained(0, 3, 2.0, 100, 4.0, 555), FIGURES)
    assert book.value("psyche_training_loss") == 2.0
    assert book.value("psyche_own_tokens_per_second") == 25.0
    assert book.value("psyche_learning_rate") == 0.01
    assert book.value("psyche_tokens_per_second") == 320.0
    assert book.value("psyche_last_wait_time_seconds") == 1.25
    assert book.value("psyche_steps_trained") == 1
    book.handle(telemetry.StepTrained(0, 4, 1.5, 100, 4.0, 555))
    assert (book.value("psyche_steps_trained"), book.value("psyche_tokens_trained")) == (2, 200)


def test_trackers_get_what_was_set_since_they_asked() -> None:
    book = book_of(
        telemetry.StepTrained(0, 3, 2.0, 100, 4.0, 555), FIGURES, telemetry.Evaluated("MMLU-Pro", "acc,none", 0.3, 9, 3, 3)
    )
    taken = book.take_changed()
    assert taken["train/loss"] == 2.0
    assert taken["train/lr"] == 0.01
    assert taken["train/perplexity"] == 7.4
    assert taken["eval/mmlu_pro/acc_none"] == 0.3
    assert not any("{" in key for key in taken)
    assert book.take_changed() == {}
    book.handle(telemetry.StepTrained(0, 4, 2.0, 100, 4.0, 555))
    assert book.take_changed()["train/loss"] == 2.0, "an equal value was set anew"


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_what_is_not_finite_or_not_known_has_no_value(loss: float) -> None:
    book = book_of(telemetry.StepTrained(0, 3, 2.0, 100, 4.0, 5), telemetry.StepTrained(0, 4, loss, 100, 0.0, 5))
    assert book.value("psyche_training_loss") is None
    assert book.value("psyche_own_tokens_per_second") is None
    assert "train/loss" not in book.take_changed()
    assert all(math.isfinite(sample.value) for sample in book.samples())


def test_a_phase_replaces_the_one_before() -> None:
    book = book_of(telemetry.PhaseChanged("Warmup", 0, 1, 3), telemetry.PhaseChanged("RoundTrain", 0, 1, 3, 0))
    assert book.value("psyche_phase", "Warmup") is None
    assert book.value("psyche_phase", "RoundTrain") == 1
    assert (book.value("psyche_round"), book.value("psyche_clients")) == (0, 3)
    book.handle(telemetry.PhaseChanged("WaitingForMembers", 1, 9, 1, None, 2))
    assert book.value("psyche_round") is None


def test_peers_that_are_gone_have_no_round_trip() -> None:
    near, far = telemetry.PathOfPeer("aa", "direct", 20.0), telemetry.PathOfPeer("bb", "relayed", 250.0)
    book = book_of(telemetry.PeerPaths((near, far)))
    assert book.value("psyche_peer_round_trip_seconds", "bb", "relayed") == 0.25
    assert book.take_changed()["p2p/round_trip/bb"] == 0.25
    book.handle(telemetry.PeerPaths((near, telemetry.PathOfPeer("bb", "none"))))
    assert book.value("psyche_peer_round_trip_seconds", "bb", "relayed") is None
    ways = ("direct", "relayed", "none", "over_others")
    assert [book.value("psyche_peer_paths", path) for path in ways] == [1, 0, 1, 0]


def test_members_that_are_reached_over_others_are_not_those_that_are_not_reached() -> None:
    book = book_of(telemetry.PeerPaths((telemetry.PathOfPeer("aa", "direct", 20.0),), over_others=20))
    assert [book.value("psyche_peer_paths", path) for path in ("direct", "none", "over_others")] == [1, 0, 20]


def test_totals_of_the_network_are_the_transports_own() -> None:
    book = book_of(telemetry.NetworkTotals(1000, 500, 3, 7, 20, 1, 6, 5, 1, 400))
    names = ("bytes_sent", "bytes_received", "peer_connections", "broadcasts_sent", "messages_received", "messages_refused")
    assert [book.value(f"psyche_{name}") for name in names] == [1000, 500, 3, 7, 20, 1]
    downloads = ("downloads_started", "downloads_finished", "downloads_failed", "download_bytes")
    assert [book.value(f"psyche_{name}") for name in downloads] == [6, 5, 1, 400]


def test_shares_that_were_not_accepted_are_counted() -> None:
    book = book_of(telemetry.StepApplied(0, 3, 2, 3, 0.5), telemetry.StepApplied(0, 4, 3, 3, 0.25))
    assert (book.value("psyche_results_accepted"), book.value("psyche_results_lost")) == (5, 1)
    assert book.value("psyche_last_apply_time_seconds") == 0.25


def test_what_is_only_counted() -> None:
    book = book_of(
        telemetry.Problem("warning", "slow"),
        telemetry.Problem("warning", "slow"),
        telemetry.Dropped(0, 3, "late", True),
        telemetry.EpochDigest(0, 9, "aa"),
        telemetry.CheckpointSaved(9, "c"),
        telemetry.WitnessSent(0, 3, False),
        telemetry.MemberExited(0, "aa", "late"),
    )
    assert book.value("psyche_problems", "warning") == 2
    names = ("drops", "epochs_closed", "checkpoints_saved")
    assert [book.value(f"psyche_{name}") for name in names] == [1, 1, 1]
    assert book.value("psyche_witnesses_sent", "usual") == 1
    assert book.value("psyche_member_exits", "late") == 1


def test_a_flood_of_labels_is_bounded() -> None:
    book = book_of(*(telemetry.WitnessReported(f"{number:08x}", 1, 2.0, 5.0, 1.0) for number in range(3 * MAX_SERIES)))
    assert len([sample for sample in book.samples() if sample.metric.name == "psyche_member_loss"]) == MAX_SERIES


def test_every_metric_can_have_a_value_and_no_event_is_refused() -> None:
    """Every event of the union, with plain values; then each metric is in the samples."""
    book = MetricBook()
    for cls in typing.get_args(telemetry.Event):
        hints = typing.get_type_hints(cls)
        values: dict[str, object] = {
            name: (telemetry.PathOfPeer("aa", "direct", 5.0),)
            if "tuple" in str(kind)
            else {str: "x", bool: True}.get(kind, 1.0 if kind in (float, float | None) else 1)
            for name, kind in hints.items()
        }
        book.handle(cls(**values))
    assert {sample.metric.name for sample in book.samples()} == set(METRICS)
