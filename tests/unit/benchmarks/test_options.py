"""Wrong options of benchmarks end them with a sentence, before anything is measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.growth import __main__ as growth
from benchmarks.growth.curves import curve
from benchmarks.peers.__main__ import arguments

GIVEN = ["--cache", "c", "--out", "o"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--speeds", "0"], "--speeds: expected a number above 0, got '0'"),
        (["--speeds", "10,nan"], "expected a number above 0, got 'nan'"),
        (["--speeds", "abc"], "expected a number above 0, got 'abc'"),
        (["--seconds", "-5"], "--seconds: expected a number above 0, got '-5'"),
        (["--seconds", "inf"], "expected a number above 0, got 'inf'"),
        (["--faults", "boom"], "there is no fault 'boom'; there are kill, join, none"),
        (["--systems", "ddp,foo"], "there is no system 'foo'; there are alone, ddp,"),
        (["--systems", ""], "there is no system ''"),
        (["--members", "0"], "--members: expected a whole number from 1 to 64, got '0'"),
        (["--members", "1000"], "got '1000'"),
        (["--sequences", "-1"], "--sequences: expected a whole number from 1 to 1024, got '-1'"),
        (["--every", "0"], "--every: expected a whole number"),
        (["--every", "1.5"], "got '1.5'"),
    ],
)
def test_peers_refuses(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments([*GIVEN, *words])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_peers_takes_what_is_right() -> None:
    given = arguments([*GIVEN, "--speeds", "2.5,unshaped", "--faults", "none", "--systems", "alone,ours-8", "--seconds", "5"])
    assert (given.speeds, given.faults, given.systems, given.seconds) == ("2.5,unshaped", "none", "alone,ours-8", 5.0)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["optimizer", "--sizes", "1M,foo"], "there is no size 'foo'; there are 1M,"),
        (["optimizer", "--threads", "0"], "--threads: expected a whole number from 1 to 1024, got '0'"),
        (["mesh", "--members", "4,1"], "--members: expected a whole number from 2 to 256, got '1'"),
        (["ranks", "handlers", "--degree", "4"], "--degree changes nothing in ranks, handlers: it is for mesh"),
        (["mesh", "--degree", "7"], "--degree: expected an even number, got '7'"),
        (["mesh", "--degree", "-2"], "--degree: expected a whole number from 2 to"),
        (["boom"], "there is no part 'boom'; there are optimizer, mesh,"),
    ],
)
def test_growth_refuses(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        growth.arguments(words)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_peers_says_that_a_folder_cannot_be_made(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    command = [sys.executable, "-m", "benchmarks.peers", "--cache", str(tmp_path), "--out", str(file / "deeper")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[3])
    assert done.returncode == 2
    assert f"Error: --out: the folder {file / 'deeper'} cannot be made: Not a directory" in done.stderr


def test_growth_says_that_a_folder_cannot_be_made(tmp_path: Path) -> None:
    """Before it measures, which may take an hour."""
    file = tmp_path / "file"
    file.write_text("")
    command = [sys.executable, "-m", "benchmarks.growth", "handlers", "--out", str(file / "deeper")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[3])
    assert done.returncode == 2
    assert f"Error: --out: the folder {file / 'deeper'} cannot be made: Not a directory" in done.stderr
    assert "handlers:" not in done.stderr, "nothing was measured"


def test_growth_keeps_what_other_commands_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert growth.earlier(None) == growth.earlier(tmp_path) == {}
    costs = [curve("cost", "ms", "members", [(4, 1.0), (8, 2.0)])]
    growth.keep(tmp_path, "mesh", {"mesh": {"figures": 7}}, costs)
    growth.keep(tmp_path, "handlers", {**growth.earlier(tmp_path), "handlers": {"figures": 8}}, costs)
    assert growth.earlier(tmp_path) == {"mesh": {"figures": 7}, "handlers": {"figures": 8}}
    assert {file.name for file in tmp_path.iterdir()} == {
        "growth.json", "mesh.txt", "mesh.png", "handlers.txt", "handlers.png",
    }  # fmt: skip
    (tmp_path / "growth.json").write_text("no JSON")
    with pytest.raises(SystemExit):
        growth.earlier(tmp_path)
    assert f"Error: --out: {tmp_path / 'growth.json'} is not a report of this benchmark" in capsys.readouterr().err
