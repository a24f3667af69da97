"""A coordinator restored from a state of seconds ago finds every step since the base of the journal before the present one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from psyche_core.client.machine.actions import Apply, CloseEpoch, FetchModel
from psyche_core.client.machine.epoch import masters_due
from psyche_core.client.runtime.checkpointing import Checkpointer
from psyche_core.client.runtime.journal_history import signed_ends
from psyche_core.client.runtime.resources import Resources
from psyche_core.client.runtime.restoring import Restorer
from psyche_core.client.runtime.worker import describe_exception
from psyche_core.errors import ModelError
from psyche_core.telemetry import events as telemetry
from psyche_core.training.checkpoints.checkpoint import keep_last
from psyche_core.training.checkpoints.initial_model import belongs, newest_own
from psyche_core.training.checkpoints.journal.journal import LEAST_LIMIT, Journal
from psyche_core.types import Decision
from tests.unit.client.restoring_cases import INSTANCE, RUN, Masters, state_at
from tests.unit.training.journal_cases import applied, payload_of, result


class SavedMasters(Masters):
    """Masters that are saved as one small file."""

    def save(self, directory: Path) -> None:
        directory.mkdir()
        (directory / "config.json").write_bytes(self.content)

    def save_private(self, path: Path) -> None:
        """There is none."""


class Member:
    """Trains with a real checkpointer and a real journal. keep: number of epoch ends kept."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder, self.told = folder, list[telemetry.Event]()
        self.masters = SavedMasters()
        self.contents = {0: self.masters.content}
        self.journal = Journal.open(folder, RUN, instance=INSTANCE, limit_bytes=LEAST_LIMIT)
        self.journal.begin(0, self.masters.full_digest(), 0)
        self.checkpointer = Checkpointer(self.told.append, explain=describe_exception)
        trainer: Any = self.masters
        data: Any = None

        def keeper(directory: Path) -> None:
            keep_last(directory.parent, RUN, keep)

        resources = Resources(trainer, data, checkpoints=folder, keep_checkpoints=keeper, journal=self.journal)
        self.checkpointer.use(resources, run_id=RUN, instance=INSTANCE)

    def _apply(self, step: int) -> None:
        self.masters.apply(step, [payload_of(step, slot) for slot in range(4)], own_accepted=False)
        self.contents[step] = self.masters.content

    async def train(self, last: int, *, full_at: Sequence[int] = ()) -> None:
        """Apply the rounds up to step `last`. full_at: steps after which the journal is full."""
        for step in range(self.masters.step + 1, last + 1):
            results = [result(step, slot) for slot in range(4)]
            for one in results if not self.journal.broken else ():
                self.journal.add_result(one, payload_of(step, one.slot))
            self._apply(step)
            record = applied(step, *results)
            hashes, commitments = tuple(one for _, one in record.results), tuple(one for one, _ in record.results)
            decision = Decision(step, epoch=1, height=record.height, statements=record.statements, history=record.history)
            work = Apply(record.height, step, hashes, False, commitments=commitments, decision=decision, epoch=1)
            self.journal.set_limit(1 if step in full_at else LEAST_LIMIT)
            await self.checkpointer.applied(work, learning_rate=0.1)
        self.journal.sync()

    async def fetch(self, step: int) -> None:
        """Get the masters after a step from others, in the middle of an epoch."""
        while self.masters.step < step:
            self._apply(self.masters.step + 1)
        await self.checkpointer.fetched(FetchModel(step, b"", 0, (), 0, epoch=1, data_index=0, epoch_end=False))

    async def end_epoch(self) -> None:
        await self.checkpointer.close_epoch(CloseEpoch(1, self.masters.step, 0), self.masters.full_digest())

    def restored(self, step: int) -> int | None:
        """Start again while the coordinator is at this step, as a client does; the last step in the masters then."""
        self.journal.close()
        state, said = state_at(step + 1), list[str]()
        restorer = Restorer(self.folder, None, said.append)
        try:
            restorer.look_back(state)
            trusted = belongs(INSTANCE, 0, signed_ends(state), journal_base=restorer.base_of_history(state))
            own = newest_own(self.folder, RUN, at_most=masters_due(state), trusted=trusted, report=said.append)
            first = self.contents[0] if own is None else (own.folder / "config.json").read_bytes()
            begun = None if own is None else own.step
            masters: Any = Masters(step=begun or 0, content=first)
            at = restorer.restore(masters, state, step=begun, use_journal=True)
        finally:
            restorer.close()
        assert at is None or masters.content == self.contents[at]
        return at


@pytest.fixture(params=[1, 3])
def member(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Member]:
    made = Member(tmp_path, keep=request.param)
    yield made
    made.journal.close()


@pytest.mark.parametrize("back_to", [6, 7, 9])
async def test_an_early_checkpoint_stays_over_the_epochs_end(member: Member, back_to: int) -> None:
    """It was deleted with the next checkpoint: training went back, even to step 1 in the run's first epoch."""
    await member.train(8, full_at=[6])
    await member.end_epoch()
    await member.train(10)
    assert member.restored(back_to) == back_to


@pytest.mark.parametrize("back_to", [5, 7])
async def test_a_model_of_others_stays_over_the_epochs_end(member: Member, back_to: int) -> None:
    await member.fetch(5)
    await member.train(8)
    await member.end_epoch()
    await member.train(10)
    assert member.restored(back_to) == back_to


@pytest.mark.parametrize("back_to", [12, 15, 17])
async def test_journals_that_are_full_several_times_an_epoch_lead_to_all_their_steps(member: Member, back_to: int) -> None:
    await member.train(8, full_at=[4])
    await member.end_epoch()
    await member.train(18, full_at=[12, 16])
    assert member.restored(back_to) == back_to


@pytest.mark.parametrize("back_to", [4, 6, 8])
async def test_a_journal_that_is_full_at_the_epochs_end_keeps_the_one_before_it(member: Member, back_to: int) -> None:
    """Two checkpoints of one step: the journal between them has no rounds, and took the place of the one before."""
    await member.train(8, full_at=[4, 8])
    await member.end_epoch()
    await member.train(10)
    assert member.restored(back_to) == back_to


@pytest.mark.parametrize("refuses", ["the checkpoint", "the journal"])
async def test_no_round_follows_a_model_of_others_that_could_not_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: str
) -> None:
    """The journal led to another model of that step, and took the rounds after it: the next start applied them to that one."""

    def full(*_: object, **__: object) -> None:
        raise ModelError("no space")

    member = Member(tmp_path, keep=3)
    await member.train(4)
    ours = member.contents[4]
    member.masters.content = b"the others' masters after step 4"
    with monkeypatch.context() as patch:
        refusing: tuple[type, str] = (SavedMasters, "save") if refuses == "the checkpoint" else (Journal, "begin")
        patch.setattr(refusing[0], refusing[1], full)
        await member.fetch(4)
        assert member.journal.broken
        await member.train(6)
    member.contents[4] = ours
    assert member.restored(6) == (4 if refuses == "the checkpoint" else 6)


async def test_of_one_kept_epochs_end_the_journal_before_it_still_begins_with_another(tmp_path: Path) -> None:
    member = Member(tmp_path, keep=1)
    for end in (4, 8, 12):
        await member.train(end)
        await member.end_epoch()
    assert sorted(path.name for path in tmp_path.glob("*-step*")) == [f"{RUN}-step12", f"{RUN}-step8"]
    assert member.restored(10) == 10


async def test_bases_of_journals_that_are_no_more_are_deleted(tmp_path: Path) -> None:
    member = Member(tmp_path, keep=1)
    await member.train(13, full_at=[3, 5, 7, 9, 11])
    assert sorted(path.name for path in tmp_path.glob("*-step*")) == [f"{RUN}-step11", f"{RUN}-step9"]
    await member.end_epoch()
    assert sorted(path.name for path in tmp_path.glob("*-step*")) == [f"{RUN}-step11", f"{RUN}-step13"]
    member.journal.close()
