"""Data that breaks its contract, cannot be reached or was cancelled: no training on it, and no traceback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import anyio
import anyio.to_thread
import pytest

from failing_parts import Shop, problems
from party import ChainTrainer, Done
from psyche_core.builtin.dummy_data import DummyData
from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.errors import DataError, NothingForUs, PluginFailed
from psyche_core.interfaces.data import Samples
from psyche_core.telemetry import events as telemetry
from psyche_core.types import BatchId
from stage import Stage


class Wrapped(DummyData):
    """Data whose reads may be changed on their way."""

    def __init__(self, change: Callable[[Samples], object], *, announced: int = 16, sequences: Any = 100) -> None:
        super().__init__(sequence_length=16)
        self.change, self.announced, self.sequences = change, announced, sequences

    @property
    def num_sequences(self) -> int:
        return self.sequences  # type: ignore[no-any-return]  # that is what is tested

    @property
    def sequence_length(self) -> int:
        return self.announced

    async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
        count = sum(map(len, batches))
        return self.change(Samples(bytes(32 * count), count, 16, 2))  # type: ignore[return-value]  # that is what is tested


def fails(_: Samples) -> Samples:
    raise IndexError(16)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (Wrapped(lambda read: Samples(read.tokens[32:], read.count - 1, 16, 2)), "gave 1 sequences where 2 were asked for"),
        (Wrapped(lambda read: Samples(bytes(64), 2, 8, 4)), "gave sequences of 8 tokens, those of this run have 16"),
        (Wrapped(lambda read: read, announced=8), "says that its sequences have 8 tokens, those of this run have 16"),
        (
            Wrapped(lambda read: replace(read, tokens=cast("Any", bytearray(read.tokens)))),
            "gave tokens as bytearray, expected bytes",
        ),
        (Wrapped(lambda read: read, sequences=0), "says that its num_sequences is 0, expected an int of at least 1"),
        (Wrapped(lambda read: read, sequences=-3), "says that its num_sequences is -3, expected an int of at least 1"),
        (Wrapped(lambda read: read, sequences=2.5), "says that its num_sequences is a float, expected an int of at least 1"),
        (Wrapped(lambda read: read, sequences=True), "says that its num_sequences is a bool, expected an int of at least 1"),
        (Wrapped(lambda read: read, sequences=None), "says that its num_sequences is a NoneType, expected an int of at least 1"),
        (Wrapped(lambda read: read.tokens), "gave a bytes where Samples are expected"),
        (Wrapped(fails), "failed with IndexError: 16"),
        (
            Wrapped(lambda read: replace(read, tokens=read.tokens[:-2] + b"\x00\x01")),
            "gave the token id 256, which is outside the model's vocabulary of 256",
        ),
        (
            Wrapped(lambda read: replace(read, labels=bytes(124) + b"\xfe\xff\xff\xff")),
            "gave the label -2, which is outside the model's vocabulary of 256",
        ),
    ],
    ids=[
        "short",
        "other length",
        "announced",
        "other type",
        "none",
        "negative",
        "float",
        "bool",
        "nothing",
        "no samples",
        "raises",
        "token id",
        "label",
    ],
)
async def test_data_that_breaks_its_contract_is_not_trained_on(data: Wrapped, why: str, ahead: bool) -> None:
    shop = Shop(ChainTrainer("one"), data)
    worker, share = await shop.load(), (BatchId(0, 1),)
    if ahead:
        await worker.prefetch(share)
    failed = await worker.do(act.Train(1, 2, share, 1))
    assert isinstance(failed, ev.TrainFailed)
    assert failed.reason.startswith(f"step 2 was not trained: the data provider Short (short-data 2.0) {why}")


class Unreliable(ChainTrainer):
    """Fails in both kinds of work as long as it is told to."""

    fails = True

    def train(self, step: int, samples: Samples) -> Done:
        if self.fails:
            raise KeyError(step)
        return super().train(step, samples)

    def apply(self, step: int, payloads: Sequence[bytes], **given: Any) -> None:
        if self.fails:
            raise KeyError(step)
        super().apply(step, payloads, **given)


@pytest.mark.parametrize(
    ("work", "sentence"),
    [
        (act.Train(1, 2, (BatchId(0, 1),), 1), "step 2 was not trained: KeyError: 2; 5 shares in a row have failed"),
        (
            act.Apply(1, 2, (), own_accepted=False),
            "the results of step 2 were not applied: KeyError: 2; 5 steps in a row have failed",
        ),
    ],
    ids=["train", "apply"],
)
async def test_a_plugin_that_fails_again_and_again_ends_its_client(work: act.Work, sentence: str) -> None:
    trainer = Unreliable("one")
    worker = await Shop(trainer, DummyData(sequence_length=16)).load()
    for begun in (True, False):
        for _ in range(4):
            assert isinstance(await worker.do(work), ev.WorkFailed), "it may mend itself"
        assert (worker.failures.training_fails, worker.failures.apply_failure is not None) == (
            isinstance(work, act.Train),
            isinstance(work, act.Apply),
        )
        if begun:
            trainer.fails = False
            assert isinstance(await worker.do(work), ev.Trained | ev.Applied)
            assert (worker.failures.training_fails, worker.failures.apply_failure) == (False, None)
            trainer.fails = True
    with pytest.raises(PluginFailed) as stopped:
        await worker.do(work)
    then = "so this client stops: mend the plugin or its settings, then start the client again"
    assert stopped.value.sentence == f"{sentence}, {then}"


async def test_data_that_cannot_be_reached_ends_no_client() -> None:
    """A server of data that is away for long comes back, and a provider that breaks its contract does not."""

    class Away(DummyData):
        async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
            message = "no route to the data"
            raise DataError(message)

    worker, work = await Shop(ChainTrainer("one"), Away(sequence_length=16)).load(), act.Train(1, 2, (BatchId(0, 1),), 1)
    for _ in range(12):
        assert isinstance(await worker.do(work), ev.TrainFailed)
    assert worker.failures.training_fails, "which is why it is dropped"

    worker = await Shop(ChainTrainer("one"), Wrapped(fails)).load()
    for _ in range(4):
        assert isinstance(await worker.do(work), ev.TrainFailed)
    with pytest.raises(PluginFailed, match="failed with IndexError: 16; 5 shares in a row have failed"):
        await worker.do(work)


async def test_a_read_that_was_cancelled_is_told_as_that() -> None:
    started = anyio.Event()

    class Endless(DummyData):
        async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
            started.set()
            await anyio.sleep_forever()
            raise AssertionError

    shop = Shop(ChainTrainer("one"), Endless(sequence_length=16))
    worker, share = await shop.load(), (BatchId(0, 1),)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.prefetch, share)
        await started.wait()
        tasks.cancel_scope.cancel()
    failed = await worker.do(act.Train(1, 2, share, 1))
    assert failed == ev.TrainFailed(1, "step 2 was not trained: reading samples was cancelled")


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize(("error", "level"), [(NothingForUs, "warning"), (DataError, "error")])
async def test_what_mends_itself_is_a_warning_and_no_error(ahead: bool, error: type[DataError], level: str) -> None:
    """A member that the data server has nothing for now is given samples again with its next share."""

    class Refusing(DummyData):
        async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
            message = "nothing for us now"
            raise error(message)

    shop = Shop(ChainTrainer("one"), Refusing(sequence_length=16))
    worker, share = await shop.load(), (BatchId(0, 1),)
    if ahead:
        await worker.prefetch(share)
    failed = await worker.do(act.Train(1, 2, share, 1))
    assert failed == ev.TrainFailed(1, "step 2 was not trained: nothing for us now", passing=level == "warning")

    world = Stage(3)
    member = world.members[0]
    world.breaks = lambda one, work: (
        ev.TrainFailed(1, failed.reason, passing=failed.passing)
        if one is member and isinstance(work, act.Train) and work.height == 1
        else None
    )
    world.run(until=lambda: bool(problems(member.told)))
    assert [event for event in member.told if isinstance(event, telemetry.Problem)] == [telemetry.Problem(level, failed.reason)]
