"""Journals and checkpoints in files and folders of strangers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.audit import finding
from psyche_core.audit.finding import find, opened
from psyche_core.errors import InputError
from psyche_core.training.checkpoints.journal.lock import earlier_path, journal_path
from psyche_core.training.checkpoints.journal_records import FRAME, START, VERSION, encode_record
from tests.unit.training.journal_cases import DIGEST, open_journal, play


def make_journal(folder: Path, *, base: int = 0, last: int = 3) -> Path:
    """A member's own journal in a folder."""
    with open_journal(folder) as journal:
        journal.begin(base, DIGEST, 0)
        play(journal, base + 1, last)
    return journal_path(folder, "a run")


def test_journals_are_known_by_their_content_and_other_files_are_left_alone(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 0)
        play(journal, 1, 3)
        journal.begin(3, DIGEST, 0)
        play(journal, 4, 5)
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.bin")}
    found = find([tmp_path, journal_path(tmp_path, "a run")])
    assert {each.path: (each.base_step, each.last_step) for each in found.segments} == {
        journal_path(tmp_path, "a run"): (3, 5),
        earlier_path(journal_path(tmp_path, "a run")): (0, 3),
    }
    assert (found.checkpoints, found.notes) == ((), ())
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.bin")} == before


def test_a_file_without_write_permission_is_read(tmp_path: Path) -> None:
    path = make_journal(tmp_path)
    path.chmod(0o400)
    assert find([path]).segments[0].last_step == 3


@given(st.data())
def test_a_damaged_journal_gives_the_rounds_before_the_damage_and_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    path = make_journal(folder, last=4)
    whole = find([path]).segments[0]
    content = bytearray(path.read_bytes())
    header = len(START) + FRAME.size + len(encode_record(whole.header))
    at = data.draw(st.integers(header, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    found = find([path])
    (segment,) = found.segments
    assert segment.rounds == whole.rounds[: len(segment.rounds)]
    assert segment.damage
    assert found.notes[0].startswith(f"{path} is damaged after step {segment.last_step}: ")
    with opened(segment) as file:
        for each in segment.rounds:
            assert all(file.payload(payload_hash) for payload_hash in each.payload_hashes)


def test_what_cannot_be_used_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="nowhere cannot be read: No such file"):
        find([tmp_path / "nowhere"])
    with pytest.raises(InputError, match="there is no journal that can be read in"):
        find([tmp_path])
    text = tmp_path / "notes.txt"
    text.write_text("nothing")
    with pytest.raises(InputError, match=r"notes\.txt is not a journal; members publish journals with --publish-journal"):
        find([text])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe cannot be used: it is a named pipe"):
        find([tmp_path / "pipe"])

    path = make_journal(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[:15] + bytes((VERSION + 1,)) + content[16:])
    with pytest.raises(InputError, match="another version of this program wrote it"):
        find([path])
    path.write_bytes(content[:30])
    with pytest.raises(InputError, match="its beginning is damaged"):
        find([path])
    path.write_bytes(content)
    monkeypatch.setattr(finding, "MAX_FRAMES", 5)
    with pytest.raises(InputError, match="it has more than 5 frames"):
        find([path])
    monkeypatch.setattr(finding, "MAX_FILES", 2)
    with pytest.raises(InputError, match=r"holds \d files, over the limit of 2"):
        find([tmp_path])


def test_a_journal_that_changes_while_it_is_audited_is_not_believed(tmp_path: Path) -> None:
    path = make_journal(tmp_path)
    (segment,) = find([path]).segments
    with open_journal(tmp_path) as journal:
        journal.read()
        play(journal, 4, 4)
    with pytest.raises(InputError, match="has changed while it was read; audit a copy of it"), opened(segment):
        pass
