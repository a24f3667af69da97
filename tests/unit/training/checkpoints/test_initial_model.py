"""Where a starting member builds its model from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from safetensors.torch import save_file

from psyche_core.config.run_config import Choice
from psyche_core.errors import ModelError
from psyche_core.storage.checkpoint_names import MANIFEST_FILE, checkpoint_path, checkpoints
from psyche_core.training.checkpoints.checkpoint import keep_last, save_checkpoint
from psyche_core.training.checkpoints.initial_model import FROM_MEMBERS, NoModelSource, Origin, find_origin, held
from psyche_core.training.checkpoints.manifest import CheckpointFacts, read_manifest, verify
from psyche_core.types import Decision

P2P = Choice("P2P", {"repo_id": "nowhere"})


END = b"e" * 32


def save(
    own: Path,
    step: int,
    *,
    run_id: str = "a run",
    digest: bytes = b"",
    generation: int = 0,
    instance: bytes = b"i" * 32,
    decision: Decision | None = None,
) -> Path:
    def write(folder: Path) -> None:
        folder.mkdir()
        save_file({"w": torch.full((4, 4), float(step))}, folder / "model.safetensors")
        (folder / "config.json").write_text("{}")

    directory = checkpoint_path(own, run_id, step)
    facts = CheckpointFacts(
        run_id=run_id,
        step=step,
        epoch=0,
        data_index=0,
        digest=digest,
        generation=generation,
        instance=instance,
        decision=decision,
    )
    save_checkpoint(directory, facts, write=write)
    return directory


def damage(directory: Path) -> None:
    shard = directory / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-2] + b"no")


def find(
    tmp_path: Path,
    checkpoint: Choice = P2P,
    *,
    at_most: int = 100,
    fresh: bool = False,
    generation: int = 0,
    ends: Mapping[int, bytes] = MappingProxyType({}),
    stored_step: int | None = None,
    instance: bytes = b"i" * 32,
    conflicts: Callable[[Decision], bool] = lambda _: False,
) -> tuple[Origin, list[str]]:
    told: list[str] = []
    origin = find_origin(
        checkpoint,
        run_id="a run",
        instance=instance,
        base=tmp_path,
        cache=tmp_path / "cache",
        own=tmp_path / "own",
        at_most=at_most,
        fresh=fresh,
        generation=generation,
        ends=ends,
        stored_step=stored_step,
        conflicts=conflicts,
        report=told.append,
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
        save_checkpoint(directory, CheckpointFacts(run_id="a run", step=7, epoch=0, data_index=0), write=write)
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
    damage(tmp_path / "own/a_run-step9")
    origin, told = find(tmp_path)
    assert origin.step == 3
    assert "is ignored" in told[0]
    assert "renamed to a_run-step9-damaged, so that older checkpoints are kept" in told[0]
    assert "the client uses an older checkpoint or the run's stored model instead" in told[0]
    assert "download" not in told[0], "nobody has to do anything"


def test_a_checkpoint_without_its_manifest_is_told(tmp_path: Path) -> None:
    save(tmp_path, 3)
    (save(tmp_path, 5) / MANIFEST_FILE).unlink()
    told: list[str] = []
    origin = find_origin(
        P2P, run_id="a run", instance=b"i" * 32, base=tmp_path, cache=tmp_path, own=tmp_path, at_most=9, report=told.append
    )
    assert origin.step == 3
    (said,) = told
    assert f"our own checkpoint {checkpoint_path(tmp_path, 'a run', 5)} is ignored: it has no {MANIFEST_FILE}" in said


def test_a_damaged_checkpoint_does_not_count_among_those_that_are_kept(tmp_path: Path) -> None:
    for step in (3, 9):
        save(tmp_path / "own", step)
    damage(tmp_path / "own/a_run-step9")
    find(tmp_path)
    save(tmp_path / "own", 12)
    assert keep_last(tmp_path / "own", "a run", 2) == []
    assert sorted(path.name for path in (tmp_path / "own").iterdir()) == ["a_run-step12", "a_run-step3", "a_run-step9-damaged"]


@pytest.mark.parametrize("place", [".", "", "models"])
def test_a_folder_is_not_used_once_a_member_has_named_the_place(tmp_path: Path, place: str) -> None:
    """It could name any folder of ours, which then ended us: the members describe the model."""
    (tmp_path / "models").mkdir()
    for stored in (None, 0):
        assert find(tmp_path, Choice("P2P", {"repo_id": place}), stored_step=stored)[0].folder.is_dir()
    with pytest.raises(NoModelSource):
        find(tmp_path, Choice("P2P", {"repo_id": place}), stored_step=12)


def test_without_a_copy_a_local_folder_says_how_the_model_is_built(tmp_path: Path) -> None:
    (tmp_path / "nowhere").mkdir()
    save(tmp_path / "own", 9)
    assert find(tmp_path, fresh=True)[0] == Origin(tmp_path / "nowhere")


def test_without_anything_the_members_are_asked(tmp_path: Path) -> None:
    with pytest.raises(NoModelSource, match="no copy of the model of run a run"):
        find(tmp_path)


def test_a_checkpoint_of_a_history_that_the_run_has_left_is_told_and_passed_over(tmp_path: Path) -> None:
    """The run went back to step 3 while we were away, and is at step 20 by now."""
    save(tmp_path / "own", 3, digest=END)
    save(tmp_path / "own", 9, digest=b"9" * 32)
    origin, told = find(tmp_path, at_most=20, generation=1, ends={3: END})
    assert origin == Origin(tmp_path / "own/a_run-step3", 3)
    assert len(told) == 1
    assert "a_run-step9 is ignored: it belongs to an earlier run" in told[0]
    with pytest.raises(NoModelSource):
        find(tmp_path, at_most=20, generation=1, ends={3: b"f" * 32})
    with pytest.raises(NoModelSource):
        find(tmp_path, at_most=20, generation=1)


def test_an_end_of_the_same_generation_that_members_signed_otherwise_is_passed_over(tmp_path: Path) -> None:
    """The coordinator was restored from an older state, and others played the epoch anew."""
    save(tmp_path / "own", 3, digest=b"a" * 32)
    save(tmp_path / "own", 9, digest=b"b" * 32)
    assert find(tmp_path, ends={3: b"a" * 32})[0].step == 9
    origin, told = find(tmp_path, ends={9: END})
    assert origin.step == 3
    assert "is ignored" in str(told)


def test_an_end_that_a_quorum_signed_is_used_in_any_generation(tmp_path: Path) -> None:
    """Also where the coordinator came back with an older state, which knows a smaller generation."""
    save(tmp_path / "own", 9, digest=END, generation=2)
    for generation in (1, 2, 3):
        assert find(tmp_path, generation=generation, ends={9: END})[0].step == 9
    assert find(tmp_path, generation=2)[0].step == 9


STORED = Choice("Hub", {"repo_id": "stored"})


def store(tmp_path: Path, step: int | None) -> Path:
    """A stored model of the run after that step; None: one that says nothing of a run."""
    folder = tmp_path / "stored"
    if step is None:
        folder.mkdir()
    else:
        save(tmp_path, step).rename(folder)
    return folder


@pytest.mark.parametrize("step", [None, 4, 8])
def test_our_own_newer_checkpoint_comes_before_a_stored_model(tmp_path: Path, step: int | None) -> None:
    store(tmp_path, step)
    save(tmp_path / "own", 9)
    assert find(tmp_path, STORED)[0] == Origin(tmp_path / "own/a_run-step9", 9)


@pytest.mark.parametrize("step", [9, 12])
def test_a_stored_model_that_is_as_new_comes_before_our_own_checkpoint(tmp_path: Path, step: int) -> None:
    folder = store(tmp_path, step)
    save(tmp_path / "own", 9)
    assert find(tmp_path, STORED)[0] == Origin(folder, stored_step=step)


@pytest.mark.parametrize("stored_step", [None, 12])
def test_a_stored_model_that_is_newer_than_the_run_does_not_hide_our_own_checkpoint(
    tmp_path: Path, stored_step: int | None
) -> None:
    """The run went back behind it. With the stored one nobody could begin, though our disk has what the run needs."""
    folder = store(tmp_path, 12)
    save(tmp_path / "own", 9)
    assert find(tmp_path, STORED, at_most=9, stored_step=stored_step)[0].step == 9
    assert find(tmp_path, STORED, at_most=9, stored_step=stored_step, fresh=True)[0] == Origin(folder, stored_step=12)
    assert find(tmp_path, STORED, at_most=12, stored_step=stored_step)[0] == Origin(folder, stored_step=12)


def test_a_checkpoint_whose_last_step_was_decided_again_is_not_ours_unless_it_was_signed(tmp_path: Path) -> None:
    """A coordinator that was restored from an older state decides steps again, in the same generation."""
    decision = Decision(step=9, epoch=0, height=8, statements=b"s" * 32)
    save(tmp_path / "own", 7, decision=replace(decision, step=7, height=6))
    save(tmp_path / "own", 9, decision=decision, digest=END)

    def conflicts(known: Decision) -> bool:
        return known == decision

    origin, told = find(tmp_path, conflicts=conflicts)
    assert origin.step == 7
    assert len(told) == 1
    assert "a history that the run has left" in told[0]
    assert find(tmp_path, conflicts=conflicts, ends={9: END})[0].step == 9
    assert find(tmp_path)[0].step == 9


def test_where_the_epoch_begins_with_the_stored_model_all_take_it_whatever_they_saved(tmp_path: Path) -> None:
    folder = store(tmp_path, None)
    save(tmp_path / "own", 9)
    assert find(tmp_path, STORED, fresh=True)[0] == Origin(folder)
    assert find(tmp_path, STORED, generation=1)[0] == Origin(folder), "what we saved is of a history that was left"


def test_nothing_is_fetched_where_the_coordinator_says_that_our_own_is_newer(tmp_path: Path) -> None:
    save(tmp_path / "own", 9)
    nowhere = Choice("Gcs", {"bucket": f"file://{tmp_path}/absent"})
    origin, told = find(tmp_path, nowhere, stored_step=8)
    assert (origin.step, told) == (9, [])


@pytest.mark.parametrize("checkpoint", [Choice("Gcs", {"bucket": "file:///absent/folder"}), Choice("Dummy", None)])
def test_where_no_stored_model_is_to_be_had_our_own_is_used_and_that_is_told(tmp_path: Path, checkpoint: Choice) -> None:
    save(tmp_path / "own", 9)
    origin, told = find(tmp_path, checkpoint)
    assert origin.step == 9
    assert "the stored model is unavailable, so our own checkpoint of step 9 is used: " in told[-1]
    with pytest.raises(ModelError):
        find(tmp_path, checkpoint, fresh=True)


def test_only_signed_ends_that_lie_whole_in_our_folder_are_held(tmp_path: Path) -> None:
    own = tmp_path / "own"
    ends = {step: bytes((step,)) * 32 for step in (3, 6, 9, 12, 15)}
    for step in (3, 6, 9, 10):
        save(own, step, digest=ends.get(step, b"x" * 32))
    save(own, 12, digest=ends[3])
    save(own, 15, digest=ends[15], run_id="another run")
    told: list[str] = []
    assert held(own, "a run", ends) == ((3, ends[3]), (6, ends[6]), (9, ends[9]))
    damage(own / "a_run-step6")
    assert held(own, "a run", ends, report=told.append) == ((3, ends[3]), (9, ends[9]))
    assert "our own checkpoint is not offered: tensor w" in told[0]
    assert held(own, "a run", {}) == held(tmp_path / "absent", "a run", ends) == ()


def test_a_checkpoint_of_an_earlier_run_of_this_name_is_passed_over(tmp_path: Path) -> None:
    """Seen on a running system: a run begun anew took the model of the run before it, and nothing told."""
    save(tmp_path / "own", 8, instance=b"before".ljust(32))
    ours = save(tmp_path / "own", 3)
    origin, told = find(tmp_path)
    assert origin == Origin(ours, 3)
    assert "step8 is ignored" in told[0]


def test_a_stored_model_of_an_earlier_run_of_this_name_says_no_step(tmp_path: Path) -> None:
    stored = save(tmp_path / "shared", 8, instance=b"before".ljust(32))
    ours = save(tmp_path / "own", 3)
    assert find(tmp_path, Choice("Hub", {"repo_id": str(stored)}))[0] == Origin(ours, 3)
    assert find(tmp_path, Choice("Hub", {"repo_id": str(stored)}), fresh=True)[0] == Origin(stored)


def test_an_end_that_members_signed_is_known_by_its_digest_whatever_else_it_says(tmp_path: Path) -> None:
    ours = save(tmp_path / "own", 8, digest=END, instance=b"")
    assert find(tmp_path, ends={8: END})[0] == Origin(ours, 8)
