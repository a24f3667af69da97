"""`train`, which blocks, and its twin for event loops."""

from __future__ import annotations

import pytest
from sdk_parts import DATA, make_net, make_run

import psyche_core as psyche


def test_train_blocks_until_the_run_is_finished() -> None:
    net = make_net()
    metrics = psyche.train(make_run(clients=1), model=net, data=DATA, device="cpu")
    assert metrics.applied == 8
    assert metrics.loss is not None


async def test_train_in_a_running_loop_says_what_to_do_instead() -> None:
    with pytest.raises(RuntimeError, match=r"^psyche.train\(\) blocks .* write `await psyche.train_async\(…\)` with the same"):
        psyche.train(make_run(clients=1), model=make_net(), data=DATA)


async def test_the_other_one_runs_in_a_loop() -> None:
    assert (await psyche.train_async(make_run(clients=1, steps=2), model=make_net(), data=DATA)).applied == 2


def test_a_run_of_many_is_refused_with_what_to_do() -> None:
    with pytest.raises(psyche.errors.ConfigError, match="waits for 3; set clients=1, or use"):
        psyche.train(make_run(clients=3), model=make_net(), data=DATA)
