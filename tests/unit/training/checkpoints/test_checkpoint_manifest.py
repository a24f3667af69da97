"""`psyche.json`: what it says of a checkpoint, and what it notices."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from psyche_core.errors import ModelError
from psyche_core.storage.checkpoint_names import MANIFEST_FILE
from psyche_core.training.checkpoints.manifest import (
    CheckpointFacts,
    decision_in,
    parse_manifest,
    read_manifest,
    total_bytes,
    verify,
    write_manifest,
)
from psyche_core.types import Decision

FACTS = CheckpointFacts(run_id="run", step=40, epoch=2, data_index=320)
TENSORS = {"a": torch.arange(12, dtype=torch.float32).reshape(3, 4), "b": torch.ones(5, dtype=torch.bfloat16)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint in two shards."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    save_file({"a": TENSORS["a"]}, folder / "model-00001-of-00002.safetensors")
    save_file({"b": TENSORS["b"]}, folder / "model-00002-of-00002.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


def test_every_part_has_its_digest(folder: Path) -> None:
    manifest = write_manifest(folder, FACTS)
    assert read_manifest(folder) == manifest
    assert (manifest.run_id, manifest.step, manifest.epoch, manifest.data_index) == ("run", 40, 2, 320)
    assert manifest.tensors["a"].sha256 == hashlib.sha256(TENSORS["a"].numpy().tobytes()).hexdigest()
    assert (manifest.tensors["b"].dtype, manifest.tensors["b"].shape) == ("BF16", (5,))
    assert manifest.files["config.json"].sha256 == hashlib.sha256(b"{}").hexdigest()
    assert manifest.file_names == ("config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    assert total_bytes(manifest) == 12 * 4 + 5 * 2 + 2
    verify(folder, manifest)


def test_two_sets_of_masters_of_one_step_are_told_apart(folder: Path) -> None:
    facts = CheckpointFacts(run_id="run", step=40, epoch=2, data_index=320, digest=bytes(range(32)), generation=3)
    manifest = write_manifest(folder, facts)
    assert read_manifest(folder) == manifest
    assert (manifest.version, manifest.digest, manifest.generation) == (4, bytes(range(32)).hex(), 3)
    unknown = write_manifest(folder, FACTS)
    assert (unknown.digest, unknown.generation) == (None, 0)


def test_runs_of_one_name_are_told_apart(folder: Path) -> None:
    manifest = write_manifest(folder, replace(FACTS, mid_epoch=True, instance=b"\x07" * 32))
    assert read_manifest(folder) == manifest
    assert (manifest.mid_epoch, manifest.instance) == (True, "07" * 32)
    verify(folder, manifest)


def test_what_decided_the_last_step_is_kept(folder: Path) -> None:
    decision = Decision(step=40, epoch=2, height=7, statements=b"\x08" * 32, history=b"\x09" * 32)
    manifest = write_manifest(folder, replace(FACTS, decision=decision))
    found = read_manifest(folder)
    assert found == manifest
    assert found is not None
    assert (found.version, decision_in(found)) == (7, decision)
    before = write_manifest(folder, FACTS)
    assert (before.version, decision_in(before)) == (4, None)
    assert "decision" not in (folder / MANIFEST_FILE).read_text(), "programs that know version 4 can read it"


def test_a_manifest_of_version_6_tells_no_history(folder: Path) -> None:
    decision = Decision(step=40, epoch=2, height=7, statements=b"\x08" * 32)
    content = write_manifest(folder, replace(FACTS, decision=decision)).model_dump(mode="json")
    content["decision"] = {"epoch": 2, "height": 7, "statements": "08" * 32, "slots": [0, 3, 255], "voided": [1]}
    (folder / MANIFEST_FILE).write_text(json.dumps({**content, "version": 6}))
    manifest = read_manifest(folder)
    assert manifest is not None
    assert decision_in(manifest) == decision


def test_a_manifest_of_version_1_is_read(folder: Path) -> None:
    content = write_manifest(folder, FACTS).model_dump(mode="json")
    del content["digest"], content["generation"], content["mid_epoch"], content["instance"]
    (folder / MANIFEST_FILE).write_text(json.dumps({**content, "version": 1}))
    manifest = read_manifest(folder)
    assert manifest is not None
    assert (manifest.version, manifest.step, manifest.digest, manifest.generation) == (1, 40, None, 0)
    verify(folder, manifest)


def flip_a_weight(folder: Path) -> None:
    path = folder / "model-00001-of-00002.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut_a_shard(folder: Path) -> None:
    path = folder / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-3])


def rename_a_tensor(folder: Path) -> None:
    save_file({"c": TENSORS["a"]}, folder / "model-00001-of-00002.safetensors")


def break_the_header(folder: Path) -> None:
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"\xff" * 100)


DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (flip_a_weight, "tensor a of .* differs from the one"),
    (cut_a_shard, "cut or damaged: tensor 'b'"),
    (rename_a_tensor, "tensor (a|c) of .* is not (in its file|listed)"),
    (break_the_header, "not a safetensors file"),
    (lambda folder: (folder / "config.json").write_text("{ }"), "config.json differs from the file"),
    (lambda folder: (folder / "config.json").unlink(), "is incomplete: .*config.json"),
    (lambda folder: (folder / "model-00002-of-00002.safetensors").unlink(), "is incomplete: .*00002-of-00002"),
]


@pytest.mark.parametrize(("damage", "sentence"), DAMAGE, ids=[sentence for _, sentence in DAMAGE])
def test_damage_is_noticed_and_named(folder: Path, damage: Callable[[Path], object], sentence: str) -> None:
    manifest = write_manifest(folder, FACTS)
    damage(folder)
    with pytest.raises(ModelError, match=sentence):
        verify(folder, manifest)


def test_a_file_that_is_not_listed_is_nobodys_business(folder: Path) -> None:
    manifest = write_manifest(folder, FACTS)
    (folder / "README.md").write_text("hello")
    verify(folder, manifest)


def test_a_folder_without_a_manifest_has_none(folder: Path) -> None:
    assert read_manifest(folder) is None


def test_a_tensor_twice_is_refused(folder: Path) -> None:
    save_file({"a": TENSORS["a"]}, folder / "model-00002-of-00002.safetensors")
    with pytest.raises(ModelError, match=r"tensor a is in .* and in"):
        write_manifest(folder, FACTS)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"version": 2}',
        b'{"version": 8, "run_id": "r", "step": 1, "epoch": 0, "data_index": 0, "tensors": {}, "files": {}}',
        b'{"version": 2, "run_id": "r", "step": 1, "epoch": 0, "data_index": 0, "digest": "ff", "tensors": {}, "files": {}}',
        b"\xff",
        b'{"version": 1, "run_id": "r", "step": -1, "epoch": 0, "data_index": 0, "tensors": {}, "files": {}}',
        b'{"version": 1, "run_id": "r", "step": 1, "epoch": 0, "data_index": 0, "tensors": {}, "files": {"../x": '
        b'{"bytes": 1, "sha256": "' + b"0" * 64 + b'"}}}',
    ],
)
def test_what_is_no_manifest_is_one_sentence(text: bytes) -> None:
    with pytest.raises(ModelError, match="is not a checkpoint manifest"):
        parse_manifest(text, source="it")


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_change_of_a_manifest_is_refused_or_read(folder: Path, data: st.DataObject) -> None:
    content = write_manifest(folder, FACTS).model_dump(mode="json")
    place = data.draw(st.sampled_from(sorted(content)))
    content[place] = data.draw(st.sampled_from([None, -1, 2**70, "", "x" * 300, [], {}, {"a": 1}, 1.5, True]))
    text = json.dumps(content).encode()
    try:
        read = parse_manifest(text, source=MANIFEST_FILE)
    except ModelError:
        return
    assert parse_manifest(read.model_dump_json().encode(), source=MANIFEST_FILE) == read
