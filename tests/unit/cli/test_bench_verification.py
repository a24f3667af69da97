"""`psyche bench verification`: tables and JSON of a tiny model, the budget, and what cannot be measured."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from lone_run import ADAMW, DISTRO, RUN

from psyche_core import __version__
from psyche_core.experiments import replay_run
from psyche_core.testing.tiny_models import LLAMA, VOCABULARY
from tests.unit.cli.conftest import Psyche


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(dict(LLAMA)))
    (tmp_path / "state.toml").write_text(RUN.replace('"PLACE"', '"Dummy"') + DISTRO)
    (tmp_path / "tokens").mkdir()
    np.random.default_rng(0).integers(2, VOCABULARY, 20_000).astype("<u2").tofile(tmp_path / "tokens" / "0.bin")
    paths = ["--state", str(tmp_path / "state.toml"), "--data", str(tmp_path / "tokens")]
    return [
        "bench",
        "verification",
        *paths,
        "--steps",
        "8",
        "--members",
        "2",
        "--shares",
        "4",
        "--devices",
        "cpu",
        "--threads",
        "1",
    ]


def test_honest_work_and_full_cheats_are_told_apart(psyche: Psyche, arguments: list[str]) -> None:
    found = psyche(*arguments, "--seeds", "2", "--json")
    assert found.code == 0, found.err
    report = json.loads(found.out)
    assert (report["run_id"], report["shares"], report["draws_per_share"]) == ("alone", 16, 200)
    titles = [(row["title"], row["phase"]) for row in report["honest"]]
    assert len(titles) == len(set(titles)) == 10, "the first with each of four, two of the other dtype; two phases"
    same = report["honest"][0]
    assert same["title"] == "float32 cpu, batch 8, 1 thread | float32 cpu, batch 8, 1 thread"
    assert same["max"] < 1e-6
    kinds = {row["title"] for row in report["lazy"]}
    assert {"random payload", "old payload", "copied payload", "flipped signs", "other data", "a quarter of the samples"} < kinds
    threshold = report["threshold"]
    assert threshold["honest_max"] < threshold["proposed"] < threshold["cheat_min"]
    assert threshold["false_positives"] == 0.0
    assert threshold["false_negatives"]["random payload"] == 0.0
    assert report["payload"] == {"jaccard_min": 1.0, "wrong_signs": 0}
    assert 0 < report["overlap"]["honest_max"] <= 1
    assert "seed 1, step 7 of 8: 16 of at most 16 shares recomputed" in found.err


def test_people_get_tables(psyche: Psyche, arguments: list[str]) -> None:
    found = psyche(*arguments, "--dtypes", "float32", "--micro-batches", "4")
    assert found.code == 0, found.err
    assert "T of honest work" in found.out
    assert "Threshold: " in found.out
    assert found.out.count("other data") == 3, "in two phases, and whether it is found"
    assert max(map(len, found.out.splitlines())) <= 110


def test_a_budget_that_ends_too_early_says_so_and_shows_what_there_is(
    psyche: Psyche, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state.toml"
    state.write_text(state.read_text().replace("warmup_steps = 2", "warmup_steps = 500"))
    ticks = iter(range(1_000_000))
    monkeypatch.setattr(replay_run, "measured_steps", partial(replay_run.measured_steps, clock=lambda: float(next(ticks))))
    found = psyche(*arguments, "--steps", "1000", "--shares", "900", "--budget", "30", "--json")
    assert found.code == 0, found.err
    assert "the budget of 30 s was used up at step" in found.err
    assert "the peak of the rate was not reached: raise --budget" in found.err
    assert json.loads(found.out)["peak_reached"] is False
    none = psyche(*arguments, "--budget", "1")
    assert none.code == 2
    assert "fewer than two shares" in none.err


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--dtypes", "float32,float8", "got 'float8'"),
        ("--micro-batches", "8,0", "numbers from 1"),
        ("--threads", "two", "numbers from 1"),
    ],
)
def test_options_that_make_no_sense(psyche: Psyche, arguments: list[str], option: str, value: str, words: str) -> None:
    found = psyche(*arguments, option, value)
    assert (found.code, words in found.err) == (2, True)


def test_data_of_another_model_is_named_with_its_plugin(psyche: Psyche, arguments: list[str], tmp_path: Path) -> None:
    np.full(20_000, VOCABULARY, "<u2").tofile(tmp_path / "tokens" / "0.bin")
    refused = psyche(*arguments)
    assert refused.code == 1
    assert refused.err.splitlines()[-1] == (
        f"Error: the data plugin Local (psyche-core {__version__}) gave the token id {VOCABULARY}, which is outside the model's "
        f"vocabulary of {VOCABULARY} (was it made for this model?); it cannot be trained on"
    )


def test_an_optimizer_that_cannot_be_replayed_is_refused(psyche: Psyche, arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "state.toml").write_text(RUN.replace('"PLACE"', '"Dummy"') + ADAMW)
    found = psyche(*arguments)
    assert found.code == 2
    assert "the training of optimizer AdamW cannot be replayed" in found.err
