"""The checkpoint that a client saves when it leaves: whole, in bounded time, and nothing that is known to be wrong."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from psyche_core.client.machine.actions import Apply, CloseEpoch, FetchModel
from psyche_core.client.runtime.checkpointing import Checkpointer
from psyche_core.client.runtime.resources import Resources
from psyche_core.client.runtime.worker import describe_exception
from psyche_core.errors import ModelError
from psyche_core.storage.checkpoint_names import checkpoint_path, checkpoints
from psyche_core.telemetry import events as telemetry
from psyche_core.training.checkpoints.checkpoint import keep_last
from psyche_core.training.checkpoints.journal.journal import LEAST_LIMIT, Journal
from psyche_core.training.checkpoints.manifest import decision_in, read_manifest, verify
from psyche_core.types import Decision

RUN_ID, INSTANCE = "a-run", bytes(32)


def digest_of(step: int) -> bytes:
    return hashlib.sha256(b"masters after %d" % step).digest()


@dataclass
class Masters:
    """A trainer as far as a checkpointer needs one. step: the last one applied; hold: saving waits for it."""

    step: int = 0
    hold: threading.Event | None = None
    refuse: bool = False
    saved: list[int] = field(default_factory=list)

    def full_digest(self) -> bytes:
        return digest_of(self.step)

    def save(self, directory: Path) -> None:
        if self.hold is not None:
            self.hold.wait(20)
        if self.refuse:
            try:
                raise OSError(28, "No space left on device", "/models/tokenizer.json", None, f"{directory}/tokenizer.json")
            except OSError as error:
                raise ModelError(f"cannot save the model to {directory}: {error}") from error  # as models of plugins do
        directory.mkdir()
        (directory / "config.json").write_text(f'{{"step": {self.step}}}')
        self.saved.append(self.step)

    def save_private(self, path: Path) -> None:
        """There is none."""


class Member:
    """A checkpointer with a journal in a folder. published: folder for its finished journals, None for none."""

    def __init__(self, folder: Path, *, published: Path | None = None) -> None:
        self.folder = folder
        self.told: list[telemetry.Event] = []
        self.masters = Masters()
        self.journal = Journal.open(folder, RUN_ID, instance=INSTANCE, limit_bytes=LEAST_LIMIT)
        self.journal.begin(0, digest_of(0), 0)
        self.checkpointer = Checkpointer(self.told.append, explain=describe_exception)
        trainer: Any = self.masters
        data: Any = None
        self.checkpointer.use(
            Resources(
                trainer, data, checkpoints=folder, keep_checkpoints=self._keep_two, journal=self.journal, published=published
            ),
            run_id=RUN_ID,
            instance=INSTANCE,
        )

    def _keep_two(self, directory: Path) -> None:
        keep_last(directory.parent, RUN_ID, 2)

    async def apply(self, *steps: int) -> None:
        for step in steps:
            self.checkpointer.masters_change()
            self.masters.step = step
            decision = Decision(step, epoch=1, height=step + 7, statements=b"s" * 32, history=b"h" * 32)
            work = Apply(step + 7, step, (), False, epoch=1, decision=decision, data_index=12 * step)
            await self.checkpointer.applied(work, learning_rate=0.1)

    async def end_epoch(self) -> None:
        step = self.masters.step
        await self.checkpointer.close_epoch(CloseEpoch(0, step, 12 * step), digest_of(step))

    def steps(self) -> list[int]:
        """Of the checkpoints in the folder, each whole."""
        found = []
        for path in checkpoints(self.folder, RUN_ID):
            manifest = read_manifest(path)
            assert manifest is not None
            verify(path, manifest)
            assert manifest.digest == digest_of(manifest.step).hex()
            found.append(manifest.step)
        return found

    def decision_after(self, step: int) -> Decision | None:
        """What the checkpoint of a step keeps."""
        manifest = read_manifest(checkpoint_path(self.folder, RUN_ID, step))
        assert manifest is not None
        return decision_in(manifest)

    def problems(self) -> list[str]:
        return [event.message for event in self.told if isinstance(event, telemetry.Problem)]

    def mended(self) -> list[str]:
        return [event.message for event in self.told if isinstance(event, telemetry.Mended)]


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    made = Member(tmp_path)
    yield made
    made.journal.close()


async def test_who_leaves_saves_what_was_applied_since_the_last_checkpoint_and_says_so(member: Member) -> None:
    await member.apply(1, 2, 3)
    await member.checkpointer.leave()
    assert member.steps() == [3]
    assert member.checkpointer.saved_of(3) == checkpoint_path(member.folder, RUN_ID, 3)
    assert member.checkpointer.saved_of(2) is None
    told = [event for event in member.told if isinstance(event, telemetry.CheckpointSaved)]
    assert [event.step for event in told] == [3]
    manifest = read_manifest(checkpoints(member.folder, RUN_ID)[-1])
    assert manifest is not None
    assert (manifest.epoch, manifest.data_index, manifest.generation) == (1, 36, 0)


async def test_the_journal_still_leads_to_every_step_before(member: Member) -> None:
    """A coordinator restored from an older state may want any of them."""
    await member.apply(1, 2, 3)
    await member.checkpointer.leave()
    recovered = member.journal.read()
    assert recovered is not None
    assert recovered.header.base_step == 0
    assert [each.step for each in recovered.rounds] == [1, 2, 3]


async def test_checkpoints_of_earlier_leavings_make_room_and_those_of_epochs_stay(member: Member) -> None:
    await member.apply(1, 2)
    await member.end_epoch()
    await member.apply(3)
    await member.checkpointer.leave()
    await member.apply(4, 5)
    await member.checkpointer.leave()
    assert member.steps() == [2, 5]


async def test_a_journal_that_is_always_full_pushes_no_epochs_end_out(member: Member) -> None:
    for end in (2, 4):
        await member.apply(end - 1, end)
        await member.end_epoch()
    member.journal.set_limit(1)
    await member.apply(5, 6, 7)
    assert member.steps() == [2, 4, 6, 7], "an early one after each step, of which those are left with which a journal begins"
    await member.apply(8)
    assert member.steps() == [2, 4, 7, 8]
    await member.end_epoch()
    assert member.steps() == [4, 7, 8], "of an epoch's end now"
    member.journal.set_limit(LEAST_LIMIT)
    await member.apply(9)
    await member.checkpointer.leave()
    await member.apply(10)
    await member.end_epoch()
    assert member.steps() == [8, 10]


@pytest.mark.parametrize("epoch_end", [True, False])
async def test_masters_of_others_count_where_the_run_knows_them_as_an_epochs_end(member: Member, epoch_end: bool) -> None:
    for step in (3, 6):
        member.masters.step = step
        await member.checkpointer.fetched(FetchModel(step, bytes(32), 1, (), 0, epoch=1, epoch_end=epoch_end))
    assert member.steps() == [3, 6], "the journal before the last one begins with step 3"
    await member.apply(7)
    await member.checkpointer.leave()
    member.journal.set_limit(1)
    await member.apply(8)
    assert member.steps() == ([3, 6, 8] if epoch_end else [6, 8])


async def test_each_checkpoint_says_what_decided_its_last_step(member: Member) -> None:
    """A coordinator that is restored from an older state may decide that step again."""
    decision = Decision(step=3, epoch=1, height=2, statements=b"s" * 32)
    member.masters.step = 3
    await member.checkpointer.fetched(FetchModel(3, bytes(32), 1, (), 0, epoch=2, decision=decision))
    assert member.decision_after(3) == decision
    await member.apply(4)
    await member.checkpointer.leave()
    assert member.decision_after(4) == Decision(4, epoch=1, height=11, statements=b"s" * 32, history=b"h" * 32)


async def test_an_epochs_end_that_could_only_be_saved_on_leaving_counts_as_one(member: Member) -> None:
    await member.apply(1)
    member.masters.refuse = True
    await member.end_epoch()
    member.masters.refuse = False
    await member.checkpointer.leave()
    member.journal.set_limit(1)
    await member.apply(2)
    assert member.steps() == [1, 2]


async def test_where_nothing_is_newer_than_the_last_checkpoint_nothing_is_saved(member: Member) -> None:
    await member.checkpointer.leave()
    await member.apply(1, 2)
    await member.end_epoch()
    member.told.clear()
    await member.checkpointer.leave()
    assert (member.masters.saved, member.told) == ([2], [])


async def test_masters_that_work_was_cut_off_in_are_not_saved(member: Member) -> None:
    await member.apply(1, 2)
    member.checkpointer.masters_change()
    await member.checkpointer.leave()
    assert member.steps() == []


async def test_a_round_that_the_journal_missed_makes_it_begin_anew(member: Member) -> None:
    await member.apply(1)
    with anyio.CancelScope() as scope:  # we are cancelled between applying and writing it down
        scope.cancel()
        await member.apply(2)
    assert member.journal.last_step == 1
    await member.checkpointer.leave()
    assert member.steps() == [2]
    assert member.journal.header is not None
    assert (member.journal.header.base_step, member.journal.header.base_digest) == (2, digest_of(2))


async def test_a_disk_that_is_too_slow_keeps_nobody_and_costs_that_checkpoint_only(member: Member) -> None:
    await member.apply(1, 2)
    member.masters.hold = threading.Event()
    with anyio.fail_after(10):
        await member.checkpointer.leave(seconds=0.2)
    assert member.steps() == []
    said = "no checkpoint of step 2 was saved on leaving: it takes longer than 0.2 s; the next start replays the journal instead"
    assert member.problems() == [said]
    recovered = member.journal.read()
    assert recovered is not None
    assert recovered.last_step == 2
    member.masters.refuse = True
    member.masters.hold.set()


async def test_a_disk_that_refuses_is_told_in_one_sentence(member: Member) -> None:
    await member.apply(1)
    member.masters.refuse = True
    await member.checkpointer.leave()
    (problem,) = member.problems()
    assert problem.startswith("no checkpoint of step 1 was saved on leaving: cannot save the model to ")
    assert problem.endswith("No space left on device; make room on its disk; the next start replays the journal instead")


async def test_a_full_disk_is_told_once_not_each_round_and_so_is_its_end(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding to the journal goes well in memory, and was taken for the disk's recovery: each round told the same again."""
    full = True
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        if full:
            raise OSError(28, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    for step in range(1, 8):
        await member.apply(step)
        await member.checkpointer.sync()
    (problem,) = member.problems()
    assert problem.endswith(
        "was not written: No space left on device; make room on its disk, until then the rounds after step 0 are only in memory"
    )

    full = False
    for step in range(8, 12):
        await member.apply(step)
        await member.checkpointer.sync()
    assert member.mended() == ["the journal is written to the disk again"]
    assert len(member.problems()) == 1


async def test_checkpoints_that_the_disk_refuses_are_told_at_each_epoch_s_end_and_so_is_the_first_that_it_takes(
    member: Member,
) -> None:
    member.masters.refuse = True
    for step in (1, 2, 3):
        await member.apply(step)
        await member.end_epoch()
    for step, problem in zip((1, 2, 3), member.problems(), strict=True):
        place = checkpoint_path(member.folder, RUN_ID, step)
        assert problem == (
            f"the checkpoint of step {step} was not saved: cannot save the model to {place}: No space left on device; "
            "make room on its disk"
        )
    member.masters.refuse = False
    for step in (4, 5):
        await member.apply(step)
        await member.end_epoch()
    assert member.mended() == ["checkpoints are saved again"]
    assert member.steps() == [4, 5]
    assert len(member.problems()) == 3


@pytest.mark.parametrize("saved", [False, True], ids=["nothing", "a checkpoint"])
async def test_who_leaves_a_full_disk_is_told_what_is_on_it(tmp_path: Path, saved: bool) -> None:
    """The next start was said to replay a journal that the disk had refused, too."""
    member = Member(tmp_path)
    try:
        if saved:
            await member.apply(1)
            await member.end_epoch()
        member.journal.close()  # as where it could never be begun
        member.journal.path.unlink()
        member.masters.refuse = True
        await member.apply(2 if saved else 1)
        member.told.clear()
        await member.checkpointer.leave()
    finally:
        member.journal.close()
    there = "the next start goes on from the checkpoint a-run-step1"
    nothing = "nothing of this run is on this disk; the next start gets the model from the other members"
    assert member.problems()[-1].endswith(f"No space left on device; make room on its disk; {there if saved else nothing}")


# ------------------------------------------------------------------------------------------------ published journals


def published_steps(member: Member) -> list[tuple[int, int]]:
    return [(event.first_step, event.last_step) for event in member.told if isinstance(event, telemetry.JournalPublished)]


@pytest.fixture
def publishing(tmp_path: Path) -> Iterator[Member]:
    made = Member(tmp_path / "saved", published=tmp_path / "journals")
    yield made
    made.journal.close()


async def until_published(member: Member, count: int) -> None:
    with anyio.fail_after(20):
        while len(published_steps(member)) < count:
            await anyio.sleep(0.01)


async def test_each_journal_is_published_beside_the_work_when_the_next_one_starts(publishing: Member, tmp_path: Path) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(publishing.checkpointer.publish_journals)
        await publishing.apply(1, 2)
        await publishing.end_epoch()
        await until_published(publishing, 1)
        await publishing.apply(3, 4, 5)
        await publishing.end_epoch()
        await until_published(publishing, 2)
        tasks.cancel_scope.cancel()
    assert published_steps(publishing) == [(1, 2), (3, 5)]
    event = next(event for event in publishing.told if isinstance(event, telemetry.JournalPublished))
    path = tmp_path / "journals" / "a-run-0000000000000000-g0-steps1-2-68686868.journal"
    assert (event.path, event.size) == (str(path), path.stat().st_size)
    assert publishing.problems() == []


async def test_who_ends_in_order_publishes_the_journal_as_it_is_and_who_goes_on_the_longer_one(publishing: Member) -> None:
    await publishing.apply(1, 2)
    await publishing.checkpointer.finish_publishing()
    assert published_steps(publishing) == [], "who starts over does not know whether these rounds are of the run's history"
    await publishing.checkpointer.finish_publishing(present=True)
    await publishing.checkpointer.finish_publishing(present=True)
    assert published_steps(publishing) == [(1, 2)], "once"
    await publishing.apply(3)
    await publishing.end_epoch()
    await publishing.checkpointer.finish_publishing(present=True)
    assert published_steps(publishing) == [(1, 2), (1, 3)]


async def test_what_a_killed_process_could_not_publish_is_published_by_the_next_one(member: Member, tmp_path: Path) -> None:
    await member.apply(1, 2)
    await member.end_epoch()
    await member.apply(3)
    await member.checkpointer.sync()
    member.journal.close()
    again = Member(tmp_path, published=tmp_path / "journals")
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(again.checkpointer.publish_journals)
            await until_published(again, 1)
            tasks.cancel_scope.cancel()
    finally:
        again.journal.close()
    assert len(list((tmp_path / "journals").iterdir())) == 1


async def test_a_folder_that_cannot_be_written_is_told_once_and_costs_nothing_else(publishing: Member, tmp_path: Path) -> None:
    (tmp_path / "journals").touch()
    for end in (1, 2, 3):
        await publishing.apply(end)
        await publishing.end_epoch()
        await publishing.checkpointer.finish_publishing()
    (problem,) = publishing.problems()
    assert problem.startswith(f"a journal was not published in {tmp_path / 'journals'}: ")
    assert publishing.steps() == [2, 3]


async def test_nothing_is_published_without_a_folder_for_it(member: Member) -> None:
    await member.apply(1)
    await member.end_epoch()
    await member.checkpointer.finish_publishing(present=True)
    assert published_steps(member) == []
