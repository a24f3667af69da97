"""`psyche web`, `psyche replay`, `psyche client status`, and where events are written: arguments, sentences, files."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from psyche_core.cli.program import open_report
from psyche_core.errors import UserError
from psyche_core.observer.client_status import ClientStatus
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.event_files import EventFolderReader, find_runs
from psyche_core.telemetry.sinks import to_json
from psyche_core.ui.client_status_text import status_lines
from tests.unit.cli.conftest import Psyche


def written(folder: Path, *, steps: int = 8, seconds: float = 3600.0) -> Path:
    """A run of two members whose steps lie this far apart."""
    folder.mkdir(parents=True)
    members: dict[str, list[telemetry.Event]] = {"server": [telemetry.Started("server", "ff" * 32, "first-light", "x", steps)]}
    members["server"] += [telemetry.PhaseChanged("RoundTrain", 0, step, 2) for step in range(1, steps + 1)]
    for n in (1, 2):
        members[f"client-{n}"] = [telemetry.Started("client", f"a{n}" * 32, "first-light", "x")]
        members[f"client-{n}"] += [telemetry.StepTrained(0, step, 5.0 - step / 10, 100, 1.0, 800) for step in range(1, steps + 1)]
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
        (["--run-id", "first-light", "--backend", "solana", "--rpc", "nowhere"], "expected an endpoint like http://HOST"),
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
        report(telemetry.Started("client", "ab" * 32, "first-light", "x"))
        report(telemetry.Joined("first-light"))
    assert find_runs(tmp_path / "events") == {"first-light": tmp_path / "events" / "first-light"}
    read = [each.event for each in EventFolderReader(tmp_path / "events" / "first-light").read()]
    assert read == [telemetry.Started("client", "ab" * 32, "first-light", "x"), telemetry.Joined("first-light")]
    assert len((tmp_path / "all.jsonl").read_text().splitlines()) == 2


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write events into .*--events-dir"), open_report(events_dir=tmp_path / "file"):
        pass


# ------------------------------------------------------------------------------------------------ psyche client status


def clients_files(folder: Path) -> Path:
    """A folder of --events-dir with two files of one client and one of an earlier one; the client's last word is about paths."""
    run = folder / "first-light"
    run.mkdir(parents=True)
    paths = telemetry.PeerPaths(
        (telemetry.PathOfPeer("6c01aa22", "relayed", 81.0, 1500, 2500), telemetry.PathOfPeer("77bb0011", "none"))
    )
    parts: dict[str, list[telemetry.Event]] = {
        "client-0000000000000000.20260101T000000000Z": [telemetry.Started("client", "00" * 32, "first-light", "x")],
        "client-a1a1a1a1a1a1a1a1.20260102T000000000Z": [telemetry.Started("client", "a1" * 32, "first-light", "x", 40)],
        "client-a1a1a1a1a1a1a1a1.20260103T000000000Z": [
            telemetry.PhaseChanged("RoundTrain", 2, 12, 3, height=5),
            telemetry.StepTrained(2, 12, 4.25, 800, 1.0, 1000),
            telemetry.CheckpointSaved(11, "checkpoints/first-light-11"),
            paths,
        ],
    }
    for at, (name, events) in enumerate(parts.items()):
        file = run / f"{name}.jsonl"
        file.write_text("".join(to_json(event) + "\n" for event in events))
        os.utime(file, (1e9 + at, 1e9 + at))
    return folder


def test_a_client_s_status_is_that_of_the_one_that_wrote_last(psyche: Psyche, tmp_path: Path) -> None:
    result = psyche("client", "status", "--events-dir", clients_files(tmp_path / "events"))
    assert result.code == 0
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[0] == ["run:", "first-light,", "client", "a1" * 8]
    assert lines[1][:2] == ["place:", "healthy,"]
    assert lines[2] == ["phase:", "RoundTrain,", "epoch", "2,", "round", "5,", "3", "clients"]
    assert lines[3][:9] == ["step:", "11", "of", "40,", "loss", "4.250", "at", "step", "12"]
    assert " ".join(lines[5]).startswith("members: 1 reached through a relay, 1 not reached now (")
    assert lines[6] == ["6c01aa22", "relayed", "81", "ms", "sent", "1.5", "kB/s,", "received", "2.5", "kB/s"]
    assert lines[7][:2] == ["77bb0011", "none"]
    assert lines[8][0] == "checkpoint:"
    assert lines[8][-1] == "checkpoints/first-light-11"


def test_a_client_s_status_as_json(psyche: Psyche, tmp_path: Path) -> None:
    file = max((clients_files(tmp_path / "events") / "first-light").iterdir())
    document = json.loads(psyche("client", "status", "--events-file", file, "--json").out)
    assert (document["format"], document["epoch"], document["place"]) == (1, 2, "healthy")
    assert [peer["path"] for peer in document["peers"]] == ["relayed", "none"]
    assert (document["run_id"], document["id"]) == ("first-light", "a1" * 8), "of the names, where the first file is gone"


def test_a_client_that_has_been_silent_may_have_stopped() -> None:
    status = ClientStatus()
    status.handle(1000.0, telemetry.Started("client", "a1" * 32, "first-light", "x"))
    silent, heard = (status_lines(status.document(), now=now)[-1] for now in (1300.0, 1010.0))
    assert silent.endswith("5 min 00 s ago; the client may have stopped")
    assert heard.endswith("10 s ago")


def test_what_has_no_status_is_a_sentence(psyche: Psyche, tmp_path: Path) -> None:
    folder = written(tmp_path / "events")
    (tmp_path / "empty.jsonl").touch()
    for arguments, sentence in (
        ([], "give --events-file FILE or --events-dir DIR"),
        (["--events-file", folder / "client-1.jsonl", "--events-dir", folder], "give --events-file FILE or --events-dir DIR"),
        (["--events-file", tmp_path / "none.jsonl"], "none.jsonl does not exist"),
        (["--events-file", tmp_path / "empty.jsonl"], "empty.jsonl has no events yet"),
        (["--events-file", folder / "server.jsonl"], "was written by a server, expected the events of a client"),
        (["--events-dir", tmp_path / "nowhere"], "there are no event files of a client"),
    ):
        result = psyche("client", "status", *arguments)
        assert result.code == 2
        assert sentence in result.err
        assert result.out == ""
