"""The benchmark of an overlay: what it measures is what members do, and the goals hold where the graph is small."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.growth import overlay
from benchmarks.growth.overlay_messages import announce, directed, flood, keys, spread, survival
from benchmarks.growth.overlay_results import CASES, direct, swarm
from psyche_core.p2p.overlay import MOST_DEGREE, Overlay

MEMBERS = 34


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    """Of the smallest number of members that has an overlay."""
    found: dict[str, Any] = overlay.measure([MEMBERS], say=lambda text: None)
    assert json.loads(json.dumps(found)) == found
    return found


def test_every_figure_becomes_a_curve(figures: dict[str, Any]) -> None:
    assert all(len(each.points) == 1 for each in overlay.curves(figures))


def test_messages_reach_all_within_the_hops_of_the_graph_and_in_few_copies(figures: dict[str, Any]) -> None:
    graph, messages = figures[str(MEMBERS)]["graph"], figures[str(MEMBERS)]["messages"]
    assert graph["neighbours_most"] <= MOST_DEGREE
    for name in ("flood", "1 senders", "2 senders", "3 senders"):
        assert messages[name]["hops"] == graph["diameter"] <= 3
        assert messages[name]["missing"] == 0
        assert messages[name]["in_goal"] == 1
    copies = [messages[name]["copies"] for name in ("1 senders", "2 senders", "3 senders", "flood")]
    assert copies == sorted(copies)
    assert copies[0] == pytest.approx((MEMBERS - 1) / MEMBERS, abs=1e-3), "once at everybody but the author"
    assert messages["ids only"]["hops"] > graph["diameter"]


def test_a_flood_sends_each_message_on_each_edge_but_that_on_which_it_came() -> None:
    figures = spread(MEMBERS, flood)
    edges = sum(len(Overlay(keys(MEMBERS), 0).neighbours(key)) for key in keys(MEMBERS))
    assert figures["copies"] == pytest.approx((edges - (MEMBERS - 1)) / MEMBERS, rel=0.01)


def test_droppers_delay_messages_and_announced_ids_bring_them() -> None:
    honest, dropped = spread(60, directed(1)), spread(60, directed(1), dropping=0.1)
    assert dropped["in_goal"] < honest["in_goal"] == 1
    assert dropped["hops"] > honest["hops"]
    assert dropped["missing"] <= 1
    assert spread(60, announce)["copies"] < 3


def test_results_reach_all_and_nobody_uploads_half_as_much_again_as_the_mean(figures: dict[str, Any]) -> None:
    results = figures[str(MEMBERS)]["results"]
    for case in CASES:
        assert results[case]["missing"] == 0
        assert results[case]["time_over_ideal"] > 0.99
    for case in ("honest", "slow"):
        assert 1 <= results[case]["upload_over_mean"] < 1.5
    few = figures[str(MEMBERS)]["results_of_few"]
    assert few["direct"]["upload_over_mean"] == pytest.approx(MEMBERS / 4)
    assert few["honest"]["upload_over_mean"] < few["direct"]["upload_over_mean"]


def test_a_round_without_an_overlay_sends_each_result_once_to_everybody() -> None:
    figures = direct(10, results=10)
    assert figures["uploads_most"] == 9
    assert figures["upload_over_mean"] == 1
    assert swarm(10, results=10)["time_over_ideal"] >= 1


def test_the_dead_divide_a_graph_only_when_they_are_many() -> None:
    found = survival(100, (0.0, 0.3, 0.95), trials=10)
    assert found["0.0"] == found["0.3"] == {"connected": 1, "largest": 1}
    assert found["0.95"]["connected"] < 1
    assert found["0.95"]["largest"] < 1
