"""Where a starting member builds its model from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from psyche_core.errors import ModelError
from psyche_core.run_config import Choice
from psyche_core.training.checkpoint import checkpoint_path, checkpoints, save_checkpoint
from psyche_core.training.checkpoint_manifest import MANIFEST_FILE, Facts, read_manifest, verify
from psyche_core.training.origin import FROM_MEMBERS, Origin, SourceMissing, find_origin

P2P = Choice("P2P", {"repo_id": "nowhere"})


def save(own: Path, step: int, *, run_id: str = "a run") -> Path:
    def write(folder: Path) -> None:
        folder.mkdir()
        save_file({"w": torch.full((4, 4), float(step))}, folder / "model.safetensors")
        (folder / "config.json").write_text("{}")

    directory = checkpoint_path(own, run_id, step)
    save_checkpoint(directory, Facts(run_id=run_id, step=step, epoch=0, data_index=0), write=write)
    return directory


def find(tmp_path: Path, checkpoint: Choice = P2P, *, at_most: int = 100, fresh: bool = False) -> tuple[Origin, list[str]]:
    told: list[str] = []
    origin = find_origin(
        checkpoint,
        run_id="a run",
        base=tmp_path,
        cache=tmp_path / "cache",
        own=tmp_path / "own",
        at_most=at_most,
        fresh=fresh,
        tell=told.append,
    )
    return origin, told


def test_a_saved_checkpoint_describes_itself_and_is_whole(tmp_path: Path) -> None:
    directory = save(tmp_path / "own", 7)
    manifest = read_manifest(directory)
    assert manifest is not None
    verify(directory, manifest)
    assert sorted(path.name for path in directory.iterdir()) == ["config.json", "model.safetensors", MANIFEST_FILE]
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["a_run-step7"], "nothing unfinished stays"
    assert save(tmp_path / "own", 7) == directory, "an older one of that name is replaced"


def test_what_fails_while_saving_leaves_nothing_and_keeps_the_older(tmp_path: Path) -> None:
    directory = save(tmp_path / "own", 7)
    before = (directory / MANIFEST_FILE).read_bytes()

    def write(folder: Path) -> None:
        folder.mkdir()
        (folder / "half.safetensors").write_bytes(b"half")
        message = "no space"
        raise ModelError(message)

    with pytest.raises(ModelError, match="no space"):
        save_checkpoint(directory, Facts(run_id="a run", step=7, epoch=0, data_index=0), write=write)
    assert (directory / MANIFEST_FILE).read_bytes() == before
    assert checkpoints(tmp_path / "own", "a run") == [directory]


@pytest.mark.parametrize("kind", FROM_MEMBERS)
def test_our_own_newest_checkpoint_comes_first_in_a_run_of_members(tmp_path: Path, kind: str) -> None:
    settings = {"repo_id": "nowhere"} if kind == "P2P" else {"bucket": "nowhere"}
    for step in (3, 9):
        save(tmp_path / "own", step)
    save(tmp_path / "own", 50, run_id="a run-step4")
    origin, _ = find(tmp_path, Choice(kind, settings))
    assert origin == Origin(tmp_path / "own/a_run-step9", 9)


def test_a_checkpoint_newer_than_the_run_is_of_another_one(tmp_path: Path) -> None:
    for step in (3, 9):
        save(tmp_path / "own", step)
    assert find(tmp_path, at_most=8)[0].step == 3


def test_a_damaged_checkpoint_is_told_and_the_one_before_it_taken(tmp_path: Path) -> None:
    for step in (3, 9):
        save(tmp_path / "own", step)
    shard = tmp_path / "own/a_run-step9/model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-2] + b"no")
    origin, told = find(tmp_path)
    assert origin.step == 3
    assert "passed over" in told[0]


def test_without_a_copy_a_local_folder_says_how_the_model_is_built(tmp_path: Path) -> None:
    (tmp_path / "nowhere").mkdir()
    save(tmp_path / "own", 9)
    assert find(tmp_path, fresh=True)[0] == Origin(tmp_path / "nowhere")


def test_without_anything_the_members_are_asked(tmp_path: Path) -> None:
    with pytest.raises(SourceMissing, match="no copy of the model of run a run"):
        find(tmp_path)


def test_a_stored_model_is_taken_by_all_whatever_they_saved(tmp_path: Path) -> None:
    (tmp_path / "stored").mkdir()
    save(tmp_path / "own", 9)
    assert find(tmp_path, Choice("Hub", {"repo_id": "stored"}))[0] == Origin(tmp_path / "stored")
