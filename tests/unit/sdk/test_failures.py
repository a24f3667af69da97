"""What goes wrong is told to who looks at standard error only, early, and in a sentence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import anyio
import pytest
import torch
from sdk_parts import DATA, LENGTH, VOCABULARY, Net, make_net, make_run

import psyche_core as psyche
from psyche_core.builtin.adamw import AdamW
from psyche_core.builtin.adamw_settings import AdamWSettings


class Broken(Net):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        message = "no such layer"
        raise ValueError(message)


def test_a_lone_member_whose_shares_all_fail_ends_with_the_reason_and_each_failure_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = make_run(clients=1, config={"max_round_train_time": 1, "epoch_time": 120})
    with pytest.raises(
        psyche.PsycheError, match=r"^3 steps in a row could not be trained, and no other .*ValueError: no such layer"
    ):
        psyche.train(run, model=Broken(), data=DATA, device="cpu")
    failed = [record for record in caplog.records if "was not trained" in record.message]
    assert [(record.name, record.levelno) for record in failed] == [("psyche.sdk", logging.ERROR)] * 3


async def test_where_others_train_a_member_that_cannot_stays() -> None:
    run = make_run(steps=4, config={"max_round_train_time": 1, "epoch_time": 120})
    async with psyche.Coordinator(run) as coordinator, anyio.create_task_group() as group:
        group.start_soon(lambda: psyche.train_async(coordinator.address, model=make_net(), data=DATA, device="cpu"))
        metrics = await psyche.train_async(coordinator.address, model=Broken(), data=DATA, device="cpu")
    assert metrics.step == 0


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        ([1, 2], "must be 8 whole numbers .*, got list of shape"),
        ([0.5] * LENGTH, "must be 8 whole numbers .* type float64"),
        ("abcdefgh", "must be 8 whole numbers .* got str"),
        (None, "must be 8 whole numbers .* got NoneType"),
        (
            [VOCABULARY] * LENGTH,
            f"holds token id {VOCABULARY}, outside the model's vocabulary of {VOCABULARY}; was the data made for",
        ),
        ([-1] * LENGTH, "holds -1 to -1; token ids are 0 to"),
        ({"tokens": [1] * LENGTH}, "has no input_ids, got a mapping with tokens"),
    ],
)
def test_an_item_of_no_use_is_told_before_the_run_is_joined(item: Any, sentence: str) -> None:
    data = [*DATA[:3], item, *DATA[4:]]
    told: list[psyche.events.Event] = []
    with pytest.raises(psyche.errors.DataError, match=f"^item 3 of the dataset {sentence}"):
        psyche.train(make_run(clients=1), model=make_net(), data=data, device="cpu", callbacks=[told.append])
    assert not any(isinstance(event, psyche.events.Joined) for event in told)


async def test_an_end_without_success_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(psyche.errors.PluginError):
        await psyche.train_async(make_run(clients=1), model=make_net(), data=DATA, optimizer="Distro", device="cpu")
    [record] = [record for record in caplog.records if record.name == "psyche.sdk"]
    assert record.levelno == logging.ERROR
    assert "the run has AdamW as its optimizer" in record.message


class Foreign(BaseException):
    """What no `except Exception` catches."""


class Unspeakable(Exception):
    def __str__(self) -> str:
        message = "no words"
        raise RuntimeError(message)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), Foreign("own"), GeneratorExit(), Unspeakable()])
async def test_whatever_a_callback_raises_stops_nothing(error: BaseException) -> None:
    told: list[psyche.events.Event] = []

    def broken(_: psyche.events.Event) -> None:
        raise error

    await psyche.train_async(
        make_run(steps=2, clients=1), model=make_net(), data=DATA, device="cpu", callbacks=[broken, told.append]
    )
    [problem] = [event for event in told if isinstance(event, psyche.events.Problem)]
    assert f"broken failed with {type(error).__name__}" in problem.message
    assert told[-1] == psyche.events.Ended("the run finished after 2 steps", success=True)


class Raising(Net):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        raise self.error


async def test_a_model_s_own_base_exception_ends_the_client_with_a_sentence() -> None:
    told: list[psyche.events.Event] = []
    with pytest.raises(psyche.errors.PluginFailed, match=r"^the model plugin Raising .* failed with Foreign: own") as caught:
        await psyche.train_async(
            make_run(clients=1), model=Raising(Foreign("own")), data=DATA, device="cpu", callbacks=[told.append]
        )
    assert isinstance(caught.value.__cause__, Foreign)
    assert told[-1] == psyche.events.Ended(str(caught.value), success=False)


async def test_so_does_a_group_of_them() -> None:
    group = BaseExceptionGroup("own", [Foreign("own")])
    with pytest.raises(psyche.errors.PluginFailed, match="failed with Foreign: own"):
        await psyche.train_async(make_run(clients=1), model=Raising(group), data=DATA, device="cpu")


async def test_an_exception_without_words_is_told_all_the_same() -> None:
    run = make_run(clients=1, config={"max_round_train_time": 1, "epoch_time": 120})
    with pytest.raises(psyche.PsycheError, match=r"failed with Unspeakable: \(its text failed with RuntimeError\)"):
        await psyche.train_async(run, model=Raising(Unspeakable()), data=DATA, device="cpu")


@pytest.mark.parametrize("error", [ValueError("no"), Foreign("no")])
async def test_an_optimizer_that_does_not_give_the_weights_back_is_named(error: BaseException) -> None:
    class Stubborn(AdamW):
        def load_masters(self) -> None:
            raise error

    make: Callable[[Any], AdamW] = lambda model: Stubborn(AdamWSettings(weight_decay=0.0), model)  # noqa: E731
    with pytest.raises(psyche.errors.PluginFailed, match=f"failed with {type(error).__name__}: no"):
        await psyche.train_async(make_run(steps=2, clients=1), model=make_net(), data=DATA, optimizer=make, device="cpu")


async def test_who_waits_for_a_client_that_is_cut_off_gets_a_sentence() -> None:
    """It was an AssertionError."""
    raised: list[Exception] = []

    async def wait(client: psyche.Client) -> None:
        try:
            await client.wait()
        except psyche.PsycheError as error:
            raised.append(error)

    async with psyche.Coordinator(make_run(clients=2)) as coordinator, anyio.create_task_group() as group:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the block is what is tested
            async with psyche.Client(coordinator.address, model=make_net(), data=DATA) as client:
                group.start_soon(wait, client)
                await anyio.wait_all_tasks_blocked()
                raise ZeroDivisionError
    assert [str(error) for error in raised] == ["the client was stopped early: its block was cancelled or raised an exception"]
