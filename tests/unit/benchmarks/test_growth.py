"""The benchmark of growth: its exponents are right, and what it measures is what members do."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.growth import chain, coordinator, estimate, handlers, optimizer
from benchmarks.growth.curves import curve, plot, table
from benchmarks.solana_rounds import PlayedRun
from psyche_core.client.machine.machine import ClientMachine
from psyche_core.simulator import server as simulated_server


@given(st.floats(-2, 3), st.floats(1e-3, 1e3), st.sets(st.integers(1, 10**9), min_size=2, max_size=8))
def test_the_exponent_of_a_power_is_its_exponent(power: float, factor: float, sizes: set[int]) -> None:
    made = curve("a power", "ms", "members", [(size, factor * size**power) for size in sizes])
    assert made.exponent == pytest.approx(power, abs=1e-6)
    assert made.last_exponent == pytest.approx(power, abs=1e-5)
    assert [size for size, _ in made.points] == sorted(sizes)


def test_a_cost_that_was_not_measured_has_no_exponent(tmp_path: Path) -> None:
    lone = curve("lone", "ms", "members", [(4, 2.0), (8, 0.0)])
    assert math.isnan(lone.exponent)
    assert lone.as_table()["exponent"] is None
    assert table([lone]).splitlines()[-1].split() == ["lone", "(ms)", "2", "-", "-"]
    assert "None" not in table([lone])
    assert json.dumps(curve("none", "ms", "members", []).as_table())
    plot(tmp_path / "costs.png", [lone, curve("rising", "ms", "members", [(1, 1.0), (2, 4.0)])])
    assert (tmp_path / "costs.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_has_a_column_for_each_size_and_a_part_for_each_thing_that_grows() -> None:
    both = [curve("first", "ms", "members", [(8, 1.0), (16, 2.0)]), curve("second", "MB", "members", [(16, 3.0), (2048, 4.0)])]
    members, rounds = table([*both, curve("third", "MB", "rounds", [(place, 1.0) for place in range(1, 101)])]).split("\n\n")
    heads, first, second = members.splitlines()
    assert heads.split() == ["with", "so", "many", "members", "8", "16", "2.05k", "exponent", "at", "the", "end"]
    assert first.split() == ["first", "(ms)", "1", "2", "-", "1.00", "1.00"]
    assert second.split() == ["second", "(MB)", "-", "3", "4", "0.06", "0.06"]
    shown = rounds.splitlines()[0].removeprefix("with so many rounds").split()[:-4]  # without "exponent at the end"
    assert (shown[0], shown[-1]) == ("1", "100")
    assert len(shown) == 7


def test_a_made_up_payload_passes_the_check_and_is_as_long_as_a_real_one() -> None:
    torch.manual_seed(1)
    ours = optimizer._optimizer(optimizer.RandomModel(64))
    real = ours.compress(1, learning_rate=1e-3)
    made = [optimizer._random_payload(ours, seed) for seed in range(3)]
    for payload in made:
        ours.check(payload)
        assert len(payload) == pytest.approx(len(real), rel=0.05)
    assert len(set(made)) == 3


@pytest.mark.soak  # half a minute of three processes with torch, for a benchmark that nothing else depends on
@pytest.mark.slow
def test_ranks_are_measured() -> None:
    code = (
        "import json; from benchmarks.growth import ranks; print(json.dumps(ranks.measure([1, 2], '4M', say=lambda text: None)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    one, two = json.loads(done.stdout).values()
    assert one["parameters"] == two["parameters"] > 4e6
    assert one["largest_other_mb"] is None
    assert 0 < two["rank_0_mb"] < one["rank_0_mb"], "half of masters and delta are elsewhere"


@pytest.mark.slow
@pytest.mark.quic
def test_a_mesh_is_measured() -> None:
    code = "import json; from benchmarks.growth import mesh; print(json.dumps(mesh.measure([3], say=lambda text: None)))"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["3"]
    assert figures["connections"] == 2
    assert figures["most_sent_over_mean"] < 2
    assert 0.05 < figures["sent_mb_per_round"] < 0.3, "two others fetch 54 kB; what was sent last may not be counted yet"
    assert 0 < figures["message_p50_ms"] <= figures["message_p99_ms"]


def test_calls_of_machines_and_coordinator_are_timed_by_their_kind() -> None:
    before = ClientMachine.handle, vars(simulated_server)["apply"]
    figures = handlers.measure([4], say=lambda text: None)["4"]
    assert (ClientMachine.handle, vars(simulated_server)["apply"]) == before
    assert figures["client"]["Trained"]["calls"] == 4 * handlers.STEPS
    assert figures["coordinator"]["Witness"]["calls"] >= 4 * handlers.STEPS
    for part in (figures["client"], figures["coordinator"]):
        every = part.pop("all")
        assert every["calls"] == sum(kind["calls"] for kind in part.values())
        assert every["max_ms"] == max(kind["max_ms"] for kind in part.values())
        assert 0 <= every["p50_ms"] <= every["p99_ms"] <= every["max_ms"]


@pytest.mark.soak  # a quarter of a minute, for a benchmark that nothing else depends on
def test_a_coordinator_is_measured_with_members_and_over_rounds() -> None:
    figures = coordinator.measure([2, 4], 20, say=lambda text: None)
    assert list(figures["lasting"]) == [str(played) for played in range(2, 21, 2)]
    assert figures["members"]["4"]["bytes_per_client_per_round"] > figures["members"]["2"]["bytes_per_client_per_round"]
    assert all(each.points for each in coordinator.curves(figures))


def test_a_coordinator_on_chain_is_measured_with_members_and_over_rounds() -> None:
    figures = chain.measure([3, 6], 20, say=lambda text: None, quick=True)
    few, many = (figures["members"][count] for count in ("3", "6"))
    assert [each["round"]["transactions"] for each in (few, many)] == [3, 6], "all are witnesses"
    assert [each["round"]["lamports"] for each in (few, many)] == [3 * 5000, 6 * 5000]
    assert many["beside"]["transactions"] == 2 * 6 + 3, "warmup and digests of all, two ticks, a checkpoint"
    assert {kind: found["lamports"] for kind, found in many["kinds"].items() if found["lamports"] != 5000} == {"Join": 10_000}
    assert many["reads"]["round_changes"] == 6
    assert many["reads"]["round_bytes"] > few["reads"]["round_bytes"] > 2 * 3 * figures["notice_bytes"]
    assert many["client"]["round_p50_ms"] > many["client"]["addition_p50_ms"] > 0
    assert many["client"]["decode_p50_ms"] > 0
    assert list(figures["lasting"])[:10] == [str(played) for played in range(2, 21, 2)]
    assert len({(each["account_bytes"], each["account_lamports"]) for each in figures["lasting"].values()}) == 1
    assert all(each.points for each in chain.curves(figures))


def test_time_on_a_cluster_is_that_of_its_slots() -> None:
    alone = chain.on_a_cluster([0])
    assert alone == {"block_units": 5000 + 2048 + 17_704, "blocks": 1, "seconds_1": 0.8, "seconds_2": 1.2}
    fit = chain.ACCOUNT_UNITS // alone["block_units"]
    assert chain.on_a_cluster([0] * fit)["seconds_1"] == 0.8
    assert chain.on_a_cluster([0] * (fit + 1))["seconds_1"] == 1.2


def test_a_chain_that_does_something_else_is_noticed() -> None:
    run = PlayedRun(3, rounds=2)
    run.gather()
    run.warm_up()
    before, statement = run.state, next(run.statements())
    run.do(statement)
    run.state = before
    with pytest.raises(AssertionError, match="something else at Witness: DuplicateWitness"):
        run.do(statement)


def test_an_estimate_is_the_codec_s_length_and_grows_as_it_says() -> None:
    torch.manual_seed(1)
    model = optimizer.RandomModel(256)
    real = len(optimizer._optimizer(model).compress(1, learning_rate=1e-3))
    parameters = sum(parameter.numel() for parameter in model.parameters.values())
    assert estimate.result_bytes(parameters, optimizer.TOPK) == pytest.approx(real, rel=0.05)
    few, many = (estimate.step(8e9, members, coefficients=8, megabits=1000, tflops=400) for members in (64, 256))
    assert many.received_bytes / few.received_bytes == 255 / 63
    assert few.compute_s / many.compute_s == 4
    assert few.step_s == few.transfer_s
    assert few.busy_share == pytest.approx(few.compute_s / few.transfer_s)
    assert estimate.table([few]).count("\n") == 2


def test_an_estimate_is_of_what_was_asked_for() -> None:
    words = ["--parameters", "20M,1B", "--members", "60", "--coefficients", "8", "--lines", "100", "--tokens", "6e5"]
    small, large = estimate.steps(estimate.arguments([*words, "--tflops", "40"]))
    assert (small.parameters, large.parameters, small.members, small.megabits) == (20e6, 1e9, 60, 100.0)
    assert large.compute_s == pytest.approx(6 * 1e9 * 6e5 / 60 / 40e12)
    assert large.received_bytes == pytest.approx(59 * large.result_bytes)
    assert large.transfer_s == pytest.approx(large.received_bytes / 12.5e6)
    assert "| 20 M | 60 | 8 | 0.054 MB | 3.2 MB | 100 Mbit/s |" in estimate.table([small])
    assert len(estimate.steps(estimate.arguments([]))) == 16
