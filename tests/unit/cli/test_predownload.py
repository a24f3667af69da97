"""`psyche predownload`: where the model is afterwards, and what is said when it cannot be had."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from psyche_core.training.checkpoints.manifest import CheckpointFacts, write_manifest
from tests.unit.cli.conftest import Psyche

STATE = Path(__file__).parents[3] / "examples/local_testnet/state.toml"


def make_checkpoint(folder: Path, *, run_id: str = "first-light") -> Path:
    folder.mkdir(parents=True)
    save_file({"w": torch.ones(64, 8)}, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    write_manifest(folder, CheckpointFacts(run_id=run_id, step=7, epoch=1, data_index=56))
    return folder


def test_a_local_folder_is_checked_and_named(psyche: Psyche, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model")
    result = psyche("predownload", "--hub-repo", "model", "--base", tmp_path)
    assert result.code == 0
    assert "the model of step 7 of run first-light" in result.out
    assert str(folder) in result.out


def test_what_a_stranger_wrote_into_a_checkpoint_cannot_write_to_the_terminal(psyche: Psyche, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", run_id="evil\x1b[2J\n\u202e")
    result = psyche("predownload", "--hub-repo", folder)
    assert result.code == 0
    assert "evil\\x1b[2J\\n\\u202e" in result.out
    assert result.out.rstrip("\n").isprintable()


def test_a_damaged_model_is_one_sentence(psyche: Psyche, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model")
    shard = folder / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-4] + b"evil")
    result = psyche("predownload", "--hub-repo", "model", "--base", tmp_path)
    assert result.code == 1
    assert result.err.startswith("Error: tensor w of")
    assert "Traceback" not in result.err


def test_a_bucket_is_downloaded_into_the_cache(psyche: Psyche, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as bucket:
        make_checkpoint(Path(bucket) / "runs/x-step7")
        arguments = ["--gcs-bucket", f"file://{bucket}", "--gcs-prefix", "runs/x-step7", "--cache-dir", tmp_path / "cache"]
        result = psyche("predownload", *arguments)
    assert result.code == 0
    assert "downloading model.safetensors" in result.err
    folder = Path(result.out.rpartition(" is in ")[2].strip())
    assert folder.is_relative_to(tmp_path / "cache")
    assert (folder / "model.safetensors").is_file()


def test_a_url_names_the_model(psyche: Psyche, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model")
    result = psyche("predownload", "--model-store", folder.as_uri())
    assert result.code == 0
    assert str(folder) in result.out


def test_a_run_file_names_the_model_from_any_folder(psyche: Psyche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = psyche("predownload", "--state", STATE)
    assert result.code == 0
    assert "examples/local_testnet/model" in result.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "expected exactly one of"),
        (["--hub-repo", "a", "--gcs-bucket", "b"], "expected exactly one of"),
        (["--model-store", "gs://abc", "--gcs-bucket", "b"], "expected exactly one of"),
        (["--model-store", "nowhere"], "is not the URL of a model store; expected hf://"),
        (["--gcs-bucket", "b", "--revision", "c"], "--revision needs --hub-repo"),
        (["--hub-repo", "a", "--gcs-prefix", "c"], "--gcs-prefix needs --gcs-bucket"),
    ],
)
def test_unclear_questions_are_refused(psyche: Psyche, arguments: list[str], sentence: str) -> None:
    result = psyche("predownload", *arguments)
    assert result.code == 2
    assert sentence in result.err


@pytest.mark.parametrize("made", [False, True], ids=["missing", "empty"])
def test_a_folder_that_is_missing_or_empty_can_be_mended(psyche: Psyche, tmp_path: Path, made: bool) -> None:
    if made:
        (tmp_path / "model").mkdir()
    result = psyche("predownload", "--hub-repo", "./model", "--base", tmp_path)
    assert result.code == 2
    assert ("is empty; expected a model" if made else "there is no folder") in result.err


def test_a_bucket_without_a_checkpoint_can_be_mended(psyche: Psyche, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as bucket:
        result = psyche("predownload", "--gcs-bucket", f"file://{bucket}", "--cache-dir", tmp_path / "cache")
    assert result.code == 2
    assert "contains no checkpoint" in result.err


def test_its_options_are_those_of_a_backend_and_not_of_a_transport(psyche: Psyche) -> None:
    plain, of_solana = psyche("predownload", "--help").out, psyche("predownload", "--backend", "solana", "--help").out
    assert "--iroh-relay" not in plain
    assert "--ws-rpc" not in plain
    assert "--ws-rpc" in of_solana
