"""A damaged or foreign model folder is one sentence that names what is wrong, before anything is trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from psyche_core.builtin.hf_models import create_auto, create_llama
from psyche_core.errors import ModelError
from psyche_core.hookspecs import ModelContext
from psyche_core.testing.tiny_models import DEEPSEEK_V3
from tests.unit.builtin.conftest import ModelFolder

SHARD_BYTES = 20_000


@pytest.fixture
def trained(tmp_path: Path, model_folder: ModelFolder, model_context: Callable[..., ModelContext]) -> Path:
    """A folder with model.safetensors."""
    model = create_llama(model_context(model_folder()))
    model.save(tmp_path / "trained", parameters=model.parameters)
    return tmp_path / "trained"


@pytest.fixture
def sharded(tmp_path: Path, model_folder: ModelFolder, model_context: Callable[..., ModelContext]) -> Path:
    """The same weights in shards."""
    model = create_llama(model_context(model_folder(name="for shards")))
    model.save(tmp_path / "sharded", parameters=model.parameters, max_shard_bytes=SHARD_BYTES)
    assert len(list((tmp_path / "sharded").glob("model-*.safetensors"))) > 2
    return tmp_path / "sharded"


def edit(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Change the tensors of model.safetensors."""
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def refusal(context: Any) -> str:
    with pytest.raises(ModelError) as caught:
        create_llama(context)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), "tensor model.norm.weight missing"),
        (lambda tensors: tensors.update(surprise=torch.zeros(2)), "tensor surprise unexpected"),
        (lambda tensors: tensors.update({"model.norm.weight": torch.zeros(31)}), "tensor model.norm.weight wrongly shaped"),
        (lambda tensors: tensors["model.norm.weight"].fill_(float("nan")), "model.norm.weight in .* NaN or infinite"),
        (lambda tensors: tensors["lm_head.weight"][3, 4].fill_(float("inf")), "lm_head.weight in .* NaN or infinite"),
        (
            lambda tensors: tensors.update({"lm_head.weight": tensors["lm_head.weight"].to(torch.float8_e4m3fn)}),
            "holds lm_head.weight as F8_E4M3, expected F32, BF16, F16; quantised",
        ),
        (lambda tensors: [tensors.pop(name) for name in [*tensors][:4]], r"tensor \S+ and 3 more missing"),
    ],
)
def test_weights_that_do_not_fit_are_named(
    trained: Path, model_context: Callable[..., ModelContext], change: Any, sentence: str
) -> None:
    edit(trained, change)
    with pytest.raises(ModelError, match=sentence):
        create_llama(model_context(trained))


def test_an_output_embedding_that_should_be_the_inputs_but_is_not_is_refused(
    tmp_path: Path, model_folder: ModelFolder, model_context: Callable[..., ModelContext]
) -> None:
    """transformers would train both, and who builds the model from config.json alone would have a parameter less."""
    model = create_llama(model_context(model_folder(tie_word_embeddings=True)))
    model.save(tmp_path / "trained", parameters=model.parameters)
    embedding = "model.embed_tokens.weight"
    edit(tmp_path / "trained", lambda tensors: tensors.update({"lm_head.weight": tensors[embedding].clone()}))
    create_llama(model_context(tmp_path / "trained"))
    edit(tmp_path / "trained", lambda tensors: tensors["lm_head.weight"].add_(1))
    assert "tie_word_embeddings is true" in refusal(model_context(tmp_path / "trained"))


def test_integer_weights_are_refused(trained: Path, model_context: Callable[..., ModelContext]) -> None:
    edit(trained, lambda tensors: tensors.update({"model.norm.weight": torch.ones(32, dtype=torch.int32)}))
    assert "model.norm.weight in" in refusal(model_context(trained))


def test_a_missing_expert_is_named(tmp_path: Path, model_folder: ModelFolder, model_context: Callable[..., ModelContext]) -> None:
    """transformers fuses a layer's experts, so one that is missing must not go unnoticed in the heap."""
    model = create_auto(model_context(model_folder(DEEPSEEK_V3)))
    model.save(tmp_path / "trained", parameters=model.parameters)
    edit(tmp_path / "trained", lambda tensors: tensors.pop("model.layers.1.mlp.experts.2.up_proj.weight"))
    with pytest.raises(ModelError, match=r"tensor model\.layers\.1\.mlp\.experts\.2\.up_proj\.weight missing"):
        create_auto(model_context(tmp_path / "trained"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_checkpoints_become_float32(
    trained: Path, model_context: Callable[..., ModelContext], dtype: torch.dtype
) -> None:
    edit(trained, lambda tensors: tensors.update({name: tensor.to(dtype) for name, tensor in tensors.items()}))
    stored = load_file(trained / "model.safetensors")
    model = create_llama(model_context(trained))
    for name, tensor in model.parameters.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, stored[name].float())


@pytest.mark.parametrize("length", [0, 7, 40, 3000, -1])
def test_a_file_that_is_cut_short_is_named(trained: Path, model_context: Callable[..., ModelContext], length: int) -> None:
    path = trained / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    assert f"{path} is cut short or no safetensors file" in refusal(model_context(trained))


def test_a_file_of_other_bytes_is_named(trained: Path, model_context: Callable[..., ModelContext]) -> None:
    (trained / "model.safetensors").write_bytes(b"\xff" * 40)
    assert "is cut short or no safetensors file" in refusal(model_context(trained))


def test_shards_are_loaded(trained: Path, sharded: Path, model_context: Callable[..., ModelContext]) -> None:
    whole, parts = create_llama(model_context(trained)), create_llama(model_context(sharded))
    assert all(torch.equal(tensor, parts.parameters[name]) for name, tensor in whole.parameters.items())


def test_a_missing_shard_is_named(sharded: Path, model_context: Callable[..., ModelContext]) -> None:
    shard = sorted(sharded.glob("model-*"))[1]
    shard.unlink()
    assert f"shard {shard.name} is missing (1 of" in refusal(model_context(sharded))


def test_a_shard_that_is_cut_short_is_named(sharded: Path, model_context: Callable[..., ModelContext]) -> None:
    shard = sorted(sharded.glob("model-*"))[1]
    shard.write_bytes(shard.read_bytes()[:-8])
    assert f"{shard} is cut short" in refusal(model_context(sharded))


def test_a_shard_without_a_tensor_of_the_index_is_named(sharded: Path, model_context: Callable[..., ModelContext]) -> None:
    path = sharded / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    first, second = sorted(set(index["weight_map"].values()))[:2]
    moved = next(name for name, shard in index["weight_map"].items() if shard == first)
    index["weight_map"][moved] = second
    path.write_text(json.dumps(index))
    assert f"{second} does not hold tensor {moved}" in refusal(model_context(sharded))


def test_shards_without_their_index_are_refused(sharded: Path, model_context: Callable[..., ModelContext]) -> None:
    (sharded / "model.safetensors.index.json").unlink()
    assert "nor in a model.safetensors.index.json" in refusal(model_context(sharded))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{}", "is not an index of shards"),
        ('{"weight_map": []}', "is not an index of shards"),
        ("[" * 10_000, "is not an index of shards"),
        ('{"weight_map": {}}', "no shard is named in it"),
        ('{"weight_map": {"a": "../model.safetensors"}}', "expected the plain name"),
        ('{"weight_map": {"a": "model.bin"}}', "expected the plain name"),
        ('{"weight_map": {"a": 3}}', "expected the plain name"),
    ],
)
def test_an_index_that_is_none_is_refused(
    sharded: Path, model_context: Callable[..., ModelContext], content: str, sentence: str
) -> None:
    (sharded / "model.safetensors.index.json").write_text(content)
    assert sentence in refusal(model_context(sharded))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.gguf", "adapter_model.safetensors"])
def test_weights_in_other_formats_are_never_replaced_by_random_ones(
    model_folder: ModelFolder, model_context: Callable[..., ModelContext], name: str
) -> None:
    source = model_folder()
    (source / name).write_bytes(b"")
    assert "to start with random weights" in refusal(model_context(source))
