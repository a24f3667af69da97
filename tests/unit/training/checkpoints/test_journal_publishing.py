"""Published journals: whole, named for what they hold, and never replaced."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from psyche_core.errors import ModelError
from psyche_core.training.checkpoints.journal.journal import Journal
from psyche_core.training.checkpoints.journal.lock import earlier_path
from psyche_core.training.checkpoints.journal.publishing import PublishedSegment, SegmentDiffers, hold, hold_file, publish
from psyche_core.training.checkpoints.journal_records import NO_DIGEST
from tests.unit.training.journal_cases import DIGEST, INSTANCE, add_results, add_round, applied, history, open_journal, play

NAME = f"a_run-0001020304050607-g0-steps1-4-{history(4).hex()[:8]}.journal"


def published(journal: Journal, folder: Path) -> PublishedSegment | None:
    held = hold(journal)
    return None if held is None else publish(held, folder, "a run", instance=INSTANCE)


def test_a_journal_is_copied_under_a_name_that_says_what_it_holds(tmp_path: Path) -> None:
    out = tmp_path / "out" / "journals"
    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 0)
        assert published(journal, out) is None, "no rounds yet"
        play(journal, 1, 4)
        done = published(journal, out)
        assert done is not None
        assert (done.path, done.first_step, done.last_step) == (out / NAME, 1, 4)
        assert done.path.read_bytes() == journal.path.read_bytes()
        assert done.size == done.path.stat().st_size
        assert done.seconds > 0
        assert [path.name for path in out.iterdir()] == [NAME]


def test_a_held_journal_is_published_as_it_was_though_it_started_again_since(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 0)
        play(journal, 1, 4)
        add_results(journal, 5)  # not synced
        held = hold(journal)
        assert held is not None
        before = journal.path.read_bytes()
        journal.begin(4, DIGEST, 0)
        journal.begin(5, DIGEST, 0)  # deletes the file
        done = publish(held, tmp_path / "out", "a run", instance=INSTANCE)
        assert done is not None
        assert done.path.read_bytes() == before
        assert held.file.closed


def test_what_is_there_is_left_as_it_is_and_one_with_other_content_is_told(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 0)
        play(journal, 1, 4)
        assert published(journal, out) is not None
        assert published(journal, out) is None, "it is there already"
        (out / NAME).write_bytes(b"something else")
        with pytest.raises(SegmentDiffers, match=f"the journal of steps 1 to 4 was not published: .*{NAME} is there with other"):
            published(journal, out)
        assert (out / NAME).read_bytes() == b"something else"
        content = journal.path.read_bytes()
        (out / NAME).write_bytes(content[:-1] + bytes((content[-1] ^ 1,)))
        with pytest.raises(SegmentDiffers):
            published(journal, out)
        assert [path.name for path in out.iterdir()] == [NAME]


def test_a_journal_of_another_history_of_the_same_steps_is_published_beside_the_first(tmp_path: Path) -> None:
    """As after a restore of the coordinator from the state of after step 2."""
    out = tmp_path / "out"
    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 0)
        play(journal, 1, 4)
        assert published(journal, out) is not None
        before = (out / NAME).read_bytes()
        journal.rewind(2)
        add_round(journal, 3)
        journal.add_applied(replace(applied(4), history=history(4, branch="again")))
        done = published(journal, out)
    assert done is not None
    assert done.path.name == NAME.replace(history(4).hex()[:8], history(4, branch="again").hex()[:8])
    assert (out / NAME).read_bytes() == before


def test_a_history_that_is_unknown_is_not_in_the_name(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 0)
        journal.add_applied(replace(applied(1), history=NO_DIGEST))
        done = published(journal, tmp_path / "out")
    assert done is not None
    assert done.path.name == "a_run-0001020304050607-g0-steps1-1.journal"


def test_a_journal_that_goes_on_is_published_again_under_another_name(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 0)
        play(journal, 1, 4)
        published(journal, out)
        play(journal, 5, 6)
        done = published(journal, out)
    assert done is not None
    assert (done.first_step, done.last_step) == (1, 6)
    assert len(list(out.iterdir())) == 2


def test_bytes_after_the_last_complete_frame_are_not_published(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 0)
        play(journal, 1, 4)
        journal.begin(4, DIGEST, 0)
        earlier = earlier_path(journal.path)
        whole = earlier.read_bytes()
        earlier.write_bytes(whole + b"torn")
        held = hold_file(earlier)
        assert held is not None
        done = publish(held, tmp_path / "out", "a run", instance=INSTANCE)
    assert done is not None
    assert done.path.read_bytes() == whole
    assert hold_file(tmp_path / "nothing") is None


def test_a_journal_of_another_run_is_not_published(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 0)
        play(journal, 1, 4)
        held = hold(journal)
        assert held is not None
        assert publish(held, tmp_path / "out", "a run", instance=bytes(32)) is None
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_told_and_nothing_is_left_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 0)
        play(journal, 1, 4)
        held = hold(journal)
        assert held is not None
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(ModelError, match=r"a journal was not published in .*: No space left on device"):
            publish(held, out, "a run", instance=INSTANCE)
        monkeypatch.undo()
        assert list(out.iterdir()) == []
        (tmp_path / "file").touch()
        with pytest.raises(ModelError, match="a journal was not published in"):
            published(journal, tmp_path / "file")
