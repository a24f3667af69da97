"""The optimizer's public state in a checkpoint: written, read, left out, damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from psyche_core.builtin import hooks
from psyche_core.config.run_config import ModelConfig
from psyche_core.errors import ModelError
from psyche_core.storage.checkpoint_names import MANIFEST_FILE
from psyche_core.training.build import build_trainer
from psyche_core.training.checkpoints.checkpoint import save_checkpoint
from psyche_core.training.checkpoints.manifest import STATE_FILE, CheckpointFacts, read_manifest, verify
from psyche_core.training.digest import full_digest
from psyche_core.training.trainer import Trainer
from psyche_optim_distro import hooks as distro_hooks
from tests.unit.training.trainer_cases import LLAMA, samples

FACTS = CheckpointFacts(run_id="a run", step=6, epoch=0, data_index=48)
WITH_STATE = {"Distro": {"compression_topk": 4, "compression_chunk": 16, "quantize_1bit": True, "second_stage": "rmsprop"}}
WITHOUT = {"Distro": {"compression_topk": 4, "compression_chunk": 16, "quantize_1bit": True}}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def load(kind: str, name: str) -> Any:
    hook: dict[str, Callable[[], list[Any]]] = {
        "model": hooks.psyche_register_models,
        "optimizer": lambda: [*hooks.psyche_register_optimizers(), *distro_hooks.psyche_register_optimizers()],
    }
    return next(registration for registration in hook[kind]() if registration.name == name)


def build(source: Path, optimizer: dict[str, Any] = WITH_STATE) -> Trainer:
    llm = {
        "max_seq_len": 16,
        "cold_start_warmup_steps": 0,
        "architecture": "HfLlama",
        "checkpoint": {"Hub": {"repo_id": "model"}},
        "data_type": "Pretraining",
        "data_location": "Dummy",
        "lr_schedule": {"Constant": {"base_lr": 0.01, "warmup_init_lr": 0.0, "warmup_steps": 0}},
        "optimizer": optimizer,
    }
    return build_trainer(registry_load=load, model_config=ModelConfig.model_validate({"LLM": llm}), run_id="r", source=source)


def train(trainer: Trainer, first: int, last: int) -> None:
    for step in range(first, last + 1):
        trainer.apply(step, [trainer.train(step, samples(step)).payload], own_accepted=True)


def save(trainer: Trainer, folder: Path) -> Path:
    save_checkpoint(folder, FACTS, write=trainer.save)
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "source"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return folder


@pytest.fixture(scope="module")
def trained(source: Path) -> Trainer:
    trainer = build(source)
    train(trainer, 1, 6)
    return trainer


@pytest.fixture
def checkpoint(trained: Trainer, tmp_path: Path) -> Path:
    return save(trained, tmp_path / "checkpoint")


def state_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return dict(trainer._optimizer.public_state)


def test_a_checkpoint_holds_masters_and_state_bit_for_bit(checkpoint: Path, trained: Trainer) -> None:
    again = build(checkpoint)
    assert again.full_digest() == trained.full_digest() != full_digest(trained._optimizer.masters)
    names = sorted(path.name for path in checkpoint.iterdir())
    assert names == ["config.json", "model.safetensors", MANIFEST_FILE, STATE_FILE]
    manifest = read_manifest(checkpoint)
    assert manifest is not None
    assert manifest.version == 5
    assert {entry.file for name, entry in manifest.tensors.items() if name.startswith("public_state/")} == {STATE_FILE}
    verify(checkpoint, manifest)


def test_training_goes_on_with_the_same_bits(checkpoint: Path, source: Path) -> None:
    """Both have no private state then: one was rebuilt from its checkpoint, the other forgot it."""
    stayed, again = build(source), build(checkpoint)
    train(stayed, 1, 6)
    stayed.forget()
    for trainer in (stayed, again):
        train(trainer, 7, 12)
    assert again.full_digest() == stayed.full_digest()


def test_transformers_reads_the_folder(checkpoint: Path, trained: Trainer) -> None:
    import transformers

    auto: Any = transformers.AutoModelForCausalLM
    module, found = auto.from_pretrained(checkpoint, dtype=torch.float32, output_loading_info=True)
    assert not any(found[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    masters = trained._optimizer.masters
    assert full_digest(dict(module.named_parameters())) == full_digest(masters)


def test_the_file_alone_can_be_read_with_safetensors(checkpoint: Path, trained: Trainer) -> None:
    found = load_file(checkpoint / STATE_FILE)
    assert list(found) == sorted(found) == [f"public_state/{name}" for name in state_of(trained)]
    for name, tensor in state_of(trained).items():
        assert torch.equal(found[f"public_state/{name}"], tensor)


# ------------------------------------------------------------------------------------------------------------ none there


def test_without_public_state_files_are_what_they_were(source: Path, tmp_path: Path) -> None:
    trainer = build(source, WITHOUT)
    train(trainer, 1, 3)
    folder = save(trainer, tmp_path / "checkpoint")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", MANIFEST_FILE]
    manifest = read_manifest(folder)
    assert manifest is not None
    assert manifest.version == 4
    assert not [name for name in manifest.tensors if "public_state" in name]


def test_a_checkpoint_without_state_gives_a_state_of_zeros(source: Path, tmp_path: Path) -> None:
    """An older one, or of another optimizer; its digest is the one it was saved with."""
    without = build(source, WITHOUT)
    train(without, 1, 3)
    trainer = build(save(without, tmp_path / "checkpoint"))
    assert state_of(trainer)
    assert not any(bool(tensor.any()) for tensor in state_of(trainer).values())
    assert trainer.full_digest() == without.full_digest()


@pytest.mark.parametrize("content", ["false", "damaged"])
def test_a_file_that_the_manifest_does_not_list_is_not_read(source: Path, trained: Trainer, tmp_path: Path, content: str) -> None:
    """It would change the model without changing what the manifest says."""
    without = build(source, WITHOUT)
    train(without, 1, 3)
    folder = save(without, tmp_path / "checkpoint")
    if content == "damaged":
        (folder / STATE_FILE).write_bytes(b"no safetensors")
    else:
        state = {f"public_state/{name}": tensor + 1 for name, tensor in state_of(trained).items()}
        save_file(state, folder / STATE_FILE, metadata={"psyche_public_state": "1"})
    again = build(folder)
    assert again.full_digest() == without.full_digest()
    assert not any(bool(tensor.any()) for tensor in state_of(again).values())


def test_an_optimizer_without_state_does_not_look_at_the_file(checkpoint: Path, trained: Trainer) -> None:
    (checkpoint / STATE_FILE).write_bytes(b"no safetensors")
    assert build(checkpoint, WITHOUT).full_digest() == full_digest(trained._optimizer.masters)


def test_a_description_without_weights_needs_no_state(checkpoint: Path) -> None:
    """What a bucket's checkpoint is fetched without; the weights come from members then."""
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / STATE_FILE).unlink()
    assert not any(bool(tensor.any()) for tensor in state_of(build(checkpoint)).values())


# ---------------------------------------------------------------------------------------------------------------- damaged


def refused(folder: Path) -> str:
    """The one sentence."""
    with pytest.raises(ModelError) as error:
        build(folder)
    assert "\n" not in str(error.value)
    assert "public_state" in str(error.value)
    return str(error.value)


def test_a_listed_file_that_is_missing_is_one_sentence(checkpoint: Path) -> None:
    (checkpoint / STATE_FILE).unlink()
    assert "is incomplete" in refused(checkpoint)


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("how", ["cut", "empty", "text", "folder"])
def test_a_damaged_file_is_one_sentence(checkpoint: Path, how: str, *, listed: bool) -> None:
    path = checkpoint / STATE_FILE
    if not listed:
        (checkpoint / MANIFEST_FILE).unlink()
    content = path.read_bytes()
    path.unlink()
    if how == "folder":
        path.mkdir()
    else:
        path.write_bytes({"cut": content[:-5], "empty": b"", "text": b"hello" * 20}[how])
    refused(checkpoint)


def test_a_flipped_bit_is_one_sentence_where_the_manifest_lists_the_file(checkpoint: Path) -> None:
    content = bytearray((checkpoint / STATE_FILE).read_bytes())
    content[-1] ^= 1
    (checkpoint / STATE_FILE).write_bytes(content)
    assert "differs from the one listed" in refused(checkpoint)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: {**state, "public_state/correction": torch.zeros(2)}, r"must have shape \(1,\), got \(2,\)"),
        (lambda state: {name: state[name] for name in list(state)[1:]}, "missing or unknown: correction"),
        (lambda state: {**state, "public_state/more": torch.zeros(2)}, "missing or unknown: more"),
        (lambda state: {**state, "w": torch.zeros(2)}, "tensor w, which is no public state"),
        (lambda state: {**state, "public_state/correction": torch.full((1,), float("nan"))}, "NaN or infinite"),
        (lambda state: {**state, "public_state/correction": torch.zeros(1, dtype=torch.float64)}, "stored as F64, expected F32"),
        (lambda state: {**state, "public_state/correction": torch.full((1,), -0.5)}, "correction .* holds values below 0"),
        (lambda state: {name: tensor - 1 for name, tensor in state.items()}, "holds values below 0 or NaN"),
    ],
)
def test_a_file_of_another_optimizer_is_one_sentence(
    checkpoint: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], message: str
) -> None:
    (checkpoint / MANIFEST_FILE).unlink()
    state = change(load_file(checkpoint / STATE_FILE))
    save_file(state, checkpoint / STATE_FILE, metadata={"psyche_public_state": "1"})
    with pytest.raises(ModelError, match=message):
        build(checkpoint)
    refused(checkpoint)


@pytest.mark.parametrize("metadata", [None, {"psyche_public_state": "2"}])
def test_a_file_of_another_version_is_one_sentence(checkpoint: Path, metadata: dict[str, str] | None) -> None:
    (checkpoint / MANIFEST_FILE).unlink()
    save_file(load_file(checkpoint / STATE_FILE), checkpoint / STATE_FILE, metadata=metadata)
    assert "version" in refused(checkpoint)


def test_what_cannot_be_saved_is_one_sentence_and_leaves_nothing(trained: Trainer, tmp_path: Path) -> None:
    """The name of the file is taken by a folder that the model wrote."""
    from psyche_core.training.checkpoints.public_state import save_with_public_state

    def write(folder: Path) -> None:
        (folder / STATE_FILE).mkdir(parents=True)

    with pytest.raises(ModelError, match="cannot save the optimizer's public state"):
        save_with_public_state(tmp_path / "made", state_of(trained), write=write)
    assert list(tmp_path.iterdir()) == []


def test_a_copy_into_another_folder_is_as_good(checkpoint: Path, tmp_path: Path, trained: Trainer) -> None:
    """As a store of models does it."""
    shutil.copytree(checkpoint, tmp_path / "copy")
    assert build(tmp_path / "copy").full_digest() == trained.full_digest()
