"""Training in one process: the steps of a run, without one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from lone_run import ADAMW, DISTRO, RUN
from transformers import AutoModelForCausalLM

from psyche_core import __version__
from psyche_core.builtin.adamw import AdamW
from psyche_core.builtin.adamw_settings import AdamWSettings
from psyche_core.testing.tiny_models import LLAMA, VOCABULARY
from psyche_core.testing.toy_model import ToyModel, toy_samples
from psyche_core.training.checkpoints.manifest import read_manifest
from psyche_core.training.local_run import LocalRun
from psyche_core.training.trainer import Trainer
from tests.unit.cli.conftest import Psyche


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A folder with a model without weights, a run file and token files of a text that repeats itself."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(dict(LLAMA)))
    (tmp_path / "state.toml").write_text(RUN.replace('"PLACE"', '{ Local = "tokens" }') + ADAMW)
    text = np.tile(np.arange(2, VOCABULARY, dtype="<u2"), 80)
    for part in ("train", "validation"):
        (tmp_path / "tokens" / part).mkdir(parents=True)
        text.tofile(tmp_path / "tokens" / part / "0.bin")
    return tmp_path


def arguments(base: Path, *more: str) -> list[str]:
    return ["train-local", "--state", str(base / "state.toml"), "--device", "cpu", "--logs", "json", *more]


def told(out: str, kind: str) -> list[dict[str, object]]:
    events = [json.loads(line) for line in out.splitlines()]
    return [event for event in events if str(event["event"]).startswith(kind)]


@pytest.mark.parametrize("optimizer", [ADAMW, DISTRO], ids=["AdamW", "DisTrO"])
def test_a_model_learns_and_is_saved(psyche: Psyche, base: Path, optimizer: str) -> None:
    (base / "state.toml").write_text(RUN.replace('"PLACE"', '{ Local = "tokens" }') + optimizer)
    held_out = ("--validation-data", str(base / "tokens" / "validation"), "--validation-every", "5")
    result = psyche(*arguments(base, *held_out, "--checkpoint-dir", str(base / "saved")))
    assert result.code == 0, result.err
    assert [event["step"] for event in told(result.out, "step_trained")] == list(range(1, 13))
    assert [event["event"] for event in told(result.out, "model_")][:2] == ["model_loading", "model_loaded"]
    assert [event["total_tokens"] for event in told(result.out, "step_figures")] == [step * 8 * 16 for step in range(1, 13)]
    assert [event["run_id"] for event in told(result.out, "run_described")] == ["alone"]
    assert [(event["step"], event["accepted"]) for event in told(result.out, "step_applied")] == [
        (step, 1) for step in range(1, 13)
    ]
    losses = {int(str(event["step"])): float(str(event["loss"])) for event in told(result.out, "validated")}
    assert list(losses) == [0, 3, 8, 12], "what is not applied yet is not measured"
    assert losses[12] < losses[0] - 0.5
    model = AutoModelForCausalLM.from_pretrained(base / "saved" / "alone-step12")
    assert model.config.vocab_size == VOCABULARY
    manifest = read_manifest(base / "saved" / "alone-step12")
    assert manifest is not None
    assert (manifest.run_id, manifest.step, manifest.data_index) == ("alone", 12, 12 * 8)


def test_members_share_each_round(psyche: Psyche, base: Path) -> None:
    results = [psyche(*arguments(base, "--members", str(members), "--steps", "4")) for members in (1, 3)]
    assert [result.code for result in results] == [0, 0]
    tokens = [[event["tokens"] for event in told(result.out, "step_trained")] for result in results]
    assert tokens == [[8 * 16] * 4] * 2
    assert [event["trained"] for event in told(results[1].out, "step_applied")] == [3] * 4
    assert [event["total_steps"] for event in told(results[1].out, "run_described")] == [4], "what --steps says, not the run file"


def test_statistics_of_the_optimizer_are_told_and_change_nothing(psyche: Psyche, base: Path) -> None:
    (base / "state.toml").write_text(RUN.replace('"PLACE"', '{ Local = "tokens" }') + DISTRO)
    plain, measured = (psyche(*arguments(base, "--steps", "7", *more)) for more in ((), ("--optim-stats-steps", "2")))
    assert (plain.code, measured.code) == (0, 0), measured.err
    assert told(plain.out, "optimizer_statistics") == []
    found = told(measured.out, "optimizer_statistics")
    assert list(dict.fromkeys(event["step"] for event in found)) == [2, 4, 6]
    groups = [str(event["group"]) for event in found if event["step"] == 6]
    assert "model.layers.*.self_attn.q_proj.weight" in groups
    assert all(0 < float(str(event["update_norm"])) < float(str(event["weight_norm"])) for event in found)
    assert all(0.5 < float(str(event["sign_agreement"])) <= 1 for event in found), "a member alone goes where its momentum points"
    digests = [told(result.out, "epoch_digest")[0]["sha256"] for result in (plain, measured)]
    assert digests[0] == digests[1]


def test_data_of_a_server_is_asked_for_otherwise(psyche: Psyche, base: Path) -> None:
    (base / "state.toml").write_text(RUN.replace('"PLACE"', '{ Server = "127.0.0.1:1" }') + ADAMW)
    refused = psyche(*arguments(base))
    assert (refused.code, "--data" in refused.err) == (2, True)
    assert psyche(*arguments(base, "--data", str(base / "tokens"), "--steps", "1")).code == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--data", "nowhere"), "--data 'nowhere': No such file"),
        (("--validation-data", "nowhere"), "--validation-data 'nowhere': No such file"),
        (("--checkpoint-dir", __file__), "--checkpoint-dir"),
        (("--device", "cuda:77"), "device cuda:77 was asked for, but torch "),
    ],
)
def test_what_is_not_on_this_machine_is_the_user_s_to_mend(
    psyche: Psyche, base: Path, options: tuple[str, ...], said: str
) -> None:
    refused = psyche(*arguments(base, *options))
    assert (refused.code, said in refused.err, refused.out) == (2, True, ""), refused.err


@pytest.mark.parametrize("part", ["train", "validation"])
def test_data_of_another_model_is_named_with_its_plugin(psyche: Psyche, base: Path, part: str) -> None:
    np.full(1000, VOCABULARY, "<u2").tofile(base / "tokens" / part / "0.bin")
    refused = psyche(*arguments(base, "--validation-data", str(base / "tokens" / "validation")))
    assert (refused.code, told(refused.out, "step_trained")) == (1, [])
    assert refused.err.splitlines()[-1] == (
        f"Error: the data plugin Local (psyche-core {__version__}) gave the token id {VOCABULARY}, which is outside the model's "
        f"vocabulary of {VOCABULARY} (was it made for this model?); it cannot be trained on"
    )


def test_more_members_than_samples_are_refused(psyche: Psyche, base: Path) -> None:
    refused = psyche(*arguments(base, "--members", "9"))
    assert refused.code == 2
    assert "8 samples is not enough for 9 members" in refused.err


def test_results_are_applied_two_steps_late_and_replicas_stay_equal() -> None:
    def member() -> Trainer:
        model = ToyModel(seed=1)
        return Trainer(model=model, optimizer=AdamW(AdamWSettings(), model), learning_rate=lambda _: 0.01, micro_batch_size=1)

    trainers = [member() for _ in range(3)]
    run = LocalRun(trainers)
    applied, digests = [], set()
    for step in range(1, 6):
        done = run.train(step, [toy_samples(10 * step + number) for number in range(3)])
        assert done.payload_bytes > 0
        applied.append(run.applied)
        digests.add(trainers[0].full_digest())
    assert applied == [0, 0, 1, 2, 3]
    assert len(digests) == 4
    run.finish()
    assert run.applied == 5
    assert len({trainer.full_digest() for trainer in trainers}) == 1


@pytest.mark.parametrize("given", [True, False], ids=["--data", "state.toml"])
@pytest.mark.parametrize("made", [False, True], ids=["missing", "empty"])
def test_a_data_folder_that_is_missing_or_empty_can_be_mended(psyche: Psyche, base: Path, made: bool, given: bool) -> None:
    """The exit code said that the run had failed."""
    shutil.rmtree(base / "tokens")
    if made:
        (base / "tokens").mkdir()
    result = psyche(*arguments(base, *(("--data", str(base / "tokens")) if given else ())))
    assert result.code == 2
    assert ("has no token files; expected files named" if made else "No such file or directory; ") in result.err
    assert str(base / "tokens") in result.err
