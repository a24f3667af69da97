"""`psyche bench`: every recipe with every seed once, kept, shown and drawn; a search for settings."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from lone_run import DISTRO, RUN

from psyche_core import __version__
from psyche_core.testing.tiny_models import LLAMA, VOCABULARY
from tests.unit.cli.conftest import Psyche


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(dict(LLAMA)))
    (tmp_path / "state.toml").write_text(RUN.replace('"PLACE"', '"Dummy"') + DISTRO)
    for part, turns in (("train", 200), ("validation", 20)):
        (tmp_path / "tokens" / part).mkdir(parents=True)
        np.tile(np.arange(2, VOCABULARY, dtype="<u2"), turns).tofile(tmp_path / "tokens" / part / "0.bin")
    paths = ["--state", str(tmp_path / "state.toml"), "--data", str(tmp_path / "tokens")]
    small = ["--steps", "6", "--topk", "8", "--decay", "0.9", "--members", "2", "--device", "cpu", "--out", str(tmp_path / "out")]
    return ["bench", "convergence", *paths, *small]


def test_each_recipe_is_trained_once_with_each_seed(psyche: Psyche, arguments: list[str], tmp_path: Path) -> None:
    first = psyche(*arguments, "--seeds", "1", "--json")
    assert first.code == 0, first.err
    runs = json.loads(first.out)["runs"]
    assert [(run["optimizer"], run["settings"].get("quantize_1bit"), run["seed"]) for run in runs] == [
        ("AdamW", None, 0),
        ("Distro", False, 0),
        ("Distro", True, 0),
    ]
    assert all(run["losses"][-1][0] == 6 and run["validation_loss"] < run["losses"][0][1] for run in runs)
    assert len({run["losses"][0][1] for run in runs}) == 1, "they begin with the same weights"
    by_size = sorted(runs, key=lambda run: -run["bytes_per_step"])
    assert [run["settings"].get("quantize_1bit") for run in by_size] == [None, False, True]
    assert (tmp_path / "out" / "convergence.png").read_bytes().startswith(b"\x89PNG")

    second = psyche(*arguments, "--seeds", "2")
    assert second.code == 0, second.err
    assert second.err.count("seed 0") == 0, "what stands in the report is not trained again"
    assert second.err.count("seed 1") == 3
    kept = json.loads((tmp_path / "out" / "report.json").read_text())["runs"]
    assert kept[:3] == runs
    assert len(kept) == 6
    assert second.out.count("Distro 1 bit, top 8") == 1

    third = psyche(*arguments, "--seeds", "1", "--distro-rate", "0.004")
    assert third.err.count("; ") == third.err.count("rate 0.004") == 2, "AdamW is there already"
    both = json.loads((tmp_path / "out" / "report.json").read_text())["runs"]
    assert both[:6] == kept, "what was trained with other settings stays"
    assert [run["settings"]["learning_rate"] for run in both[6:]] == [0.004, 0.004]


def test_sparseloco_is_trained_when_it_is_asked_for(psyche: Psyche, arguments: list[str]) -> None:
    found = psyche(*arguments, "--seeds", "1", "--json", "--sparseloco-rate", "0.003", "--sparseloco-inner-steps", "2")
    assert found.code == 0, found.err
    *_, last = json.loads(found.out)["runs"]
    assert (last["optimizer"], last["settings"]["inner_steps"], last["settings"]["topk"]) == ("SparseLoCo", 2, 8)
    assert last["validation_loss"] < last["losses"][0][1]


def test_another_experiment_s_report_is_not_gone_on_with(psyche: Psyche, arguments: list[str]) -> None:
    assert psyche(*arguments, "--seeds", "1").code == 0
    other = psyche(*[*arguments, "--seeds", "1", "--steps", "7"])
    assert other.code == 2
    assert "another experiment" in other.err


RECIPES = """
[[recipe]]
optimizer = "AdamW"
learning_rate = 0.003
settings = { rates = { embedding = 4.0 } }

[[recipe]]
optimizer = "Distro"
learning_rate = 0.002
settings = { compression_topk = 8, compression_decay = 0.9, quantize_1bit = true, second_stage = "rmsprop" }
"""


def without_usual(arguments: list[str]) -> list[str]:
    """The arguments without those that describe the usual recipes, and without --out."""
    place = arguments.index("--topk")
    return [*arguments[:place], *arguments[place + 4 : -2]]


@pytest.mark.soak  # each process imports torch and compiles
@pytest.mark.timeout(400)  # processes that import torch, on a busy machine
def test_processes_train_a_file_s_recipes_as_one_does(psyche: Psyche, arguments: list[str], tmp_path: Path) -> None:
    _, adamw, distro = RECIPES.split("[[recipe]]")
    assert "AdamW" in adamw
    (tmp_path / "recipes.toml").write_text(f"[[recipe]]{distro}")  # one, since each process imports torch
    given = [*without_usual(arguments), "--seeds", "2", "--json", "--recipes", str(tmp_path / "recipes.toml")]
    given += ["--torch-threads", "1"]
    found = {jobs: psyche(*given, "--jobs", jobs, "--out", str(tmp_path / f"jobs-{jobs}")) for jobs in ("1", "2")}
    runs = {}
    for jobs, each in found.items():
        assert each.code == 0, each.err
        runs[jobs] = sorted(json.loads(each.out)["runs"], key=lambda run: (run["optimizer"], run["seed"]))
        assert "; 0 left" in each.err
    assert runs["2"] == runs["1"]
    assert [(run["optimizer"], run["seed"]) for run in runs["1"]] == [("Distro", 0), ("Distro", 1)]
    assert all(run["settings"]["second_stage"] == "rmsprop" for run in runs["1"])
    assert runs["1"][0]["validation_loss"] != runs["1"][1]["validation_loss"]


NO_TOKEN = (
    f"the data plugin Local (psyche-core {__version__}) gave the token id {VOCABULARY}, which is outside the model's "
    f"vocabulary of {VOCABULARY} (was it made for this model?); it cannot be trained on"
)


@pytest.mark.parametrize("recipe", ["AdamW", "Distro"])
@pytest.mark.parametrize("part", ["train", "validation"])
def test_data_of_another_model_is_named_with_its_plugin(
    psyche: Psyche, arguments: list[str], tmp_path: Path, part: str, recipe: str
) -> None:
    np.full(1000, VOCABULARY, "<u2").tofile(tmp_path / "tokens" / part / "0.bin")
    (one,) = (text for text in RECIPES.split("[[recipe]]") if recipe in text)
    (tmp_path / "recipes.toml").write_text(f"[[recipe]]{one}")
    refused = psyche(*without_usual(arguments), "--recipes", str(tmp_path / "recipes.toml"), "--out", str(tmp_path / "out"))
    assert (refused.code, refused.err.splitlines()[-1]) == (1, f"Error: {NO_TOKEN}")


@pytest.mark.soak  # each process imports torch
def test_what_fails_in_a_process_is_a_sentence(psyche: Psyche, arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "model" / "config.json").unlink()
    alone, together = (psyche(*arguments, "--seeds", "1", "--jobs", jobs) for jobs in ("1", "2"))
    assert alone.code == together.code != 0
    assert alone.err == together.err
    assert "config.json" in together.err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "expected a list of tables [[recipe]]"),
        ("steps = 3\n" + RECIPES, "got steps, recipe"),
        (RECIPES + RECIPES, "recipe 3: a table would call it the same"),
        (RECIPES.replace("embedding", "embeding"), "recipe 1: settings"),
        (RECIPES.replace("compression_topk", "topk"), "recipe 2: settings.topk: unknown key"),
        (RECIPES.replace("0.003", "-1"), "recipe 1.learning_rate = -1"),
        (RECIPES.replace('"Distro"', '"Nobody"'), "Nobody"),
        ("[[recipe", "cannot read"),
    ],
)
def test_recipes_that_cannot_be_trained_are_refused(
    psyche: Psyche, arguments: list[str], tmp_path: Path, text: str, sentence: str
) -> None:
    (tmp_path / "recipes.toml").write_text(text)
    refused = psyche(*without_usual(arguments), "--recipes", str(tmp_path / "recipes.toml"))
    assert refused.code in (2, 3), refused.err
    assert sentence in refused.err
    assert "loss" not in refused.err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--adamw-rate", "-1"), "a learning rate is a number above 0, got -1.0"),
        (("--distro-rate", "0"), "a learning rate is a number above 0, got 0.0"),
        (("--sparseloco-rate", "nan"), "a learning rate is a number above 0, got nan"),
        (("--recipes", "rows.toml"), "--topk is for the usual recipes"),
        (("--data", "nowhere"), "there is no nowhere"),
        (("--out", "/proc/nowhere"), "cannot write /proc/nowhere/report.json"),
        (("--out", "broken"), "is not a report of `psyche bench convergence`"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_trains(
    psyche: Psyche,
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "report.json").write_text("{")
    refused = psyche(*arguments, *options)
    assert refused.code == 2, refused.err
    assert sentence in refused.err
    assert "loss" not in refused.err


def test_numbers_that_are_none_are_refused(psyche: Psyche, arguments: list[str]) -> None:
    refused = psyche(*arguments, "--topk", "8;16")
    assert (refused.code, "'8;16'" in refused.err) == (2, True)


@pytest.fixture
def search(arguments: list[str], tmp_path: Path) -> list[str]:
    paths = arguments[2:6]
    small = ["--steps", "6", "--shortest", "2", "--members", "2", "--device", "cpu", "--out", str(tmp_path / "tuned")]
    return ["bench", "tune", *paths, *small]


def test_a_search_on_data_of_another_model_names_its_plugin(psyche: Psyche, search: list[str], tmp_path: Path) -> None:
    np.full(1000, VOCABULARY, "<u2").tofile(tmp_path / "tokens" / "validation" / "0.bin")
    refused = psyche(*search, "--trials", "2", "--vary", "rate=0.0001:0.02")
    assert (refused.code, refused.err.splitlines()[-1]) == (1, f"Error: {NO_TOKEN}")


def test_a_search_trains_the_best_longer_and_says_what_to_change(psyche: Psyche, search: list[str], tmp_path: Path) -> None:
    found = psyche(*search, "--trials", "6", "--vary", "rate=0.0001:0.02", "--json")
    assert found.code == 0, found.err
    report = json.loads(found.out)
    trials = report["trials"]
    assert report["rungs"] == [2, 6]
    assert [trial["candidate"] for trial in trials if trial["rung"] == 0] == [0, 1, 2, 3, 4, 5]
    last = {trial["candidate"]: trial["validation_loss"] for trial in trials if trial["rung"] == 1}
    first = {trial["candidate"]: trial["validation_loss"] for trial in trials if trial["rung"] == 0}
    assert last.keys() == {0, *sorted(first, key=lambda number: (first[number], number))[:2]}
    assert report["best_candidate"] == min(last, key=lambda number: (last[number], number))
    tuned = tomllib.loads((tmp_path / "tuned" / "tuned.toml").read_text())
    assert tuned == report["tables"]
    (schedule,) = tuned["model"]["LLM"]["lr_schedule"].values()
    assert schedule["base_lr"] == report["best"].get("rate", schedule["base_lr"])

    again = psyche(*search, "--vary", "rate=0.0001:0.02")
    assert (again.code, again.err.count("loss")) == (0, 0), "nothing is trained twice"
    assert again.out.count("\n") > 6


def test_a_search_within_minutes_takes_what_fits(psyche: Psyche, search: list[str]) -> None:
    """A thousandth of a second is enough for the smallest search; the trial that was timed is part of it."""
    found = psyche(*search, "--minutes", "0.00001", "--vary", "rate=0.0001:0.02", "--json")
    assert found.code == 0, found.err
    report = json.loads(found.out)
    assert report["candidates"] == 2
    assert [(trial["rung"], trial["candidate"]) for trial in report["trials"]][:2] == [(0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--vary", "compression_topk=8:9999999"), "compression_topk"),
        (("--vary", "no_such_key=1,2"), "no_such_key"),
        (("--vary", "compression_topk=8,4,abc", "--trials", "2"), "compression_topk abc"),
        (("--data", "nowhere"), "there is no nowhere"),
        (("--vary", "rate=1:2", "--vary", "rate=2:3"), "twice"),
        (("--trials", "3", "--minutes", "1"), "give one of them"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_trains(
    psyche: Psyche, search: list[str], options: tuple[str, ...], sentence: str
) -> None:
    refused = psyche(*search, *options)
    assert refused.code == 2, refused.err
    assert sentence in refused.err
    assert "loss" not in refused.err


def test_another_search_s_report_is_not_gone_on_with(psyche: Psyche, search: list[str], tmp_path: Path) -> None:
    (tmp_path / "tuned").write_text("a file")
    refused = psyche(*search)
    assert refused.code == 2
    assert "cannot write" in refused.err or "cannot read" in refused.err
    (tmp_path / "tuned").unlink()
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "report.json").write_text("[]")
    refused = psyche(*search)
    assert refused.code == 2
    assert "not a report of `psyche bench tune`" in refused.err
