"""Errors that nobody foresaw, in whatever a client works with: none of them ends it with a traceback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from failing_parts import Shop, problems
from party import ChainTrainer, Done, Party, trainers
from psyche_core.builtin.dummy_data import DummyData
from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.machine.machine import Timeouts
from psyche_core.client.runtime.worker import ENDS_THE_CLIENT
from psyche_core.errors import DataError, PayloadRejected, PluginFailed
from psyche_core.interfaces.data import Samples
from psyche_core.telemetry import events as telemetry
from psyche_core.types import BatchId, RunState
from stage import Member, Stage

HASTY = Timeouts(payload=0.5, peers=2.0, offers=0.5, answer=1.0, leaving=2.0)
STEPS = 6


def resyncs(told: Sequence[telemetry.Event]) -> list[telemetry.Resynced]:
    return [event for event in told if isinstance(event, telemetry.Resynced)]


# ------------------------------------------------------------------------------------------------ the machine's answers
@pytest.mark.parametrize("kind", [act.Apply, act.Digest, act.CloseEpoch])
def test_after_failed_work_on_its_masters_a_member_gets_the_others(kind: type) -> None:
    world = Stage(3)
    unlucky, failed = world.members[0], list[act.Work]()

    def fail(member: Member, work: act.Work) -> ev.WorkDone | None:
        due = member is unlucky and isinstance(work, kind) and not failed and getattr(work, "height", 1) == 1
        if not due:
            return None

        failed.append(work)
        member.corrupt(bit=1)
        return ev.WorkFailed(work, "the plugin broke down: KeyError: 'x'")

    world.breaks = fail
    world.run()
    assert failed
    assert any("the plugin broke down" in problem for problem in problems(unlucky.told))
    assert resyncs(unlucky.told)
    assert {member.masters for member in world.members} == {world.members[1].masters}
    assert all(member.stop is not None and member.stop.success for member in world.members)


@pytest.mark.parametrize("kind", [act.Apply, act.Digest, act.FetchModel])
def test_who_fails_for_ever_gives_up_with_the_reason(kind: type) -> None:
    world = Stage(3, total_steps=60, rounds_per_epoch=60)
    broken, attempts = world.members[0], []
    broken.liar = True

    def fail(member: Member, work: act.Work) -> ev.WorkDone | None:
        if member is broken and isinstance(work, act.FetchModel):
            attempts.append(work)
        first = kind is act.FetchModel and isinstance(work, act.Apply)
        if member is broken and (isinstance(work, kind) or first):
            return ev.WorkFailed(work, "the plugin broke down: KeyError: 'x'")
        return None

    world.breaks = fail
    world.run(limit=2000.0)
    assert broken.stop is not None
    assert not broken.stop.success
    assert "the plugin broke down" in broken.stop.reason
    assert 0 < len(attempts) <= 6
    assert all(member.stop is not None and member.stop.success for member in world.members[1:])


def test_a_share_whose_training_failed_comes_again_and_an_offer_that_failed_is_not_made() -> None:
    world = Stage(3)
    unlucky = world.members[0]
    failed: list[act.Work] = []

    def fail(member: Member, work: act.Work) -> ev.WorkDone | None:
        if member is unlucky and isinstance(work, act.Train) and work.step == 2:
            failed.append(work)
            return ev.WorkFailed(work, "step 2 was not trained: KeyError: 'x'")
        return None

    world.breaks = fail
    world.run()
    assert failed
    assert "step 2 was not trained: KeyError: 'x'" in problems(unlucky.told)
    assert not resyncs(unlucky.told)
    assert all(member.stop is not None and member.stop.success for member in world.members)


def test_doubtful_masters_are_never_taken_for_the_checkpoint_s() -> None:
    """The only member's epoch end fails: it says that it has no model to go on with, and the run waits for its owner."""
    world = Stage(1, min_clients=1, total_steps=6)
    member = world.members[0]

    def fail(_: Member, work: act.Work) -> ev.WorkDone | None:
        if isinstance(work, act.CloseEpoch) and work.epoch == 0:
            return ev.WorkFailed(work, "the plugin broke down: KeyError: 'x'")
        return None

    world.breaks = fail
    world.run(until=lambda: member.stop is not None or world.state.model_lost)
    assert member.stop is not None or world.state.progress.step == 4


# ------------------------------------------------------------------------------------------------ the real shell
class Faulty(ChainTrainer):
    """Raises an error of its own making, once, in a method of that name."""

    def __init__(self, name: str, method: str, *, error: Callable[[], Exception] = lambda: KeyError("lost")) -> None:
        super().__init__(name)
        self.raised = threading.Event()
        original = getattr(self, method)
        calls: list[object] = []

        def fail(*arguments: object, **named: object) -> object:
            calls.append(arguments)
            if len(calls) >= 3 and not self.raised.is_set():
                self.raised.set()
                self.weights = b"half of it" + bytes(22) if method == "apply" else self.weights
                raise error()
            return original(*arguments, **named)

        setattr(self, method, fail)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["train", "apply", "full_digest", "check"])
async def test_an_error_of_the_trainer_s_own_making_ends_nobody(method: str) -> None:
    faulty = Faulty("faulty", method)
    party = Party([*trainers(2), faulty], total_steps=STEPS, rounds_per_epoch=STEPS)
    party.timeouts = HASTY
    await party.play()

    assert faulty.raised.is_set()
    if method == "check":  # of our own result or of another's, as it happens
        assert not party.failures or "its own check fails with KeyError" in str(party.failures[2])
    else:
        assert party.failures == {}
        assert any("KeyError: 'lost'" in problem for problem in problems(party.events[2]))
    if method in ("apply", "full_digest"):
        assert resyncs(party.events[2])
        assert {trainer.weights for trainer in party.trainers} == {party.trainers[0].weights}
    assert party.coordinator.state.run_state is RunState.Finished


class ChecksBadly(ChainTrainer):
    """A plugin whose check has a mistake that other members' bytes bring up."""

    def check(self, payload: bytes) -> None:
        if payload.startswith(b"good" + self.name.encode()):
            return
        message = "table"
        raise KeyError(message)


@pytest.mark.slow
async def test_a_check_that_fails_is_no_verdict() -> None:
    """It attests to nothing and leaves nothing out: what the others accept, it has from them."""
    party = Party([*trainers(2), ChecksBadly("badly")], total_steps=4, rounds_per_epoch=4)
    party.timeouts = HASTY
    with anyio.fail_after(100):
        await party.play()

    told = problems(party.events[2])
    assert any("a peer's result could not be checked: KeyError: 'table'" in problem for problem in told)
    assert not any("was refused" in problem for problem in told)
    honest = party.trainers[:2]
    assert honest[0].weights == honest[1].weights
    assert [step for step, _ in honest[0].applied] == [1, 2, 3, 4]
    assert party.coordinator.state.run_state is RunState.Finished


class OwnWorst(ChainTrainer):
    """Makes results that its own check refuses."""

    def train(self, step: int, samples: Samples) -> Done:
        return Done(4.0, samples.count * samples.sequence_length, 0.01, b"garbage")


class TooLong(ChainTrainer):
    """Makes results that are longer than it says."""

    def train(self, step: int, samples: Samples) -> Done:
        return Done(4.0, samples.count * samples.sequence_length, 0.01, b"good" + bytes(self.max_payload_bytes))


class NoBytes(ChainTrainer):
    """Makes results of another type."""

    def train(self, step: int, samples: Samples) -> Done:
        return Done(4.0, samples.count * samples.sequence_length, 0.01, bytearray(b"good"))  # type: ignore[arg-type]


class CannotCheckItself(ChainTrainer):
    """Its check fails on its own results."""

    def check(self, payload: bytes) -> None:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("trainer", "why"),
    [
        (OwnWorst("own"), "made a result for step 1 that its own check refuses (does not fit)"),
        (TooLong("long"), "made a result of 68 bytes for step 1, its own limit is 64"),
        (NoBytes("none"), "gave a bytearray as the result of step 1, expected bytes"),
        (CannotCheckItself("self"), "made a result for step 1 on which its own check fails with ZeroDivisionError"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_member_whose_own_result_is_invalid_stops_and_names_its_optimizer(trainer: ChainTrainer, why: str) -> None:
    """Its shares would be trained again and again: with one such member a testnet stayed at step 0 for ever."""
    party = Party([trainer], min_clients=1, total_steps=2, rounds_per_epoch=2)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(party.coordinator.run)
            await party.member(0)
            tasks.cancel_scope.cancel()

    assert isinstance(party.failures[0], PluginFailed)
    assert str(party.failures[0]) == f"the optimizer {why}; no other member could use it, so this client stops"
    assert party.ended(0) == telemetry.Ended(str(party.failures[0]), success=False)


class CannotSave(ChainTrainer):
    """Fails in what an epoch's end brings beside the digest."""

    def save(self, directory: Path) -> None:
        message = "no tensors"
        raise RuntimeError(message)

    def evaluate(self, samples: Samples) -> float:
        raise AttributeError(self.name)


async def test_an_epoch_ends_also_where_validation_and_saving_fail(tmp_path: Path) -> None:
    shop = Shop(CannotSave("one"), DummyData(sequence_length=16), checkpoints=tmp_path)
    closed = await (await shop.load()).do(act.CloseEpoch(0, 3))
    assert isinstance(closed, ev.EpochClosed)
    assert not closed.saved
    assert problems(shop.told) == [
        "the model after step 3 was not validated: AttributeError: one",
        "the checkpoint of step 3 was not saved: RuntimeError: no tensors",
    ]


async def test_cancellation_is_no_failure_of_the_work() -> None:
    started = threading.Event()
    release = threading.Event()

    class Slow(ChainTrainer):
        def train(self, step: int, samples: Samples) -> Done:
            started.set()
            release.wait(20)
            return super().train(step, samples)

    shop = Shop(Slow("one"), DummyData(sequence_length=16))
    worker = await shop.load()
    answers: list[ev.Event] = []

    async def train() -> None:
        answers.append(await worker.do(act.Train(1, 2, (BatchId(0, 1),), 1)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(train)
        await anyio.to_thread.run_sync(started.wait, 20)
        tasks.cancel_scope.cancel()
        release.set()
    assert answers == []


def test_what_ends_a_client_is_of_the_errors_raised_on_purpose() -> None:
    assert not any(issubclass(error, ENDS_THE_CLIENT) for error in (KeyError, PayloadRejected, DataError))
