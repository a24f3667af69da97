"""`psyche web`, `psyche replay`, and where events are written: arguments, sentences, files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from psyche_core.cli.program import open_report
from psyche_core.errors import UserError
from psyche_core.telemetry import events as told
from psyche_core.telemetry.event_files import EventFolderReader, find_runs
from psyche_core.telemetry.sinks import to_json
from tests.unit.cli.conftest import Psyche


def written(folder: Path, *, steps: int = 8, seconds: float = 3600.0) -> Path:
    """A run of two members whose steps lie this far apart."""
    folder.mkdir(parents=True)
    members: dict[str, list[told.Event]] = {"server": [told.Started("server", "ff" * 32, "first-light", "x", steps)]}
    members["server"] += [told.PhaseChanged("RoundTrain", 0, step, 2) for step in range(1, steps + 1)]
    for n in (1, 2):
        members[f"client-{n}"] = [told.Started("client", f"a{n}" * 32, "first-light", "x")]
        members[f"client-{n}"] += [told.StepTrained(0, step, 5.0 - step / 10, 100, 1.0, 800) for step in range(1, steps + 1)]
    for name, events in members.items():
        lines = [json.dumps(json.loads(to_json(event)) | {"time": 1e9 + at * seconds}) for at, event in enumerate(events)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_a_run_is_played_with_all_its_members(psyche: Psyche, tmp_path: Path) -> None:
    result = psyche("replay", written(tmp_path / "out" / "events").parent, "--speed", 0)
    assert result.code == 0
    assert "first-light" in result.out
    assert "client-1: client a1a1a1a1a1a1a1a1 has reached run first-light" in result.out
    assert "step 0/8 · loss" in result.out, "nothing was applied, and the run's length is known from the server's first event"
    assert "client-2" in result.out.splitlines()[-2]


def test_a_long_pause_is_played_in_the_time_that_is_allowed(psyche: Psyche, tmp_path: Path) -> None:
    folder = written(tmp_path / "events", seconds=1e6)
    assert psyche("replay", folder, "--speed", 1000, "--max-pause", 0.01, "--logs", "none").code == 0


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        ([], "there is nothing at"),
        (["empty/"], "has no event files"),
        (["one/a.jsonl", "two/a.jsonl"], "holds 2 runs, and one is played at a time; give one of its folders: one, two"),
        (["a.jsonl"], "no event of a run is in"),
    ],
)
def test_what_cannot_be_played_is_a_sentence(psyche: Psyche, tmp_path: Path, make: list[str], sentence: str) -> None:
    place = tmp_path / "place"
    for name in make:
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(exist_ok=True) if name.endswith("/") else path.write_text("no event\n")
    result = psyche("replay", place, "--logs", "none")
    assert result.code == 2
    assert sentence in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "nothing to show: give event files with --events DIR"),
        (["--events", "missing"], "there is no folder missing"),
        (["--run-id", "first-light"], "the backend tcp needs the coordinator's address; give it with --server-addr"),
        (
            ["--run-id", "first-light", "--backend", "solana"],
            "solana cannot be followed without taking part",
        ),
        (["--events", ".", "--token-file", "missing"], "cannot read the tokens in missing"),
        (["--events", ".", "--web-port", "70000"], "--web-port"),
        (["--run-id", "first-light", "--server-addr", "203.0.113.7:20000"], "#KEY"),
    ],
)
def test_what_cannot_be_shown_is_a_sentence(
    psyche: Psyche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = psyche("web", *arguments)
    assert result.code == 2
    assert sentence in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("module", ["uvicorn", "starlette.applications"])
def test_without_the_extra_a_sentence_says_how_to_get_it(
    psyche: Psyche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for command in (["web", "--events", tmp_path], ["replay", written(tmp_path / "events"), "--web-port", 0]):
        result = psyche(*command)
        assert result.code == 2
        assert "the web page needs Starlette and uvicorn: pip install 'psyche-core[web]'" in result.err


def test_events_go_into_a_folder_of_runs_too(tmp_path: Path) -> None:
    with open_report(events_file=tmp_path / "all.jsonl", events_dir=tmp_path / "events") as report:
        report(told.Started("client", "ab" * 32, "first-light", "x"))
        report(told.Joined("first-light"))
    assert find_runs(tmp_path / "events") == {"first-light": tmp_path / "events" / "first-light"}
    read = [each.event for each in EventFolderReader(tmp_path / "events" / "first-light").read()]
    assert read == [told.Started("client", "ab" * 32, "first-light", "x"), told.Joined("first-light")]
    assert len((tmp_path / "all.jsonl").read_text().splitlines()) == 2


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write events into .*--events-dir"), open_report(events_dir=tmp_path / "file"):
        pass
