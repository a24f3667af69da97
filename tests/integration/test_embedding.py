"""Three members train a real model in this process, through the public SDK: the example, without a socket."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from blockbuster import BlockBuster, blockbuster_ctx

from psyche_core.telemetry import events as telemetry

EXAMPLE = Path(__file__).parents[2] / "examples" / "embed_sdk.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("embed_sdk", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["embed_sdk"] = module
    spec.loader.exec_module(module)
    torch.set_num_threads(1)
    return module


@pytest.fixture
def no_blocking() -> Iterator[BlockBuster]:
    """Fail on blocking calls made from the event loop by our code."""
    with blockbuster_ctx("psyche_core") as guard:
        yield guard


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["AdamW", "Distro"])
async def test_three_members_learn_and_stay_equal(example: ModuleType, optimizer: str, no_blocking: BlockBuster) -> None:
    events = await example.train(steps=24, clients=3, optimizer=optimizer)

    assert len(events) == 3
    for told in events:
        ended = [event for event in told if isinstance(event, telemetry.Ended)]
        assert [event.success for event in ended] == [True]
        losses = [event.loss for event in told if isinstance(event, telemetry.StepTrained)]
        assert len(losses) == 24
        assert sum(losses[-4:]) / 4 < losses[0] - 1.0
        applied = [event for event in told if isinstance(event, telemetry.StepApplied)]
        assert [event.step for event in applied] == list(range(1, 25))
        assert all(event.accepted == event.trained == 3 for event in applied)
        overlaps = [event for event in told if isinstance(event, telemetry.ResultOverlaps)]
        compared = [event.step for event in overlaps]  # a step may be left out while the one before is compared
        assert compared == sorted(set(compared))
        assert bool(compared) == (optimizer == "Distro")
        assert all(len(event.results) == 3 for event in overlaps)

    digests = [tuple(e.sha256 for e in told if isinstance(e, telemetry.EpochDigest)) for told in events]
    assert len(digests[0]) == 3
    assert len(set(digests)) == 1
    assert len(set(digests[0])) == 3
