from __future__ import annotations

from pathlib import Path

import pytest

from psyche_core.errors import ModelError
from psyche_core.storage.checkpoint_names import checkpoint_path, checkpoints
from psyche_core.training.checkpoints.checkpoint import (
    keep_last,
    remove_between,
    remove_leftovers,
    set_aside,
    set_aside_sentence,
)
from psyche_core.training.checkpoints.initial_model import belongs
from psyche_core.training.checkpoints.manifest import CheckpointFacts, write_manifest


def make(folder: Path, run_id: str, *steps: int) -> None:
    for step in steps:
        path = checkpoint_path(folder, run_id, step)
        path.mkdir()
        (path / "config.json").write_text("{}")


def make_in_mid_epoch(folder: Path, *steps: int) -> None:
    make(folder, "run", *steps)
    for step in steps:
        write_manifest(
            folder / f"run-step{step}", CheckpointFacts(run_id="run", step=step, epoch=0, data_index=0, mid_epoch=True)
        )


def steps_in(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("run-step")) for path in checkpoints(folder, "run")]


def test_oldest_are_deleted_by_step_and_not_by_name(tmp_path: Path) -> None:
    make(tmp_path, "run", 9, 100, 20)
    assert keep_last(tmp_path, "run", 2) == [tmp_path / "run-step9"]
    assert checkpoints(tmp_path, "run") == [tmp_path / "run-step20", tmp_path / "run-step100"]


def test_what_was_saved_in_mid_epoch_pushes_no_epochs_end_out_and_goes_with_the_next(tmp_path: Path) -> None:
    make(tmp_path, "run", 10, 20, 30)
    make_in_mid_epoch(tmp_path, 25, 32, 34, 36)
    assert [path.name for path in keep_last(tmp_path, "run", 2)] == ["run-step10", "run-step25", "run-step32", "run-step34"]
    assert steps_in(tmp_path) == [20, 30, 36]
    make(tmp_path, "run", 40)
    keep_last(tmp_path, "run", 2)
    assert steps_in(tmp_path) == [30, 40]


def test_only_what_says_that_it_is_of_mid_epoch_makes_room_for_the_next(tmp_path: Path) -> None:
    make(tmp_path, "run", 1, 2, 3, 4, 6)
    (tmp_path / "run-step3" / "psyche.json").write_text("damaged, which says nothing")
    make_in_mid_epoch(tmp_path, 5)
    remove_between(tmp_path, "run", after=1, before=6, instance=b"")
    assert steps_in(tmp_path) == [1, 2, 3, 4, 6]


def test_other_runs_and_other_files_are_left_alone(tmp_path: Path) -> None:
    make(tmp_path, "run", 1, 2)
    make(tmp_path, "run-step1", 1, 2)  # a run whose name looks like a checkpoint of ours
    make(tmp_path, "rerun", 1)
    (tmp_path / "run-step3").write_text("a file")
    (tmp_path / "run-stepdown").mkdir()
    assert keep_last(tmp_path, "run", 1) == [tmp_path / "run-step1"]
    left = {"rerun-step1", "run-step1-step1", "run-step1-step2", "run-step2", "run-step3", "run-stepdown"}
    assert {path.name for path in tmp_path.iterdir()} == left


def test_run_ids_do_not_escape_the_folder(tmp_path: Path) -> None:
    assert checkpoint_path(tmp_path, "../a/b c", 3) == tmp_path / ".._a_b_c-step3"


def test_run_ids_are_no_patterns(tmp_path: Path) -> None:
    make(tmp_path, "run", 1, 2)
    assert checkpoints(tmp_path, "r*n") == []


def test_fewer_than_the_limit_stay(tmp_path: Path) -> None:
    make(tmp_path, "run", 1)
    assert keep_last(tmp_path, "run", 3) == []
    assert keep_last(tmp_path / "absent", "run", 3) == []


def test_last_checkpoint_is_never_deleted(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one"):
        keep_last(tmp_path, "run", 0)


def test_directory_that_cannot_be_deleted_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "run", 1, 2)

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("shutil.rmtree", refuse)
    with pytest.raises(ModelError, match="run-step1: Permission denied"):
        keep_last(tmp_path, "run", 1)


def test_later_steps_than_the_run_can_have_are_set_aside_and_neither_counted_nor_deleted(tmp_path: Path) -> None:
    make(tmp_path, "run", 3, 6, 9, 20)
    make(tmp_path, "other", 20)
    assert set_aside(tmp_path, "run", above=6) == [tmp_path / "run-step9-abandoned", tmp_path / "run-step20-abandoned"]
    assert checkpoints(tmp_path, "run") == [tmp_path / "run-step3", tmp_path / "run-step6"]
    assert checkpoints(tmp_path, "other") == [tmp_path / "other-step20"]
    assert keep_last(tmp_path, "run", 1) == [tmp_path / "run-step3"]
    assert set_aside(tmp_path, "run", above=6) == []
    assert (tmp_path / "run-step9-abandoned" / "config.json").exists()


def test_a_run_that_goes_back_often_keeps_every_history(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        make(tmp_path, "run", 9)
        names += [path.name for path in set_aside(tmp_path, "run", above=6)]
    assert names == ["run-step9-abandoned", "run-step9-abandoned-2", "run-step9-abandoned-3"]
    assert checkpoints(tmp_path, "run") == []


def test_what_is_of_another_history_is_set_aside_whatever_its_step(tmp_path: Path) -> None:
    """We were away when the run went back to step 3; it is at step 30 now."""
    make(tmp_path, "run", 3, 6, 9, 12)
    for step, digest, generation in ((3, b"e" * 32, 0), (6, b"f" * 32, 0), (9, b"", 1)):
        facts = CheckpointFacts(run_id="run", step=step, epoch=0, data_index=0, digest=digest, generation=generation)
        write_manifest(tmp_path / f"run-step{step}", facts)
    (tmp_path / "run-step12/psyche.json").write_text("damaged, which says nothing")
    moved = set_aside(tmp_path, "run", above=30, trusted=belongs(b"", 1, {3: b"e" * 32}))
    assert moved == [tmp_path / "run-step6-abandoned"]


@pytest.mark.parametrize(
    ("instance", "why"),
    [(b"o" * 32, "of another run of this name"), (b"i" * 32, "of a history that the run, which is at step 6, has left")],
)
def test_why_a_checkpoint_is_set_aside_is_told(tmp_path: Path, instance: bytes, why: str) -> None:
    """Both were told as possible, though its manifest says which."""
    make(tmp_path, "run", 9)
    facts = CheckpointFacts(run_id="run", step=9, epoch=0, data_index=0, digest=b"d" * 32, instance=instance)
    write_manifest(tmp_path / "run-step9", facts)
    (path,) = set_aside(tmp_path, "run", above=6)
    said = set_aside_sentence(path, above=6, instance=b"i" * 32)
    before = tmp_path / "run-step9"
    assert said == f"the checkpoint {before} is not used: it is {why}; it was renamed to run-step9-abandoned"


def test_what_cannot_be_set_aside_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "run", 2)

    def refuse(path: Path, _: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(ModelError, match=r"run-step2, which is no longer part of the run's history: Permission denied"):
        set_aside(tmp_path, "run", above=1)


def test_what_a_killed_process_left_half_written_is_removed_and_nothing_else(tmp_path: Path) -> None:
    half = f".a-run-step4.{'0' * 32}.partial"
    others = ["a-run-step3", f".a-run-stepson-step4.{'0' * 32}.partial", f".b-step4.{'0' * 32}.partial", ".a-run-step4.resume"]
    for name in (half, *others):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"x")
    remove_leftovers(tmp_path, "a-run")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)
