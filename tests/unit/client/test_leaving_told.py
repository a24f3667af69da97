"""What a client tells when a signal asks it to leave."""

from __future__ import annotations

import functools
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from psyche_core.client.setup import assemble
from psyche_core.telemetry import events as telemetry


@pytest.mark.parametrize(
    ("resources", "keeps", "saves", "loading"),
    [(None, True, False, True), (object(), True, True, False), (object(), False, False, False)],
    ids=["while it loads", "with a folder for checkpoints", "without"],
)
def test_it_says_whether_it_saves_and_whether_it_waits_for_its_model(
    resources: object, keeps: bool, saves: bool, loading: bool
) -> None:
    told: list[telemetry.Event] = []
    runtime: Any = SimpleNamespace(resources=resources)  # all that is read of it
    tell = functools.partial(assemble._report_leaving, told.append, runtime, saves=keeps)
    tell(signal.SIGTERM)
    assert told == [telemetry.Leaving("SIGTERM", saves=saves, loading=loading)]
