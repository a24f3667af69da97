"""Event files: read while they grow, merged by time, whatever their last line looks like."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.event_files import (
    MAX_LINE_BYTES,
    EventFolderReader,
    EventFolderWriter,
    event_files,
    find_runs,
    source_of,
)
from psyche_core.telemetry.sinks import from_json, to_json


def line(time: float, step: int) -> str:
    return json.dumps({"event": "validated", "time": time, "step": step, "loss": 1.0}) + "\n"


def steps(folder: EventFolderReader) -> list[tuple[str, int]]:
    return [(each.source, each.event.step) for each in folder.read() if isinstance(each.event, telemetry.Validated)]


def test_files_are_merged_by_time_and_followed(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(line(1, 1) + line(3, 3))
    (tmp_path / "b.jsonl").write_text(line(2, 2) + line(4, 4))
    folder = EventFolderReader(tmp_path)
    assert steps(folder) == [("a", 1), ("b", 2), ("a", 3), ("b", 4)]
    assert steps(folder) == []
    with (tmp_path / "a.jsonl").open("a") as stream:
        stream.write(line(5, 5))
    (tmp_path / "c.jsonl").write_text(line(4, 6))
    assert steps(folder) == [("c", 6), ("a", 5)]


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_half_a_line_waits_for_its_other_half(tmp_path: Path, cut: int) -> None:
    whole = line(1, 1) + line(2, 2)
    path = tmp_path / "a.jsonl"
    path.write_text(whole[:-cut])
    folder = EventFolderReader(tmp_path)
    assert steps(folder) == [("a", 1)]
    with path.open("a") as stream:
        stream.write(whole[-cut:])
    assert steps(folder) == [("a", 2)]


def test_lines_that_are_no_events_are_left_out(tmp_path: Path) -> None:
    bad = b'\xff\xfe\n{}\n[]\nnull\n{"event": "validated"}\n' + b"x" * (3 * MAX_LINE_BYTES) + b"\n"
    (tmp_path / "a.jsonl").write_bytes(
        bad + line(1, 1).encode() + b'{"event": "of a newer version", "time": 2}\n' + line(3, 2).encode()
    )
    assert steps(EventFolderReader(tmp_path)) == [("a", 1), ("a", 2)]


def test_a_file_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line(1, 1) + line(2, 2))
    folder = EventFolderReader(tmp_path)
    assert len(steps(folder)) == 2
    path.write_text(line(9, 9))
    assert steps(folder) == [("a", 9)]


def test_a_pipe_in_the_folder_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "b.jsonl")
    (tmp_path / "a.jsonl").write_text(line(1, 1))
    assert steps(EventFolderReader(tmp_path)) == [("a", 1)]


def test_runs_are_found_where_our_programs_leave_them(tmp_path: Path) -> None:
    for place in ("one/events", "two", "site/three/events"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "client-1.jsonl").write_text("")
    (tmp_path / "empty").mkdir()
    assert find_runs(tmp_path) == {
        "one": tmp_path / "one/events",
        "two": tmp_path / "two",
        "site/three": tmp_path / "site/three/events",
    }
    assert find_runs(tmp_path / "one") == {"one": tmp_path / "one/events"}
    assert find_runs(tmp_path / "missing") == {}
    assert event_files(tmp_path / "missing") == []


def test_parts_of_a_file_are_one_source_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "client-1.20260102T000000Z.jsonl").write_text(line(5, 2))
    (tmp_path / "client-1.20260101T000000Z.jsonl").write_text(line(6, 1))  # its clock was ahead
    assert steps(EventFolderReader(tmp_path)) == [("client-1", 1), ("client-1", 2)]
    assert source_of(Path("client-1.jsonl")) == "client-1"


def write_run(sink: EventFolderWriter, *, epochs: int, id_: str = "ab" * 32, run_id: str = "first-light") -> None:
    sink(telemetry.TokenFiles("data", 0, 3, 0, 0.0))
    sink(telemetry.Started("client", id_, run_id, "127.0.0.1:1"))
    for epoch in range(epochs):
        sink(telemetry.PhaseChanged("RoundTrain", epoch, epoch + 1, 2))
        sink(telemetry.Validated(epoch + 1, 3.0))
    sink(telemetry.Ended("over", success=True))
    sink.close()


def test_a_program_writes_a_file_for_each_epoch(tmp_path: Path, ticking: Callable[[], None]) -> None:
    write_run(EventFolderWriter(tmp_path), epochs=3)
    assert list(find_runs(tmp_path)) == ["first-light"]
    files = sorted((tmp_path / "first-light").iterdir())
    assert len(files) == 3
    assert {source_of(path) for path in files} == {"client-" + "ab" * 8}
    kinds = [type(each.event).__name__ for each in EventFolderReader(tmp_path / "first-light").read()]
    assert kinds == ["TokenFiles", "Started", *["PhaseChanged", "Validated"] * 3, "Ended"]


def test_only_the_newest_files_of_this_program_are_kept_and_what_says_whose_they_are(
    tmp_path: Path, ticking: Callable[[], None]
) -> None:
    write_run(EventFolderWriter(tmp_path, keep=2), epochs=5)
    write_run(EventFolderWriter(tmp_path, keep=2), epochs=1, id_="cd" * 32)
    mine = sorted((tmp_path / "first-light").glob("client-abab*"))
    told = [[type(each.event).__name__ for each in EventFolderReader(path).read()] for path in mine]
    assert ["Started" in kinds for kinds in told] == [True, False, False]
    assert len(list((tmp_path / "first-light").glob("client-cdcd*"))) == 1
    assert [each.event for each in EventFolderReader(mine[-1]).read()][-1] == telemetry.Ended("over", success=True)


@pytest.mark.parametrize("run_id", ["..", ".", "a/b", "x\0y", "Zürich 2"])
def test_a_runs_name_never_leads_out_of_the_folder(tmp_path: Path, run_id: str, ticking: Callable[[], None]) -> None:
    write_run(EventFolderWriter(tmp_path / "events"), epochs=1, run_id=run_id)
    (folder,) = (tmp_path / "events").iterdir()
    assert folder.is_dir()
    assert len(list(folder.glob("*.jsonl"))) == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "events"]


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Every look at the clock is a second later, so that names of files differ."""
    now = [1_700_000_000.0]

    def tick() -> float:
        now[0] += 1
        return now[0]

    monkeypatch.setattr("psyche_core.telemetry.event_files.time.time", tick)
    return lambda: None


@pytest.mark.parametrize(
    "bad",
    [
        {"step": "7"},
        {"step": 7.5},
        {"step": True},
        {"step": 10**400},
        {"step": None},
        {"loss": "low"},
        {"loss": [1]},
        {"time": -1},
        {"time": 1e300},
        {"time": "now"},
        {"event": ["validated"]},
    ],
)
def test_a_value_of_another_type_is_no_event(bad: dict[str, object]) -> None:
    good = {"event": "validated", "time": 1.0, "step": 7, "loss": 2.0}
    assert from_json(json.dumps(good)) == (1.0, telemetry.Validated(7, 2.0))
    assert from_json(json.dumps(good | {"of a newer version": 3})) == (1.0, telemetry.Validated(7, 2.0))
    assert from_json(json.dumps(good | bad)) is None


@given(text=st.text(max_size=60))
def test_no_line_raises(text: str) -> None:
    from_json(text)


@given(
    event=st.one_of(
        st.builds(
            telemetry.StepTrained,
            st.integers(0, 9),
            st.integers(0, 2**63),
            st.floats(allow_nan=False, allow_infinity=False),
            st.integers(0, 9),
            st.floats(0, 9),
            st.integers(0, 9),
        ),
        st.builds(telemetry.Stopping, st.integers(0, 9), st.none() | st.text()),
        st.builds(telemetry.MemberExited, st.integers(0, 9), st.text(), st.text()),
        st.builds(telemetry.Ended, st.text(), st.booleans()),
    )
)
def test_every_event_is_read_as_it_was_written(event: telemetry.Event) -> None:
    read = from_json(to_json(event))
    assert read is not None
    assert read[1] == event
