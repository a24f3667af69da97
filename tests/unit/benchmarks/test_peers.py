"""The pure parts of `benchmarks.peers`: counters, figures, verdicts, resumption, tables. The whole: tests/soak/test_peers.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import cells, environments, measures, ours_run, report, tuning
from benchmarks.peers.__main__ import Measurement, arguments, planned, speeds
from benchmarks.peers.lines import Counters, parse_counters, tbf
from benchmarks.peers.progress import ClientProgress, LineReader, Step, Weights, WorkerProgress
from benchmarks.peers.results import Results
from benchmarks.peers.systems import SYSTEMS
from benchmarks.peers.task import Task, factor_of, places
from benchmarks.peers.watching import Sample, at, parse_memory
from psyche_core.config.run_config import parse_run_file
from psyche_core.telemetry.events import Event, StepApplied, StepFigures, StepTrained
from psyche_core.telemetry.sinks import to_json

NET_DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
  eth0: 2755445       8    0    0    0     0          0         0  9753203       7    0    0    0     0       0          0
"""
TASK = Task(
    "folder",
    members=4,
    sequences=6,
    sequence_length=128,
    steps=50,
    rate=1e-3,
    warmup=5,
    every=10,
    settings={**SYSTEMS["ours-8"].settings, "epoch": 7},
)


def step(number: int, time: float, *, sequences: int = 6) -> Step:
    return Step(number, time, loss=7.0 - number, sequences=sequences, busy=0.8, cpu=0.7)


def steady(*, until: int, seconds: float = 2.0, begins: float = 100.0) -> list[Step]:
    return [step(number, begins + number * seconds) for number in range(1, until + 1)]


def line_of(bytes_per_second: float, *, cpu_share: float = 0.5, begins: float = 90.0) -> list[Sample]:
    """A host that sends as much as it gets, looked at ten times a second."""
    times = [begins + tenth / 10 for tenth in range(600)]
    return [Sample(t, round((t - begins) * bytes_per_second), 7, (t - begins) * cpu_share, 1000 + round(t)) for t in times]


def test_the_counters_are_those_of_the_interface() -> None:
    assert parse_counters(NET_DEV) == Counters(sent=9753203, received=2755445)
    with pytest.raises(ValueError, match="eth1"):
        parse_counters(NET_DEV, "eth1")


def test_memory_leaves_files_out() -> None:
    assert parse_memory("Rss: 900 kB\nPss_Anon:  30 kB\nPss_File: 500 kB\nPss_Shmem: 4 kB\n") == 34 * 1024


def test_a_bucket_holds_what_the_kernels_clock_needs() -> None:
    assert tbf(10.0)[3] == "10mbit"
    assert int(tbf(100.0)[5]) >= 100e6 / 8 / 250  # a tick of the slowest usual clock


def test_what_a_host_used_between_two_looks_follows_the_time() -> None:
    samples = [Sample(10.0, 100, 10, 1.0, 5), Sample(12.0, 300, 30, 2.0, 9)]
    assert at(samples, 11.0) == Sample(11.0, 200, 20, 1.5, 9)
    assert at(samples, 9.0) == samples[0]
    assert at(samples, 13.0) == samples[1]


def test_the_figures_of_a_steady_run() -> None:
    told = {rank: steady(until=10) for rank in range(4)}
    found = measures.figures(told, {rank: line_of(1000.0) for rank in range(4)}, began=90.0, service=line_of(50.0), batch=24)
    assert found["steps"] == 10
    assert found["startup_s"] == pytest.approx(12.0)
    assert found["step_s"] == found["step_mean_s"] == pytest.approx(2.0)
    assert found["counted_steps"] == 10 - measures.SKIPPED_STEPS
    assert found["sent_per_step"] == pytest.approx(2000, rel=0.01)
    assert found["cpu_per_step"] == pytest.approx(1.0)
    assert found["service_bytes_per_step"] == pytest.approx(100, rel=0.05)
    assert found["busy_per_step_s"] == 0.8


def test_pauses_count_in_the_mean_and_not_in_the_median() -> None:
    """As of DiLoCo, which pauses once in so many steps."""
    steps = [step(number, 100.0 + number + (20.0 if number > 8 else 0.0)) for number in range(1, 11)]
    found = measures.figures({0: steps}, {0: line_of(1.0)}, began=90.0, service=line_of(1.0), batch=6)
    assert found["step_s"] == pytest.approx(1.0)
    assert found["step_mean_s"] == pytest.approx((7 + 20) / 7, rel=1e-3)
    assert found["longest_gap_s"] == pytest.approx(21.0)


def test_a_step_is_a_whole_batch_whoever_trained_it() -> None:
    """Two members train the batch of four: a step of theirs is half a step."""
    told = {rank: steady(until=10) for rank in range(2)}
    found = measures.figures(told, {rank: line_of(1000.0) for rank in range(2)}, began=90.0, service=line_of(1.0), batch=24)
    assert found["step_mean_s"] == pytest.approx(4.0)
    assert found["sent_per_step"] == pytest.approx(4000, rel=0.01)


def test_a_run_without_a_step_has_no_figures() -> None:
    assert measures.figures({0: []}, {0: line_of(1.0)}, began=90.0, service=line_of(1.0), batch=6) == {
        "steps": 0,
        "startup_s": None,
    }


def test_curves_count_tokens_and_bytes_of_the_moment() -> None:
    told = {rank: steady(until=4) for rank in range(2)}
    samples = {0: line_of(1000.0), 1: line_of(3000.0)}
    losses = [(Weights(2, 104.5, None), 6.0)]
    assert measures.validation_curve(losses, told, samples, began=90.0, sequence_length=100) == [[14.5, 2400, 29000, 6.0]]
    assert [point[1] for point in measures.training_curve(told, began=90.0, sequence_length=100)] == [1200, 2400, 3600, 4800]


def test_a_loss_is_read_between_points_and_not_beyond() -> None:
    curve = [[10.0, 100, 1, 6.0], [20.0, 200, 2, 5.0]]
    assert measures.loss_at(curve, 15.0, column=0) == 5.5
    assert measures.loss_at(curve, 200, column=1) == 5.0
    assert measures.loss_at(curve, 21.0, column=0) is None
    assert measures.loss_at(curve, 9.0, column=0) is None
    assert measures.time_to(curve, 5.25) == 17.5
    assert measures.time_to(curve, 6.5) == 10.0
    assert measures.time_to(curve, 4.9) is None
    assert measures.time_to([], 5.0) is None


def after_kill(told: measures.Told, *, needed: int, **more: Any) -> dict[str, Any] | None:
    """Member 1 was killed at 108.5."""
    return measures.after_kill(told, moment=108.5, killed=1, needed=needed, **{"dead": {}, **more})


def test_who_goes_on_after_a_kill_works_and_who_does_not_stalls() -> None:
    goes_on = {0: steady(until=9), 1: steady(until=4)}
    assert after_kill(goes_on, needed=5) == {"verdict": "works", "seconds": 2.0}
    assert after_kill(goes_on, needed=6) is None
    assert after_kill(goes_on, needed=5, dead={0: 111.0}) == {"verdict": "dies", "seconds": 2.5}
    gathers = {0: [replace(each, update=1) for each in steady(until=20)], 1: steady(until=4)}
    assert after_kill(gathers, needed=1) is None, "it trains, but its weights do not change"
    gathers[0][14:] = [replace(each, update=2) for each in gathers[0][14:]]
    assert after_kill(gathers, needed=1) == {"verdict": "works", "seconds": 21.5}
    silent = {0: steady(until=4), 1: steady(until=4)}
    assert after_kill(silent, needed=5, given_up=168.5) == {"verdict": "stalls", "seconds": 60.0}


def test_a_late_member_has_joined_when_it_has_trained_with_the_others_weights() -> None:
    told = {0: steady(until=20), 1: [step(1, 120.0), step(2, 121.0), step(3, 125.0)]}
    assert measures.after_join(told, moment=110.0, joiner=1, own_steps=3) is None
    found = measures.after_join(told, moment=110.0, joiner=1, own_steps=2)
    assert found == {"verdict": "works", "seconds": 15.0, "longest_gap_s": 2.0}


def test_only_whole_lines_are_read_and_each_once(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    reader = LineReader(file)
    assert reader.new() == []
    file.write_text("one\ntw")
    assert reader.new() == ["one"]
    file.write_text("one\ntwo\n")
    assert reader.new() == ["two"]
    assert reader.new() == []


def test_workers_and_clients_tell_the_same_things(tmp_path: Path) -> None:
    worker = tmp_path / "worker.jsonl"
    worker.write_text(
        '{"what": "step", "step": 1, "time": 5.0, "loss": 6.5, "sequences": 6, "busy": 0.5, "cpu": 0.4, "update": 3}\n'
        '{"what": "weights", "step": 1, "time": 5.5, "file": "weights-1.pt", "seconds": 0.1}\n'
    )
    told = WorkerProgress(worker)
    assert told.steps() == [Step(1, 5.0, 6.5, 6, 0.5, 0.4, 3)]
    assert told.weights() == [Weights(1, 5.5, tmp_path / "weights-1.pt")]

    client = tmp_path / "client.jsonl"
    shown: dict[str, Any] = {
        "learning_rate": 1.0,
        "perplexity": 1.0,
        "confidence": 0.0,
        "gradient_norm": 1.0,
        "batch_tokens": None,
    }
    figures = StepFigures(step=1, **shown, total_tokens=0, compress_seconds=0.25)
    events: list[Event] = [
        StepTrained(epoch=0, step=1, loss=6.5, tokens=6 * 128, seconds=0.75, payload_bytes=9),
        figures,
        StepApplied(epoch=0, step=1, accepted=1, trained=1, seconds=0.1),
        StepApplied(epoch=0, step=2, accepted=1, trained=1, seconds=0.1),
    ]  # fmt: skip
    client.write_text("".join(to_json(event) + "\n" for event in events))
    ours = ClientProgress(client, sequence_length=128, every=4)
    (trained,) = ours.steps()
    assert (trained.step, trained.loss, trained.sequences, trained.busy) == (1, 6.5, 6, 0.5)
    assert [each.step for each in ours.weights()] == [2]


def test_what_is_measured_is_not_measured_again(tmp_path: Path) -> None:
    file, setting = tmp_path / "out" / "cells.jsonl", {"steps": 5}
    with Results(file, setting) as results:
        results.add({"key": "ddp/10/train/1", "step_s": 2.0})
        with pytest.raises(SystemExit, match="another program measures into"):
            Results(file, setting)
    with file.open("a") as stream:
        stream.write('{"key": "half')  # killed while it wrote
    with Results(file, setting) as again:
        assert again.cells == {"ddp/10/train/1": {"key": "ddp/10/train/1", "step_s": 2.0}}
        again.add({"key": "fsdp/10/train/1"})
    with Results(file, setting) as third:
        assert list(third.cells) == ["ddp/10/train/1", "fsdp/10/train/1"]
        third.add({"key": "of-yesterday/10/train/1"})
    with pytest.raises(SystemExit, match="other settings"):
        Results(file, {"steps": 6})
    with pytest.raises(SystemExit, match="has cells of of-yesterday, which this version does not measure"):
        Results(file, setting)


def test_a_peer_that_cannot_be_installed_is_a_row_that_says_why(tmp_path: Path) -> None:
    """It is not kept: the next time it may be there. What ran and failed is kept, unless it is to be tried again."""
    given = arguments(["--cache", "c", "--out", str(tmp_path), "--quick"])
    file = tmp_path / "cells.jsonl"
    setup = cells.Setup(
        task_folder=tmp_path, work=tmp_path, members=4, sequences=6, sequence_length=128, steps=5, seconds=5.0, patience=5.0,
        warmup=1, every=1, fault_step=1, epoch=5, period=5,
    )  # fmt: skip
    with Results(file, {}) as results:
        found = Measurement(given, results, setup, {"hivemind": "no such package"}).cell(cells.Cell("hivemind", 10.0))
        assert found["failed"] == "not installed: no such package"
    with Results(file, {}) as results:
        assert not results.cells

        results.add({"key": "ddp/10/train/1", "fault": "", "failed": "no step in 60 s"})
        failed = Measurement(given, results, setup, {}).cell(cells.Cell("ddp", 10.0))
        assert failed["failed"] == "no step in 60 s"

        again = arguments(["--cache", "c", "--out", "o", "--retry-failed"])
        retried = Measurement(again, results, setup, {"torch": "gone"}).cell(cells.Cell("ddp", 10.0))
        assert "not installed" in retried["failed"]


def test_versions_are_those_of_what_was_asked_for(tmp_path: Path) -> None:
    requirements = ("torch==2.13.0", "numpy")
    assert environments.versions("peer", requirements, cache=tmp_path) == {}
    folder = tmp_path / f"peer-{environments._digest(requirements)}"
    folder.mkdir()
    (folder / "installed.txt").write_text("numpy==2.4.6\ntorch==2.13.0+cpu\nother==1\n")
    assert environments.versions("peer", requirements, cache=tmp_path) == {"torch": "2.13.0+cpu", "numpy": "2.4.6"}
    said: list[str] = []
    assert environments.python_of("peer", requirements, cache=tmp_path, say=said.append) == folder / "bin" / "python"
    assert not said, "nothing is installed twice"


def cell(system: str, megabits: float | None, **values: object) -> dict[str, Any]:
    return {"key": f"{system}/{megabits}", "system": system, "megabits": megabits, "fault": "", **values}


CURVE = [[0, 0, 0, 7.0], [9, 9, 9, 6.1]]


def test_the_table_compares_with_computing_alone() -> None:
    cells = {
        "base": cell(
            "alone", None, busy_per_step_s=1.0, busy_cpu_per_step=0.9, step_mean_s=1.1, cpu_per_step=1.0, validation=CURVE
        ),
        "ddp": cell(
            "ddp", 10.0, step_s=4.0, step_mean_s=4.0, longest_gap_s=4.2, cpu_per_step=1.4, sent_per_step=34e6, validation=CURVE
        ),
        "gone": cell("hivemind", 10.0, failed="not installed: why"),
    }  # fmt: skip
    rows = report.rows(cells, seconds=9.0, tokens=100, losses=[6.55, 6.0])
    slow, failed, base = rows
    assert [row["system"] for row in rows] == ["ddp", "hivemind", "alone"]
    assert slow["busy_share"] == 0.25
    assert slow["other_cpu_per_step"] == 0.5
    assert (slow["loss_after_seconds"], slow["loss_after_tokens"]) == (6.1, None)
    assert (slow["times_to_losses"], failed["times_to_losses"]) == ([4.5, None], [None, None])
    assert base["other_cpu_per_step"] == 0.1
    text = report.table(rows, seconds=9.0, steps=5, losses=[6.55, 6.0])
    assert "| 10 | DDP, float32 | 4.00, 4.00, 4.2 s | 25% | 34 MB | - s | 0.50 s | - | 6.10 | - | 4, - |" in text
    assert "| loss after 9 s | after 5 steps | seconds to 6.55, 6 |" in text
    slow, _, base = report.rows(cells, seconds=9.0, tokens=9, losses=[])
    assert (slow["loss_after_tokens"], base["loss_after_tokens"]) == (6.1, None), "alone a member learns from its own tokens only"
    assert "| 10 | hivemind, an update a step: *not installed: why* | -, -, - s | - |" in text
    assert failed["failed"]


def tried(system: str, factor: float, *losses: float, megabits: float | None = None) -> dict[str, Any]:
    """A run of a factor that validated after every thousand tokens."""
    curve = [[10.0 * (place + 1), 1000 * (place + 1), 5, loss] for place, loss in enumerate(losses)]
    key = f"{system}/{megabits}/train/{factor:g}"
    return {**cell(system, megabits, factor=factor, validation=curve, validation_loss=losses[-1]), "key": key}


def by_key(*each: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["key"]: one for one in each}


def test_rates_are_compared_after_tokens_that_all_have_trained() -> None:
    """The run of factor 2 made a step more, and only there it has the lowest loss."""
    found = by_key(tried("ddp", 1.0, 7.0, 6.0), tried("ddp", 2.0, 7.0, 6.2, 5.5), tried("ddp", 0.5, 7.0, 6.5))
    assert tuning.losses(found, "ddp") == {0.5: 6.5, 1.0: 6.0, 2.0: 6.2}
    assert tuning.best(found, "ddp") == 1.0
    assert tuning.best(found, "ours-8") == 1.0
    longer = by_key(tried("ddp", 1.0, 7.0, 6.0, 5.9), tried("ddp", 2.0, 7.0, 6.2, 5.5))
    assert tuning.best(longer, "ddp") == 2.0
    assert "| DDP, float32 | 3,000 | - | 5.90 | **5.50** |" in tuning.table(longer)
    assert tuning.table(by_key(tried("ddp", 1.0, 7.0, 6.0))) == "", "one rate is no choice"


def test_the_best_rate_is_shown_or_the_nearest_that_was_measured() -> None:
    found = by_key(
        tried("ddp", 1.0, 7.0, 6.0),
        tried("ddp", 2.0, 7.0, 5.5),
        tried("ddp", 0.5, 6.9, megabits=10.0),
        tried("ddp", 1.0, 6.9, megabits=10.0),
    )
    assert {(each["megabits"], each["factor"]) for each in tuning.shown(found.values())} == {(None, 2.0), (10.0, 1.0)}
    text = report.table(report.rows(found, seconds=9.0, tokens=100, losses=[5.0]), seconds=9.0, steps=1, losses=[5.0])
    assert "| DDP, float32, rate × 2 |" in text
    assert "| DDP, float32 |" in text


def test_tuning_measures_what_is_missing_only(tmp_path: Path) -> None:
    given = arguments(["--cache", "c", "--out", str(tmp_path), "--systems", "alone,ddp", "--tune"])
    setup = cells.Setup(
        task_folder=tmp_path, work=tmp_path, members=4, sequences=6, sequence_length=128, steps=5, seconds=5.0, patience=5.0,
        warmup=1, every=1, fault_step=1, epoch=5, period=5,
    )  # fmt: skip
    with Results(tmp_path / "cells.jsonl", {}) as results:
        for one in (tried("ddp", 0.5, 6.0), tried("ddp", 1.0, 5.0)):
            results.add({**one, "key": f"ddp/unshaped/train/{one['factor']:g}"})
        assert Measurement(given, results, setup, {"torch": "gone"}).tuned() == {"ddp": 1.0}
        assert results.cells["ddp/unshaped/train/2"]["failed"] == "not installed: gone"


def test_the_table_of_faults_says_what_happened_to_whom() -> None:
    cells = {
        "kill": {**cell("ddp", None), "fault": "kill", "verdict": "dies", "seconds": 1.5, "why": "reset"},
        "join": {**cell("ddp", None), "fault": "join", "verdict": "stalls", "seconds": 60.0, "others": "works"},
    }
    assert "| DDP, float32 | dies, 1.5 s (reset) | stalls, 60 s; the others: works |" in report.fault_table(cells)
    assert report.fault_table({}) == ""


def test_the_figure_has_two_panels_for_each_speed(tmp_path: Path) -> None:
    curve = [[1.0, 10, 10, 7.0], [2.0, 20, 20, 6.0]]
    report.figure({"a": cell("ddp", 10.0, validation=curve), "b": cell("ours-8", None, validation=curve)}, tmp_path / "loss.png")
    picture = (tmp_path / "loss.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    width, height = (int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
    assert (width, height) == (2 * 4.5 * 110, 7 * 110)
    report.figure({}, tmp_path / "nothing.png")
    assert not (tmp_path / "nothing.png").exists()


def test_members_train_different_sequences_and_everybody_each() -> None:
    seen = [number for step in (1, 2) for rank in range(5) for number in places(TASK, step=step, rank=rank, count=60)]
    assert sorted(seen) == sorted(np.arange(60))


def test_rates_follow_the_width_as_in_our_run_files() -> None:
    assert factor_of("model.layers.0.mlp.up_proj.weight", 512) == 0.25
    assert factor_of("lm_head.weight", 512) == 6.25 / 4
    assert factor_of("model.embed_tokens.weight", 512) == factor_of("model.norm.weight", 512) == 6.25


def test_our_run_file_is_one_that_the_server_takes() -> None:
    import tomli_w

    run = parse_run_file(tomli_w.dumps(ours_run.run_file(TASK)), source="peers")
    assert run.config.global_batch_size_start == 24
    assert run.config.init_min_clients == 3, "the run goes on without one of the four"

    sparse = replace(TASK, settings={**SYSTEMS["ours-sparse"].settings, "epoch": 40})
    fewer = parse_run_file(tomli_w.dumps(ours_run.run_file(sparse)), source="peers")
    assert fewer.config.global_batch_size_start == 8 * 24
    assert (fewer.config.total_steps, fewer.config.rounds_per_epoch) == (6, 5)
    assert fewer.config.max_round_train_time == 8 * run.config.max_round_train_time


def test_a_result_of_several_batches_is_several_steps() -> None:
    """As of SparseLoCo: of four steps of two seconds each."""
    told = {rank: [step(number, 100.0 + 8 * number, sequences=24) for number in range(1, 8)] for rank in range(4)}
    found = measures.figures(told, {rank: line_of(1000.0) for rank in range(4)}, began=90.0, service=line_of(1.0), batch=24)
    assert found["step_s"] == found["step_mean_s"] == pytest.approx(2.0)
    assert found["longest_gap_s"] == 8.0


def test_the_plan_has_the_base_first_and_faults_at_the_last_speed() -> None:
    given = arguments(["--cache", "c", "--out", "o", "--quick", "--systems", "alone,ddp", "--speeds", "10,unshaped"])
    assert [each.key for each in planned(given, {"ddp": 2.0})] == [
        "alone/unshaped/train/1",
        "ddp/10/train/2",
        "ddp/unshaped/train/2",
        "ddp/unshaped/kill/1",
        "ddp/unshaped/join/1",
    ]
    assert speeds("50,unshaped") == [50.0, None]


def test_every_worker_is_a_program_without_our_core() -> None:
    """A peer's environment does not have psyche_core."""
    folder = Path(report.__file__).parent
    programs = [*folder.glob("workers/*.py"), folder / "task.py"]
    assert {system.worker for system in SYSTEMS.values() if system.worker} <= {each.stem for each in programs}
    for each in programs:
        imported = [line for line in each.read_text().splitlines() if line.startswith(("import ", "from "))]
        assert not [line for line in imported if "psyche" in line or ("benchmarks" in line and "peers.task" not in line)], each


def test_a_task_is_read_as_it_was_written(tmp_path: Path) -> None:
    TASK.save(tmp_path / "task.json")
    assert Task.load(tmp_path / "task.json") == TASK
    assert json.loads((tmp_path / "task.json").read_text())["settings"] == TASK.settings
