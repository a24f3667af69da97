"""A journal's file that is cut, changed, torn or somebody else's: a beginning of what was written is read, or it is set aside."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.training.checkpoints.journal.lock import journal_path
from psyche_core.training.checkpoints.journal_records import FRAME, START, AppliedRound, Header, StoredResult, encode_record
from tests.unit.training.journal_cases import DIGEST, INSTANCE, applied, is_beginning, open_journal, play, read


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[StoredResult | AppliedRound]]:
    """A journal's bytes, and the records in it."""
    folder = tmp_path_factory.mktemp("small")
    with open_journal(folder) as journal:
        journal.begin(0, DIGEST, 0)
        written = play(journal, 1, 2, members=4)
    return journal.path.read_bytes(), written


def check_beginning(
    folder: Path, content: bytes, written: list[StoredResult | AppliedRound], *, again: bool = True, go_on: bool = False
) -> bool:
    """Whether a file of that content is read; it must be read as a beginning of what was written.

    again: whether to see that it is read once more, and whole then. go_on: and that it takes what comes next, which costs a flush
    of the disk.
    """
    journal_path(folder, "a run").write_bytes(content)
    told: list[str] = []
    with open_journal(folder, told) as journal:
        found = journal.read()
        if found is None:
            assert "is not used" in told[0]
            for path in folder.glob("a_run-journal.bin-*"):
                path.unlink()
            return False

        for path in folder.glob("a_run-journal.bin-damaged*"):
            assert path.read_bytes() == content
            path.unlink()

        assert is_beginning(found, written)
        last = found.last_step
        if go_on:
            journal.add_applied(applied(last + 1))
            journal.sync()
    if again or go_on:
        told.clear()
        found = read(folder, told)
        assert found is not None
        assert (found.last_step, told) == (last + go_on, [])
    return True


def test_cut_after_any_byte_it_is_read_as_far_as_it_is_whole(
    tmp_path: Path, small: tuple[bytes, list[StoredResult | AppliedRound]]
) -> None:
    content, written = small
    first = len(START) + FRAME.size + len(encode_record(Header(instance=INSTANCE, generation=0, base_step=0, base_digest=DIGEST)))
    for length in range(len(content) + 1):
        often = {"again": length % 4 == 0, "go_on": length % 16 == 0}
        assert check_beginning(tmp_path, content[:length], written, **often) == (length >= first)


def test_with_any_byte_changed_it_is_read_as_far_as_it_is_right(
    tmp_path: Path, small: tuple[bytes, list[StoredResult | AppliedRound]]
) -> None:
    content, written = small
    random = Random(1)
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= random.randrange(1, 256)
        check_beginning(tmp_path, bytes(changed), written, again=at % 4 == 0, go_on=at % 16 == 0)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_frames_left_out_doubled_or_exchanged_end_what_is_read(
    small: tuple[bytes, list[StoredResult | AppliedRound]],
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
) -> None:
    content, written = small
    frames, at = [], len(START)
    while at < len(content):
        _, length, _ = FRAME.unpack_from(content, at)
        frames.append(content[at : at + FRAME.size + length])
        at += FRAME.size + length
    chosen = data.draw(st.lists(st.sampled_from(range(1, len(frames))), max_size=len(frames)))
    kept = data.draw(st.integers(0, len(frames)))
    mixed = [*frames[:kept], *(frames[number] for number in chosen)]
    check_beginning(tmp_path_factory.mktemp("mixed"), START + b"".join(mixed), written, go_on=True)


def test_a_torn_end_is_told_in_one_sentence(tmp_path: Path, small: tuple[bytes, list[StoredResult | AppliedRound]]) -> None:
    content, _ = small
    journal_path(tmp_path, "a run").write_bytes(content[:-1])
    told: list[str] = []
    found = read(tmp_path, told)
    assert found is not None
    assert found.last_step == 1
    assert len(told) == 1
    assert "were not completely written; they were removed, and the journal now ends with step 1" in told[0]
    assert not list(tmp_path.glob("*-damaged"))
    told.clear()
    assert read(tmp_path, told) is not None
    assert told == []


def test_a_changed_byte_in_the_last_record_is_no_unfinished_write(
    tmp_path: Path, small: tuple[bytes, list[StoredResult | AppliedRound]]
) -> None:
    content = bytearray(small[0])
    content[-1] ^= 1
    journal_path(tmp_path, "a run").write_bytes(content)
    told: list[str] = []
    found = read(tmp_path, told)
    assert found is not None
    (said,) = told
    assert "is damaged after step 1: the round of step 2 cannot be restored from it, only from other members" in said
    assert "a copy of the whole file was kept as a_run-journal.bin-damaged" in said
    assert (tmp_path / "a_run-journal.bin-damaged").read_bytes() == content


def test_zeros_where_the_last_record_should_be_are_an_unfinished_write(
    tmp_path: Path, small: tuple[bytes, list[StoredResult | AppliedRound]]
) -> None:
    """Some file systems leave them after a power failure."""
    journal_path(tmp_path, "a run").write_bytes(small[0] + bytes(FRAME.size + 5))
    told: list[str] = []
    assert read(tmp_path, told) is not None
    assert "were not completely written; they were removed, and the journal now ends with step 2" in told[0]
    assert not list(tmp_path.glob("*-damaged"))


@pytest.mark.parametrize("place", ["body", "length"])
def test_what_is_cut_because_of_a_damaged_byte_is_kept_in_a_copy(tmp_path: Path, place: str) -> None:
    """Half of the file was cut for good, and nobody was told how many rounds that is."""
    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 0)
        play(journal, 1, 9)
    content = bytearray(journal.path.read_bytes())
    at, frames = len(START), []
    while at < len(content):
        _, length, _ = FRAME.unpack_from(content, at)
        frames.append(at)
        at += FRAME.size + length
    content[frames[len(frames) // 2] + (FRAME.size if place == "body" else 6)] ^= 1
    journal.path.write_bytes(content)
    told: list[str] = []
    found = read(tmp_path, told)
    assert found is not None
    assert 1 <= found.last_step < 9
    (said,) = told
    first = found.last_step + 1
    lost = f"the rounds of steps {first} to 9, {9 - found.last_step} in all," if place == "body" else "what was added after it"
    assert f"is damaged after step {found.last_step}: {lost} cannot be restored from it" in said
    assert "a copy of the whole file was kept as a_run-journal.bin-damaged, and the journal now ends with" in said
    assert (tmp_path / "a_run-journal.bin-damaged").read_bytes() == content
    told.clear()
    assert read(tmp_path, told) is not None
    assert not told


@pytest.mark.parametrize(
    ("change", "sentence", "name"),
    [
        (lambda content: b"", "its beginning is damaged", "damaged"),
        (lambda content: content[: len(START)], "its beginning is damaged", "damaged"),
        (lambda content: content[:50], "its beginning is damaged", "damaged"),
        (lambda content: content.replace(START, START[:-1] + b"\x63", 1), "another version", "abandoned"),
        (lambda content: START + content[len(START) + 1 :], "damaged", "damaged"),
    ],
)
def test_a_file_that_is_no_journal_is_set_aside_and_not_deleted(
    tmp_path: Path, small: tuple[bytes, list[StoredResult | AppliedRound]], change: object, sentence: str, name: str
) -> None:
    content = change(small[0])  # type: ignore[operator]  # a function
    for number in ("", "-2"):
        journal_path(tmp_path, "a run").write_bytes(content)
        told: list[str] = []
        assert read(tmp_path, told) is None
        assert len(told) == 1
        assert sentence in told[0]
        assert (tmp_path / f"a_run-journal.bin-{name}{number}").read_bytes() == content
    told.clear()
    assert read(tmp_path, told) is None
    assert told == []


def test_a_journal_of_another_run_of_this_name_is_set_aside(tmp_path: Path) -> None:
    with open_journal(tmp_path, instance=b"i" * 32) as journal:
        journal.begin(0, DIGEST, 0)
    told: list[str] = []
    assert read(tmp_path, told) is None
    assert "it belongs to another run" in told[0]


def test_a_journal_of_another_generation_is_set_aside_where_one_is_asked_for(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.begin(0, DIGEST, 2)
    assert read(tmp_path) is not None, "without a generation it is the caller who looks at the header"
    told: list[str] = []
    assert read(tmp_path, told, generation=3) is None
    assert "generation 2 of the run, which is in generation 3" in told[0]
