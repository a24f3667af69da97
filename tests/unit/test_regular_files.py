"""What is no file with content, in a file's place: nobody waits for it, and it is one sentence."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from psyche_backend_tcp.connections.allow_list import AllowList
from psyche_backend_tcp.server.state_store import StateStore, state_file
from psyche_core.cli.program import open_report
from psyche_core.config.run_config import load_data_file, load_run_file
from psyche_core.errors import ConfigError, IdentityError, ModelError, UserError
from psyche_core.regular_files import MAX_LIST_BYTES, NotRegular, expect_regular, read_entries, regular, regular_private
from psyche_core.storage.checkpoint_names import MANIFEST_FILE
from psyche_core.telemetry.events import Problem
from psyche_core.training.checkpoints.manifest import CheckpointFacts, read_manifest, verify, write_manifest
from psyche_core.wire.signing import SecretKey

pytestmark = pytest.mark.timeout(20)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def plug(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made, _inside(path.parent):
        made.bind(path.name)  # the whole path may be too long for a socket


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


@contextmanager
def _inside(place: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(place)
    try:
        yield
    finally:
        os.chdir(before)


KINDS = {pipe: "a named pipe", plug: "a socket", device: "a device", folder: "a folder"}
kinds = pytest.mark.parametrize(("make", "kind"), KINDS.items(), ids=list(KINDS.values()))


@kinds
@pytest.mark.parametrize("mode", ["rb", "r+b", "wb", "ab"])
def test_nothing_but_a_regular_file_is_opened(tmp_path: Path, make: Callable[[Path], None], kind: str, mode: str) -> None:
    make(tmp_path / "place")
    with pytest.raises(NotRegular, match=f"it is {kind}, expected a regular file") as caught:
        open(tmp_path / "place", mode, opener=regular)  # noqa: SIM115 - it is not opened
    assert caught.value.kind == kind
    with pytest.raises(NotRegular):
        expect_regular(tmp_path / "place")


def test_a_regular_file_is_opened_and_made_as_ever(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(FileNotFoundError):
        open(path, "rb", opener=regular)  # noqa: SIM115 - it is not opened
    with open(path, "wb", opener=regular_private) as file:
        file.write(b"one")
    assert path.stat().st_mode & 0o777 == 0o600
    with open(path, "ab", opener=regular) as file:
        file.write(b"two")
    with open(path, "rb", opener=regular) as file:
        assert file.read() == b"onetwo"


def load_state(path: Path) -> object:
    return StateStore(path, "run").load()


@kinds
@pytest.mark.parametrize(
    ("name", "read", "error"),
    [
        ("run.toml", load_run_file, ConfigError),
        ("data.toml", load_data_file, ConfigError),
        ("keys.txt", AllowList, UserError),
        ("me.key", SecretKey.load, IdentityError),
        (state_file(Path(), "run").name, lambda path: load_state(path.parent), UserError),
        (MANIFEST_FILE, lambda path: read_manifest(path.parent), ModelError),
    ],
    ids=["run", "data", "allow-list", "key", "saved-state", "manifest"],
)
def test_each_file_that_is_read_is_refused_in_one_sentence(
    tmp_path: Path, make: Callable[[Path], None], kind: str, name: str, read: Callable[[Path], object], error: type[Exception]
) -> None:
    path = tmp_path / name
    make(path)
    with pytest.raises(error) as caught:
        read(path)
    said = str(caught.value)
    assert str(path) in said
    assert f"is {kind}, expected a regular file" in said
    assert "\n" not in said
    assert path.exists(), "it is left where it was"


def test_a_pipe_among_a_checkpoints_files_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    facts = CheckpointFacts(run_id="run", step=1, epoch=0, data_index=0)
    manifest = write_manifest(tmp_path, facts)
    (tmp_path / "config.json").unlink()
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ModelError, match=r"config\.json"):
        verify(tmp_path, manifest)


def test_a_log_is_appended_to_and_one_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    log, events = tmp_path / "log", tmp_path / "events"
    for word in ("first", "second"):
        with open_report(events_file=events, write_log=log) as report:
            report(Problem("warning", word))
            logging.getLogger("psyche.x").warning("about %s", word)
    logging.getLogger("psyche.x").warning("too late")
    said = [line.split(maxsplit=1)[1] for line in log.read_text().splitlines()]
    assert said == ["warning: first", "warning: about first", "warning: second", "warning: about second"]
    assert len(events.read_text().splitlines()) == 2
    with pytest.raises(UserError, match=f"cannot write the log to {tmp_path}: Is a directory"):
        with open_report(write_log=tmp_path):
            pytest.fail("it was opened")


def test_events_go_into_a_pipe_that_somebody_reads_and_wait_for_nobody(tmp_path: Path) -> None:
    path = tmp_path / "events"
    os.mkfifo(path)
    with pytest.raises(UserError, match=f"cannot write events to {path}: no program reads this pipe; start the reader first"):
        with open_report(events_file=path):
            pytest.fail("it was opened")

    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with open_report(events_file=path) as report:
            report(Problem("warning", "heard"))
        assert b'"heard"' in os.read(reader, 4096)
    finally:
        os.close(reader)


def test_a_list_is_read_entry_by_entry_with_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "list"
    path.write_bytes(b"# who may join\nfirst\n\n   second  # a friend\r\nti\xffer")

    assert read_entries(path, "the list") == ((2, "first"), (4, "second"), (5, "ti\ufffder"))


def test_a_list_that_is_missing_a_folder_or_too_long_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^cannot read the list .*absent: No such file or directory$"):
        read_entries(tmp_path / "absent", "the list")
    with pytest.raises(UserError, match=r"^cannot read the list .*: it is a folder, expected a regular file$"):
        read_entries(tmp_path, "the list")

    path = tmp_path / "list"
    path.write_bytes(b"#" * MAX_LIST_BYTES)
    assert read_entries(path, "the list") == ()
    path.write_bytes(b"#" * (MAX_LIST_BYTES + 1))
    with pytest.raises(UserError, match=r"^the list .* is over 1048576 bytes; expected one entry a line$"):
        read_entries(path, "the list")
