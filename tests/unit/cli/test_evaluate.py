"""Scores are those of lm_eval run by hand; what cannot be evaluated is one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from psyche_core.cli.failures import describe_failure
from tests.unit.cli.conftest import Psyche
from tests.unit.evaluation.task_list import only_from_folders
from tests.unit.evaluation.tiny_checkpoint import make_checkpoint

pytest.importorskip("lm_eval", reason="needs the extra eval")
pytestmark = pytest.mark.filterwarnings("ignore")  # of lm_eval and what it imports


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a task over a local file."""
    folder = tmp_path_factory.mktemp("tasks")
    ours = Path(__file__).parents[1] / "evaluation" / "tasks"
    shutil.copy(ours / "plays.jsonl", folder)
    (folder / "plays.yaml").write_text((ours / "plays.yaml").read_text().replace("FOLDER", str(folder)))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.mark.slow
def test_scores_are_those_of_lm_eval_by_hand(psyche: Psyche, folder: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    only_from_folders(monkeypatch)

    more = ("--fewshot", "2", "--limit", "6", "--seed", "5")
    options = ("--tasks", "psyche_plays", "--include-path", str(tasks), "--device", "cpu")
    ours = psyche("evaluate", folder, *options, *more, "--json")
    assert ours.code == 0, ours.err
    assert ours.err == ""
    known = TaskManager(include_path=[str(tasks)], include_defaults=False)
    theirs = simple_evaluate(
        model="hf", model_args=f"pretrained={folder}", tasks=["psyche_plays"], task_manager=known,
        num_fewshot=2, limit=6, batch_size=1, device="cpu",
        random_seed=5, numpy_random_seed=5, torch_random_seed=5, fewshot_random_seed=5,
    )  # fmt: skip
    assert theirs is not None
    expected = theirs["results"]["psyche_plays"]
    found = json.loads(ours.out)["psyche_plays"]
    assert found["metrics"] == {name: expected[f"{name},none"] for name in ("acc", "acc_norm")}
    assert found["stderr"]["acc"] == pytest.approx(expected["acc_stderr,none"])
    assert 0 < found["metrics"]["acc_norm"] < 1
    assert found["documents"] == 6


@pytest.mark.slow
def test_what_cannot_be_evaluated_is_one_sentence(psyche: Psyche, folder: Path, tasks: Path, tmp_path: Path) -> None:
    for arguments, said in (
        ((folder, "--tasks", "arc_eazy"), "there is no evaluation task 'arc_eazy'; did you mean arc_easy?"),
        ((folder, "--tasks", "arc_easy"), "the data of task arc_easy is not on this machine and cannot be had"),
        ((folder, "--tasks", " ,"), "--tasks names no task"),
        ((folder, "--tasks", "psyche_plays", "--include-path", tmp_path / "none"), "there is no folder"),
        ((tmp_path / "none", "--tasks", "psyche_plays", "--include-path", tasks), "there is no folder"),
    ):
        result = psyche("evaluate", *arguments)
        assert (result.code, said in result.err) == (2, True), result.err


def test_the_seeds_names_of_tasks_are_known() -> None:
    from psyche_core.evaluation.harness import TaskSet

    named = (
        "arc_easy",
        "arc_challenge",
        "boolq",
        "hellaswag",
        "mmlu",
        "mmlu_pro",
        "openbookqa",
        "piqa",
        "ceval",
        "ceval_valid",
        "mmlu_cf",
    )
    assert len(TaskSet(named).names) == len(named)


def test_a_missing_extra_is_named() -> None:
    error = ModuleNotFoundError("No module named 'lm_eval'", name="lm_eval.api")
    assert describe_failure(error) == ("this command needs lm_eval, which is not installed; pip install 'psyche-core[eval]'", 2)
