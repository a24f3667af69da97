"""Who sees a run end is told where its model is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from psyche_core.config.run_config import Choice
from psyche_core.coordinator.state import CoordinatorState, EpochEnd, Progress
from psyche_core.storage.model_stores.run_end import end_sentence, place_of
from psyche_core.testing.backend import small_state

HUB = Choice("P2P", {"repo_id": "friend/model", "revision": "abc"})


def finished(stored: int) -> CoordinatorState:
    """A run of 100 steps whose model after step `stored` was stored."""
    state = small_state()
    model = state.model.model_copy(update={"LLM": state.model.LLM.model_copy(update={"checkpoint": HUB})})
    return replace(state, model=model, stored=EpochEnd(step=stored), progress=Progress(5, 101, 0))


@pytest.mark.parametrize(
    ("stored", "folder", "said"),
    [
        (0, None, "it ended"),
        (0, "ck/run-step100", "it ended; the final model is in ck/run-step100"),
        (100, None, "it ended; the final model is stored at friend/model@abc"),
        (
            80,
            "ck/run-step100",
            "it ended; the final model is in ck/run-step100; the model after step 80 is stored at friend/model@abc",
        ),
    ],
)
def test_the_end_of_a_run_says_where_its_model_is(stored: int, folder: str | None, said: str) -> None:
    checkpoint = None if folder is None else Path(folder)
    assert end_sentence(finished(stored), reason="it ended", checkpoint=checkpoint) == said


@pytest.mark.parametrize(
    ("name", "settings", "place"),
    [
        ("Hub", {"repo_id": "models/mine"}, "models/mine"),
        ("Gcs", {"bucket": "models", "prefix": "a/b"}, "gs://models/a/b"),
        ("P2PGcs", {"bucket": "s3://models"}, "s3://models"),
        ("Dummy", None, None),
    ],
)
def test_a_stored_checkpoint_is_named_by_its_place(name: str, settings: dict[str, Any] | None, place: str | None) -> None:
    assert place_of(Choice(name, settings)) == place
