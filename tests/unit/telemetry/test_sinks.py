"""The stream of events: JSON lines that other programs read, whatever the figures are."""

from __future__ import annotations

import io
import json
import math

import pytest

from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.sinks import EventBus, from_json, json_lines, to_json


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_null_and_the_lines_go_on(loss: float) -> None:
    """The sink was removed at the first one, so that nobody ever read of the end."""
    stream = io.StringIO()
    tell = EventBus(json_lines(stream))
    tell(telemetry.Validated(3, loss))
    tell(telemetry.StepTrained(0, 4, loss, 100, 1.0, 812))
    tell(telemetry.Ended("the run finished after 4 steps", success=True))
    lines = stream.getvalue().splitlines()
    told = [json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON")) for line in lines]
    assert [event["event"] for event in told] == ["validated", "step_trained", "ended"]
    assert told[0]["loss"] is None
    assert told[1]["loss"] is None
    read = [from_json(line) for line in lines]
    assert all(event is not None for event in read)
    assert read[0] is not None
    assert isinstance(read[0][1], telemetry.Validated)
    assert math.isnan(read[0][1].loss)


def test_null_stays_none_where_there_may_be_nothing() -> None:
    line = to_json(telemetry.ModelLoaded(10, 1.0, None))
    read = from_json(line)
    assert read is not None
    assert read[1] == telemetry.ModelLoaded(10, 1.0, None)


def test_whose_shares_were_lost_is_read_again_and_older_programs_did_not_say_it() -> None:
    event = telemetry.StepApplied(0, 3, 2, 3, 0.5, ("a1b2c3d4",), ours_lost=False)
    line = to_json(event)
    read = from_json(line)
    assert read is not None
    assert read[1] == event

    older = json.loads(line)
    del older["lost"], older["ours_lost"]
    read = from_json(json.dumps(older))
    assert read is not None
    assert read[1] == telemetry.StepApplied(0, 3, 2, 3, 0.5)
