"""The count of fresh seeds is of one engine, and no seed is played twice."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Self

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
import compiled_engine
import simulated_seeds


@pytest.fixture(autouse=True)
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "seeds.csv"
    monkeypatch.setattr(simulated_seeds, "RECORD", path)
    monkeypatch.setattr(simulated_seeds, "CHUNK", 2)
    return path


def _call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["simulated_seeds.py", *arguments])
    return simulated_seeds.main()


def test_each_call_goes_on_where_the_last_one_ended(
    record: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = simulated_seeds.FIRST_SEED
    assert _call(monkeypatch, "--runs", "3", "--jobs", "1") == 0
    assert _call(monkeypatch, "--runs", "1", "--jobs", "1") == 0
    assert [(row["first"], row["last"], row["runs"]) for row in simulated_seeds.rows()] == [
        (str(first), str(first + 1), "2"),
        (str(first + 2), str(first + 2), "1"),
        (str(first + 3), str(first + 3), "1"),
    ]
    assert "4 seeds played, 0 broken" in capsys.readouterr().out


def test_a_goal_plays_what_is_missing(record: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _call(monkeypatch, "--runs", "1", "--jobs", "1") == 0
    for _ in range(2):
        assert _call(monkeypatch, "--goal", "3", "--jobs", "1") == 0
        assert [row["runs"] for row in simulated_seeds.rows()] == ["1", "2"]
    assert "3 seeds played, 0 broken" in capsys.readouterr().out


def test_a_goal_is_not_reached_over_a_broken_seed(
    record: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = simulated_seeds.engine_digest()
    written = ",".join(simulated_seeds.COLUMNS) + f"\n2026-01-01,{engine},3.11.7,10,19,10,1,900,no,0\n"
    record.write_text(written)
    assert _call(monkeypatch, "--goal", "20") == 1
    assert "1 of the 10 seeds that this engine played broke" in capsys.readouterr().err
    assert record.read_text() == written


def test_another_engine_begins_a_new_count(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record.write_text(",".join(simulated_seeds.COLUMNS) + "\n2026-01-01,0123,3.11.7,10,19,10,1,900\n")
    assert simulated_seeds.passed("0123") == (10, 1)
    assert simulated_seeds.passed(simulated_seeds.engine_digest()) == (0, 0)


def test_seeds_of_an_engine_with_a_stricter_check_count_but_for_thousands_that_broke(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ["older,3.11.7,10,19,10,0", "older,3.11.7,20,29,10,1", "other,3.11.7,30,39,10,0", "newer,3.11.7,40,49,10,0"]
    record.write_text(",".join(simulated_seeds.COLUMNS) + "\n" + "".join(f"2026-01-01,{row},900,no,0\n" for row in rows))
    monkeypatch.setattr(simulated_seeds, "EARLIER_ENGINES", {"newer": {"older": "a check fails less often"}})
    assert simulated_seeds.passed("newer") == (20, 0)
    assert simulated_seeds.passed("older") == (20, 1)


def test_rows_without_the_newer_columns_stay_valid(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record.write_text(",".join(simulated_seeds.COLUMNS[:-1]) + "\n2026-01-01,0123,3.11.7,10,19,10,1,900,no\n")
    assert _call(monkeypatch, "--runs", "1", "--jobs", "1") == 0
    header, old, new = record.read_text().splitlines()
    assert header == ",".join(simulated_seeds.COLUMNS)
    assert old == "2026-01-01,0123,3.11.7,10,19,10,1,900,no,"
    assert new.split(",")[3:7] == ["20", "20", "1", "0"]
    assert new.endswith(",no,0")
    assert simulated_seeds.passed("0123") == (10, 1)


class _Other:
    """Players of an engine that trains one step more in seed 3 than the source's."""

    def __init__(self, _jobs: int, *, compiled: Path | None, fingerprints: bool) -> None:
        self._more = int(compiled is not None)
        assert fingerprints

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def play(self, seeds: range) -> list[dict[str, object]]:
        runs = [{"seed": seed, "steps": 20 + self._more * (seed == 3), "broken": None} for seed in seeds]
        return [{"cpu_seconds": 1.0, "runs": runs}]


def test_a_difference_between_the_engines_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(simulated_seeds, "Players", _Other)
    monkeypatch.setattr(simulated_seeds, "FIRST_SEED", 0)
    monkeypatch.setattr(simulated_seeds, "built", lambda place, **_: place)
    assert _call(monkeypatch, "--compare", "5") == 1
    told = capsys.readouterr().out
    assert "4 of 5 runs are equal" in told
    assert 'DIFFERENT 3:\n  compiled    {"seed": 3, "steps": 21' in told
    assert _call(monkeypatch, "--compare", "3") == 0


def test_docstrings_and_comments_are_not_part_of_the_engine() -> None:
    code = compiled_engine.code_of
    assert code('"""A."""\nx = 1  # one\ndef f():\n    """B."""\n') == code("x = 1\ndef f():\n    pass\n")
    assert code("x = 1\n") != code("x = 2\n")
