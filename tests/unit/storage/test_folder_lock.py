"""A server's folder belongs to one server at a time, for as long as its process lives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from psyche_core.errors import ConfigError
from psyche_core.storage.folder_lock import LOCK_FILE, locked_folder

HOLDER = """
import sys
from pathlib import Path
from psyche_core.storage.folder_lock import locked_folder
with locked_folder(Path(sys.argv[1]), argument="--save-state-dir"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_s_folder_is_refused_at_once_until_that_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "saved"
    with subprocess.Popen([sys.executable, "-c", HOLDER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(ConfigError, match=rf"^another server keeps its state in {folder}; .* another --save-state-dir$"),
            locked_folder(folder, argument="--save-state-dir"),
        ):
            pass
        assert [path.name for path in folder.iterdir()] == [LOCK_FILE]
        holder.kill()
        holder.wait()
        with locked_folder(folder, argument="--save-state-dir"):
            pass


def test_a_file_in_its_place_is_refused_by_the_argument_s_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    sentence = rf"^state_dir {tmp_path / 'file'} is a file; give a folder \(created if missing\)$"
    with pytest.raises(ConfigError, match=sentence), locked_folder(tmp_path / "file", argument="state_dir"):
        pass


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    sentence = "^cannot keep the run's state in .*: Not a directory; choose another state_dir$"
    with pytest.raises(ConfigError, match=sentence), locked_folder(tmp_path / "file" / "below", argument="state_dir"):
        pass
