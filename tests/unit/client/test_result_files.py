"""Results as files: the bytes that were sent, and a disk that is full, slow or gone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from psyche_core.client.runtime.reports import result_files
from psyche_core.client.runtime.reports.result_files import WAITING_STEPS, ResultFiles
from psyche_core.storage.folders import whole_folder
from psyche_core.telemetry.events import Event, Problem

MEMBER = "ab" * 32
FIRST, SECOND = b"first result", b"second result"


def ignore(_: Event) -> None:
    """Nobody is told."""


def below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_own_and_applied_results_are_files(tmp_path: Path) -> None:
    files = ResultFiles(ignore, member=MEMBER, own=tmp_path / "own", accepted=tmp_path / "all")
    files.trained(3, FIRST)
    files.applied(3, [SECOND, FIRST, FIRST])
    files.close()
    files.close()
    assert below(tmp_path / "own") == {f"{MEMBER[:16]}/step-00000003/result.payload": FIRST}
    names = [f"{number:03}-{sha256(each).hexdigest()[:16]}" for number, each in enumerate((SECOND, FIRST, FIRST))]
    folder = f"{MEMBER[:16]}/step-00000003"
    expected = dict(zip([f"{folder}/{name}.payload" for name in names], (SECOND, FIRST, FIRST), strict=True))
    assert below(tmp_path / "all") == expected, "equal results count separately"


def test_a_step_that_is_applied_again_replaces_its_files(tmp_path: Path) -> None:
    files = ResultFiles(ignore, member=MEMBER, accepted=tmp_path)
    files.applied(3, [FIRST, SECOND])
    files.applied(3, [SECOND])
    files.trained(3, FIRST)
    files.close()
    assert list(below(tmp_path).values()) == [SECOND], "and nobody asked for our own"


def test_a_disk_that_refuses_costs_one_warning(tmp_path: Path) -> None:
    told: list[Event] = []
    (tmp_path / MEMBER[:16]).write_text("a file where the folder belongs")
    files = ResultFiles(told.append, member=MEMBER, own=tmp_path)
    for step in range(1, 6):
        files.trained(step, FIRST)
    files.close()
    files.tell()
    files.tell()
    (problem,) = told
    assert isinstance(problem, Problem)
    assert problem.level == "warning"
    assert problem.message.startswith(f"results could not be written to {tmp_path / MEMBER[:16]}: ")
    assert problem.message.endswith("; training goes on, and later ones are tried")


def test_a_disk_that_hangs_delays_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Event] = []
    goes_on = threading.Event()

    @contextmanager
    def hanging(folder: Path) -> Iterator[Path]:
        goes_on.wait()
        with whole_folder(folder) as unfinished:
            yield unfinished

    monkeypatch.setattr(result_files, "whole_folder", hanging)
    files = ResultFiles(told.append, member=MEMBER, own=tmp_path)
    for step in range(1, WAITING_STEPS + 10):
        files.trained(step, FIRST)  # would hang here
    assert [type(event) for event in told] == [Problem]
    goes_on.set()
    files.close()
    assert WAITING_STEPS <= len(below(tmp_path)) <= WAITING_STEPS + 1, "the rest found the queue full"


def test_the_end_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    goes_on = threading.Event()

    @contextmanager
    def hanging(folder: Path) -> Iterator[Path]:
        goes_on.wait()
        yield folder

    monkeypatch.setattr(result_files, "whole_folder", hanging)
    files = ResultFiles(ignore, member=MEMBER, own=tmp_path)
    files.trained(1, FIRST)
    files.close(seconds=0.01)
    goes_on.set()
    assert "results were not all written" in caplog.text
