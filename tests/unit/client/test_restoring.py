"""What a restarted member goes on with, whatever state the coordinator is in: of the present journal, or of the one before it."""

from __future__ import annotations

import errno
import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from psyche_core.client.machine.epoch import masters_due
from psyche_core.client.runtime.disk_ahead import known_beyond
from psyche_core.client.runtime.journal_history import signed_ends
from psyche_core.coordinator.state import CoordinatorState, EpochEnd
from psyche_core.interfaces.backend import KnownPosition
from psyche_core.storage.checkpoint_names import checkpoint_path
from psyche_core.training.checkpoints.checkpoint import set_damaged_aside
from psyche_core.training.checkpoints.initial_model import belongs, newest_own
from psyche_core.training.checkpoints.journal.contents import Recovered
from psyche_core.training.checkpoints.journal.file import JournalFile
from psyche_core.training.checkpoints.journal.lock import earlier_path, journal_path
from psyche_core.training.checkpoints.journal_records import Header
from psyche_core.training.checkpoints.manifest import CheckpointFacts, write_manifest
from tests.unit.client.restoring_cases import INSTANCE, RUN, Masters, Member, state_at


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    one = Member(tmp_path)
    yield one
    one.restorer.close()


@pytest.mark.parametrize("back_to", range(5, 13))
def test_restored_over_an_epochs_end_the_masters_of_its_step_are_found(member: Member, tmp_path: Path, back_to: int) -> None:
    """Before, the journal of the new epoch began too late, and the run went back to the end of the epoch before."""
    member.train(4)
    member.end_epoch()
    member.train(9)
    member.end_epoch()
    member.train(12)
    start = 4 if back_to < 9 else 9
    assert member.start(state_at(back_to + 1), step=start) == back_to
    assert (member.masters.step, member.masters.content) == (back_to, member.contents[back_to])
    names = sorted(path.name for path in tmp_path.iterdir() if "step" in path.name)
    if back_to < 9:
        assert names == [f"{RUN}-step4", f"{RUN}-step9-abandoned"], "the run will have another model there"
    else:
        assert names == [f"{RUN}-step4", f"{RUN}-step9"]
    member.train(back_to + 2)
    assert member.start(state_at(back_to + 3), step=start) == back_to + 2, "it goes on from there"


def test_what_is_before_the_journal_before_is_told_as_missing(member: Member) -> None:
    for end in (3, 6, 9):
        member.train(end)
        member.end_epoch()
    assert member.start(state_at(3), step=0) == 0, "the caller asks the other members for step 2"


def test_a_disk_that_is_further_than_the_coordinator_tells_its_people_and_the_coordinator(member: Member) -> None:
    """All else was gone: the owner put back a copy of the whole folder, and nobody had the newer state in memory."""
    member.train(4)
    member.end_epoch()
    member.train(12)
    known = list[KnownPosition]()
    member.restorer.ahead.tell_later = known.append
    for right in (state_at(13), state_at(14), state_at(9, generation=1)):
        member.restorer.look_back(right)
    assert not known
    member.restorer.look_back(state_at(7))
    member.restorer.look_back(state_at(7))
    assert known == [KnownPosition(0, 1, 13)]
    said = [sentence for sentence in member.told if "further than the coordinator" in sentence]
    assert len(said) == 1
    assert "up to step 12, and the coordinator continues in epoch 1, before step 7" in said[0]
    assert "Tell the run's owner at once" in said[0]


def test_before_the_run_went_back_is_earlier_and_after_it_later(member: Member) -> None:
    """Of two generations the greater one is later, whatever the steps."""
    header = Header(instance=INSTANCE, generation=1, base_step=4, base_digest=bytes(32))
    found = Recovered(header=header, rounds=(), pending=(), payload=lambda _: b"")
    assert known_beyond(found, state_at(9), based=None) == KnownPosition(1, 1, 5)
    assert known_beyond(found, state_at(2, generation=2), based=None) is None


def test_a_checkpoint_saved_later_than_the_run_is_now_is_set_aside(member: Member, tmp_path: Path) -> None:
    """One saved on leaving lies beside a journal that begins earlier."""
    member.train(6)
    place = checkpoint_path(tmp_path, RUN, 6)
    place.mkdir()
    write_manifest(place, CheckpointFacts(run_id=RUN, step=6, epoch=0, data_index=0, mid_epoch=True, instance=INSTANCE))
    assert member.start(state_at(5), step=0) == 4
    assert not place.exists()
    assert place.with_name(f"{place.name}-abandoned").is_dir()


def test_a_checkpoint_that_was_set_aside_counts_again_once_its_model_is_signed(member: Member, tmp_path: Path) -> None:
    """A provider may show an older state for a while."""
    member.train(6)
    member.end_epoch()
    digest = member.masters.full_digest()
    place = checkpoint_path(tmp_path, RUN, 6)
    assert member.start(state_at(5), step=0) == 4
    assert not place.exists()
    truth = replace(state_at(9), ends=(EpochEnd(step=6, digest=digest),))
    member.restorer.close()
    member.restorer.look_back(truth)
    assert place.is_dir()
    assert member.restorer.held(truth) == ((6, digest),)


def _newest(member: Member, folder: Path, state: CoordinatorState) -> int | None:
    """The checkpoint that a starting client takes, as `model_opener` looks for it."""
    member.restorer.close()
    member.restorer.look_back(state)
    trusted = belongs(state.instance, state.generation, signed_ends(state), journal_base=member.restorer.base_of_history(state))
    found = newest_own(folder, RUN, at_most=masters_due(state), trusted=trusted, report=member.told.append)
    return None if found is None else found.step


def test_after_going_back_to_a_signed_end_the_journal_leads_there_from_a_checkpoint_of_mid_epoch(
    member: Member, tmp_path: Path
) -> None:
    """The end's own checkpoint could not be saved, on a full disk. The member's word turned the run back, and then its only copy
    of that model was refused, because its checkpoint was of the generation before."""
    member.train(4)
    member.end_epoch()
    member.train(9)
    end = EpochEnd(step=7, digest=hashlib.sha256(member.contents[7]).digest())
    before = replace(state_at(20), ends=(end,))
    member.restorer.close()
    member.restorer.look_back(before)
    assert member.restorer.held(before) == ((7, end.digest),), "so it says to the coordinator"

    after = replace(state_at(8, generation=1), ends=(end,))
    assert _newest(member, tmp_path, after) == 4
    assert member.start(after, step=4) == 7
    assert member.masters.content == member.contents[7]
    assert _newest(member, tmp_path, after) == 4, "and at the next start, too"
    assert member.start(after, step=4) == 7


def test_a_run_that_went_back_to_before_the_last_checkpoint_finds_the_journal_before_it(member: Member) -> None:
    """Our member was not there when others turned the run back, and its journal before the last checkpoint was not looked at."""
    member.train(9)
    member.end_epoch()
    end = EpochEnd(step=7, digest=hashlib.sha256(member.contents[7]).digest())
    after = replace(state_at(8, generation=1), ends=(end,))
    assert member.start(after, step=0) == 7
    assert member.masters.content == member.contents[7]


def test_a_journal_before_that_leads_to_no_signed_step_is_left_where_it_is(member: Member, tmp_path: Path) -> None:
    member.train(9)
    member.end_epoch()
    unknown = replace(state_at(3, generation=1), ends=())
    member.restorer.close()
    member.restorer.look_back(unknown)
    assert earlier_path(journal_path(tmp_path, RUN)).exists()


def test_a_checkpoint_of_the_generation_before_is_not_trusted_without_a_journal_that_leads_into_the_history(
    member: Member, tmp_path: Path
) -> None:
    member.train(4)
    member.end_epoch()
    member.train(9)
    other = replace(state_at(8, generation=1), ends=(EpochEnd(step=3, digest=b"d" * 32),))
    assert _newest(member, tmp_path, other) is None


def test_both_journals_lead_over_a_damaged_checkpoint(member: Member) -> None:
    member.train(4)
    member.end_epoch()
    member.train(9)
    member.end_epoch()
    member.train(12)
    assert member.start(state_at(13), step=4) == 12, "the checkpoint of step 9 is damaged, so the caller has that of step 4"
    assert member.masters.content == member.contents[12]
    assert any("the checkpoint of step 9 is missing or damaged" in said for said in member.told)


def test_a_journal_that_cannot_be_replayed_is_kept_under_another_name(member: Member, tmp_path: Path) -> None:
    member.train(4)
    member.end_epoch()
    member.train(9)
    member.end_epoch()
    member.train(12)
    earlier_path(journal_path(tmp_path, RUN)).unlink()
    assert member.start(state_at(13), step=4) == 4
    assert [path.name for path in tmp_path.glob("*-abandoned")] == [f"{RUN}-journal.bin-abandoned"]
    assert any(
        "the checkpoint of step 9 cannot be used, and its rounds do not follow the model of step 4" in said
        for said in member.told
    )


@pytest.mark.parametrize("damaged", [True, False])
def test_a_checkpoint_that_is_damaged_or_missing_is_named_before_its_journal_is_blamed(
    member: Member, tmp_path: Path, damaged: bool
) -> None:
    member.train(4)
    member.end_epoch()
    member.train(9)
    member.end_epoch()
    member.train(12)
    place = checkpoint_path(tmp_path, RUN, 9)
    if damaged:
        set_damaged_aside(place)
    else:
        shutil.rmtree(place)
    earlier_path(journal_path(tmp_path, RUN)).unlink()
    assert member.start(state_at(13), step=4) == 4
    what = f"damaged (it is kept as {RUN}-step9-damaged)" if damaged else "missing"
    wanted = f"is not used: the checkpoint of step 9 is {what}, and its rounds do not follow the model of step 4; it was renamed"
    assert any(wanted in said for said in member.told)


def test_a_damaged_journal_before_that_cannot_lead_over_a_damaged_checkpoint_is_named(member: Member, tmp_path: Path) -> None:
    member.train(4)
    member.end_epoch()
    member.train(9)
    member.end_epoch()
    member.train(12)
    member.restorer.close()
    path = earlier_path(journal_path(tmp_path, RUN))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert member.start(state_at(13), step=4) == 4
    wanted = (
        "the journal before the last checkpoint is damaged after step 8: the check of a frame is wrong; so it does not lead to"
    )
    assert any(wanted in said for said in member.told)


def test_a_full_disk_costs_the_journal_and_not_the_client(
    member: Member, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal_path(tmp_path, RUN).unlink()
    _fill_disk(monkeypatch)
    assert member.start(state_at(1), step=0) == 0
    assert "No space left on device; make room on its disk" in member.told[-1]
    journal = member.restorer.journal
    assert journal is not None
    assert journal.broken, "the next checkpoint begins one"


def _fill_disk(patch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    patch.setattr(JournalFile, "create", full)


def test_rounds_that_the_run_has_left_are_cut_off_on_a_full_disk(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal stayed as it was: after a later restore no state contradicted it, and its forgotten rounds were applied."""
    member.train(9)
    _fill_disk(monkeypatch)
    assert member.start(state_at(6), step=0) == 5
    assert "No space left on device; make room on its disk" in member.told[-1]
    assert "Its rounds after step 5, which the run has left, were cut off instead" in member.told[-1]
    assert member.start(state_at(13), step=0) == 5, "the caller asks the other members for what came since"
    assert member.masters.content == member.contents[5]
    journal = member.restorer.journal
    assert journal is not None
    assert not journal.broken
    assert {one.step for one in journal.pending} == {6}, "results of the next step may yet be accepted"
    member.train(7)
    assert member.start(state_at(13), step=0) == 7, "it goes on where there is room for a round"


def test_a_journal_of_the_generation_before_is_cut_off_and_stopped_on_a_full_disk(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    member.train(9)
    _fill_disk(monkeypatch)
    end = EpochEnd(step=7, digest=hashlib.sha256(member.contents[7]).digest())
    other = EpochEnd(step=8, digest=b"d" * 32)
    assert member.start(replace(state_at(8, generation=1), ends=(end,)), step=0) == 7
    journal = member.restorer.journal
    assert journal is not None
    assert journal.broken
    assert "continues without a journal" in member.told[-1]
    assert member.start(replace(state_at(9, generation=1), ends=(end, other)), step=0) == 7


def test_a_stored_model_of_a_signed_end_is_followed_by_the_journal_that_covers_it(member: Member) -> None:
    """Whose disk could save no checkpoint loads the run's stored model, and its journal leads on from there."""
    member.train(9)
    member.restorer.close()
    masters = Masters(step=6, content=member.contents[6])
    stored = replace(state_at(10).stored, step=6, digest=masters.full_digest())
    trainer: Any = masters
    assert member.restorer.restore(trainer, replace(state_at(10), stored=stored), step=None, use_journal=True) == 9
    assert masters.content == member.contents[9]


@pytest.mark.parametrize(("stored_step", "reached"), [(0, True), (6, True), (9, True), (10, False)])
def test_a_stored_model_is_worth_loading_if_the_journal_begins_there_or_passes_it(
    member: Member, stored_step: int, reached: bool
) -> None:
    """A journal begins with an older stored model where the disk had no room for a checkpoint since."""
    member.train(9)
    member.restorer.close()
    state = state_at(11)
    assert member.restorer.reaches_stored(replace(state, stored=replace(state.stored, step=stored_step))) is reached


def test_a_signed_digest_of_the_checkpoints_step_outweighs_the_journal(member: Member, tmp_path: Path) -> None:
    member.train(4)
    member.end_epoch()
    member.train(9)
    signed = replace(state_at(10), ends=(EpochEnd(step=4, digest=b"d" * 32),))
    assert _newest(member, tmp_path, signed) is None


class _Instance:
    """The run that a coordinator shows by mistake: of the same name, begun anew."""

    OTHER = b"o" * 32

    @classmethod
    def state_at(cls, step: int) -> CoordinatorState:
        return replace(state_at(step), instance=cls.OTHER)


def _joins_another_run(member: Member, *, last: int, checkpoints: bool) -> None:
    """The member takes part in a run that was begun anew by mistake, and leaves it."""
    assert member.start(_Instance.state_at(1), step=0) == 0
    member.train(last)
    if checkpoints:
        member.end_epoch(instance=_Instance.OTHER)
        member.train(last + 2)
        member.end_epoch(instance=_Instance.OTHER)


@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_journal_comes_back_with_the_run_it_belongs_to(member: Member, tmp_path: Path, checkpoints: bool) -> None:
    """The server was started with an empty folder by mistake, and members joined: 21 accepted rounds were lost."""
    member.train(4)
    member.end_epoch()
    member.train(9)
    right = {4: member.contents[4], 9: member.contents[9]}
    end = EpochEnd(step=4, digest=hashlib.sha256(right[4]).digest())
    truth = replace(state_at(10), ends=(end,))
    _joins_another_run(member, last=4, checkpoints=checkpoints)
    other = journal_path(tmp_path, RUN).read_bytes()

    member.contents |= right
    member.told.clear()
    assert _newest(member, tmp_path, truth) == 4
    assert member.start(truth, step=4) == 9
    assert member.masters.content == right[9]
    assert [path.read_bytes() for path in tmp_path.glob(f"{RUN}-journal.bin-abandoned*")] == [other], "and the other one is kept"
    assert any("belongs to this run: it was renamed back to" in said for said in member.told), member.told
    assert any("it belongs to another run; it was renamed to" in said for said in member.told)
    assert any("step4 belongs to the run's history" in said for said in member.told) == checkpoints

    assert member.start(truth, step=4) == 9, "and again"
    assert _newest(member, tmp_path, truth) == 4


def test_the_journal_before_the_last_checkpoint_comes_back_with_it(member: Member, tmp_path: Path) -> None:
    member.train(4)
    member.end_epoch()
    member.train(9)
    member.end_epoch()
    member.train(12)
    right = dict(member.contents)
    _joins_another_run(member, last=3, checkpoints=True)
    member.contents = right
    assert member.start(state_at(8), step=4) == 7, "the right state is older than the last checkpoint, too"
    assert member.masters.content == right[7]


def test_a_checkpoint_with_which_the_journal_begins_comes_back_though_nobody_signed_it(member: Member, tmp_path: Path) -> None:
    """A journal that was full begins with a checkpoint of mid-epoch."""
    member.train(4)
    member.end_epoch()
    member.train(6)
    place = checkpoint_path(tmp_path, RUN, 4)
    place.rename(place.with_name(f"{place.name}-abandoned"))
    assert _newest(member, tmp_path, state_at(7)) == 4
    assert member.start(state_at(7), step=4) == 6


def test_a_journal_of_a_history_that_the_run_has_left_does_not_come_back(member: Member, tmp_path: Path) -> None:
    """The coordinator went back, and the members trained other results of the same steps."""
    member.train(4)
    member.end_epoch()
    member.train(9)
    member.end_epoch()
    member.train(12)
    assert member.start(state_at(7), step=4) == 6
    assert list(tmp_path.glob("*-abandoned"))
    for known in (state_at(8), replace(state_at(13), ends=(EpochEnd(step=9, digest=b"x" * 32),))):
        member.told.clear()
        assert member.start(known, step=4) == 6
        assert not any("renamed back" in said for said in member.told), member.told


def test_a_journal_that_a_later_state_needs_comes_back(member: Member, tmp_path: Path) -> None:
    """A provider showed an older state for a while: the checkpoint of step 9 came back, and the rounds after it did not."""
    member.train(4)
    member.end_epoch()
    member.train(9)
    member.end_epoch()
    member.train(12)
    end = EpochEnd(step=9, digest=hashlib.sha256(member.contents[9]).digest())
    assert member.start(state_at(7), step=4) == 6
    member.told.clear()
    truth = replace(state_at(13), ends=(end,))
    assert _newest(member, tmp_path, truth) == 9
    assert member.start(truth, step=9) == 12
    assert member.masters.content == member.contents[12]
