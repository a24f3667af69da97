"""`psyche sim`: figures, traces, scripts, comparisons, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from psyche_core import simulator
from psyche_core.cli import main
from psyche_core.cli.commands.sim import parse_faults, parse_seeds
from psyche_core.simulator.generate import generate
from psyche_core.simulator.script import KINDS, to_plain


def psyche_sim(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "psyche_core", "sim", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_the_command_prints_figures_as_json() -> None:
    done = psyche_sim("--seeds", "0:4", "--rounds", 6, "--json")
    figures = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert figures["runs"] == 4
    assert figures["runs_per_minute"] > 0
    assert figures["failures"] == []
    assert figures["ended_early"] == []
    assert figures["step_seconds"] > 0
    assert [one["seed"] for one in figures["by_run"]] == [0, 1, 2, 3]


def test_the_comparison_is_told_to_people_too() -> None:
    done = psyche_sim("--seeds", "0:1", "--rounds", 12, "--faults", "never-states", "--compare")
    assert done.returncode == 0
    assert re.search(r"compared with the same runs without faults: steps take [\d.]+ times as long", done.stdout)


def test_the_command_compares_runs_with_honest_ones() -> None:
    done = psyche_sim("--seeds", "0:2", "--rounds", 12, "--faults", "never-states", "--compare", "--json")
    figures = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert figures["time_ratio"] > 1.0
    assert figures["most_time_ratio"] >= figures["time_ratio"]
    assert all(one["time_ratio"] >= 1.0 and one["seconds"] > 0 for one in figures["by_run"])


def test_the_benchmark_of_slow_members_prints_its_ratios() -> None:
    command = [sys.executable, "-m", "benchmarks.slow_members", "--seeds", "1", "--steps", "14", "--kinds", "all-ones", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=Path(__file__).parents[3])
    figures = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert figures["step_ratio_of_4"] > 0
    assert [(row["kind"], row["members"]) for row in figures["rows"]] == [("all-ones", 4), ("all-ones", 8)]


def test_help_tells_every_kind_of_fault() -> None:
    told = psyche_sim("--help").stdout
    assert not [kind for kind in KINDS if kind not in told]


def test_the_command_traces_one_run_and_plays_its_script_again(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps(to_plain(generate(3, rounds=6))))
    traced = psyche_sim("--seeds", 3, "--rounds", 6, "--trace")
    again = psyche_sim("--script", script)
    assert traced.returncode == again.returncode == 0
    assert "begins Train" in traced.stdout
    assert traced.stdout.splitlines()[-1] == again.stdout.splitlines()[-1], "the same run, to the mark"


def test_the_command_says_which_runs_ended_early(tmp_path: Path) -> None:
    path = Path(__file__).parent / "no_guarantee" / "two-results-have-votes-enough.json"
    script = tmp_path / "script.json"
    script.write_text(json.dumps(json.loads(path.read_text())["script"]))
    done = psyche_sim("--script", script)
    assert done.returncode == 0
    assert "ENDED EARLY, seed 3802209265: client-" in done.stdout
    figures = json.loads(psyche_sim("--script", script, "--json").stdout)
    assert [one["seed"] for one in figures["ended_early"]] == [3802209265]
    assert figures["failures"] == []


def test_fresh_seeds_are_printed() -> None:
    done = psyche_sim("--seeds", "random:2", "--rounds", 4)
    assert done.returncode == 0
    assert done.stdout.startswith("seeds: ")


@pytest.mark.parametrize("arguments", [("--seeds", "x"), ("--seeds", "5:5"), ("--faults", "flu"), ("--script", "nowhere"),
                                       ("--trace", "--seeds", "0:2")])  # fmt: skip
def test_what_the_command_does_not_understand_it_says_in_one_line(arguments: tuple[str, ...]) -> None:
    done = psyche_sim(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--faults", "nope"), f"'nope' is not a kind of fault; known: {', '.join(sorted(KINDS))}"),
        (("--faults", "crush"), "'crush' is not a kind of fault; did you mean crash?"),
        (("--faults", "none,crash"), "--faults none,crash: none cannot be combined with other kinds; leave out one or the other"),
        (("--faults", "crash,all"), "--faults crash,all: all cannot be combined with other kinds; leave out one or the other"),
        (("--seeds=-1",), "--seeds: a seed must be a whole number of at least 0, got -1"),
        (("--seeds=-2:3",), "--seeds: a seed must be a whole number of at least 0, got -2"),
        (("--seeds", "5:2"), "--seeds 5:2 contains no seed: A:B begins with A and ends before B, so B must be larger than A"),
        (("--seeds", "random:0"), "--seeds random:0: expected at least one seed"),
        (("--script", "nope.json"), "cannot read the script nope.json: No such file or directory"),
        (("--script", "state.toml"), "state.toml: a fault script is a JSON object: Expecting value: line 1 column 1 (char 0)"),
    ],
)
def test_what_cannot_be_played_is_one_sentence(
    arguments: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "state.toml").write_text("run_id = 3")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["sim", *arguments])
    assert capsys.readouterr().err == f"Error: {sentence}\n"


def test_seeds_and_faults_are_read() -> None:
    assert parse_seeds("3:6") == ([3, 4, 5], False)
    assert parse_seeds("7") == ([7], False)
    assert parse_seeds("1,9") == ([1, 9], False)
    assert parse_faults("all") == KINDS
    assert parse_faults("none") == ()
    assert parse_faults("crash, pause") == ("crash", "pause")


def test_the_page_tells_every_fault_and_every_invariant() -> None:
    page = (Path(__file__).parents[3] / "docs" / "explanation" / "simulator.md").read_text()
    modules = Path(simulator.__file__).parent.rglob("*.py")
    names = {name for module in modules for name in re.findall(r'InvariantViolation\(\s*"([a-z-]+)"', module.read_text())}
    assert len(names) > 25
    missing = sorted(name for name in (*KINDS, *names) if f"`{name}`" not in page)
    assert not missing


# ---------------------------------------------------------------------------------------- the slice for every change
