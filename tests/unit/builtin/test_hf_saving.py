"""Checkpoints that stand alone: what transformers itself would write, without a second copy of the model in memory."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file

from psyche_core.builtin.hf_models import create_auto, create_llama
from psyche_core.errors import ModelError
from psyche_core.hookspecs import ModelContext
from psyche_core.models.hf.tensor_files import SLICE_VALUES, Planned, ShardWriter, into_shards
from psyche_core.models.memory import peak_tensor_bytes
from psyche_core.testing.tiny_models import DEEPSEEK_V3, LLAMA, TINY_MODELS
from tests.unit.builtin.conftest import ModelFolder

AUTO: Any = transformers.AutoModelForCausalLM


def stored(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, whatever file they are in."""
    tensors: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        tensors |= load_file(path)
    return tensors


@pytest.mark.parametrize("config", TINY_MODELS.values(), ids=TINY_MODELS)
def test_transformers_loads_what_was_saved_and_would_have_saved_the_same(
    tmp_path: Path, model_folder: ModelFolder, model_context: Callable[..., ModelContext], config: Any
) -> None:
    model = create_auto(model_context(model_folder(config)))
    masters = {name: tensor.detach() * 2 for name, tensor in model.parameters.items()}
    model.save(tmp_path / "saved", parameters=masters)
    loaded, info = AUTO.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not any(info.values())
    assert all(torch.equal(tensor, masters[name]) for name, tensor in loaded.named_parameters())
    tied = config.get("tie_word_embeddings", config["model_type"] == "gpt2")
    assert (loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight) == tied

    loaded.save_pretrained(tmp_path / "theirs")
    ours, theirs = stored(tmp_path / "saved"), stored(tmp_path / "theirs")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) and tensor.dtype == torch.float32 for name, tensor in ours.items())


def test_a_second_generation_has_the_same_files(
    tmp_path: Path, model_folder: ModelFolder, model_context: Callable[..., ModelContext]
) -> None:
    """What was loaded from a checkpoint is written under the same names, fused experts among them."""
    for name, source in (("first", model_folder(DEEPSEEK_V3)), ("second", tmp_path / "first")):
        model = create_auto(model_context(source))
        model.save(tmp_path / name, parameters=model.parameters)
    assert (tmp_path / "first" / "model.safetensors").read_bytes() == (tmp_path / "second" / "model.safetensors").read_bytes()
    assert (tmp_path / "first" / "config.json").read_bytes() == (tmp_path / "second" / "config.json").read_bytes()


def test_configuration_is_the_sources_own(
    tmp_path: Path, model_folder: ModelFolder, model_context: Callable[..., ModelContext]
) -> None:
    """With the keys that we do not know, and without what transformers' version of today would add; dropout is still in it."""
    source = model_folder(attention_dropout=0.25, torch_dtype="bfloat16", rope_theta=500.0, remark={"kept": True})
    model = create_llama(model_context(source))
    model.save(tmp_path / "saved", parameters=model.parameters)
    expected = {**LLAMA, "attention_dropout": 0.25, "rope_theta": 500.0, "remark": {"kept": True}}
    expected |= {"architectures": ["LlamaForCausalLM"], "dtype": "float32"}
    assert json.loads((tmp_path / "saved" / "config.json").read_text()) == expected


def test_generation_config_and_tokenizer_travel_with_the_checkpoint(
    tmp_path: Path, model_folder: ModelFolder, model_context: Callable[..., ModelContext]
) -> None:
    source = model_folder()
    # do_sample false with a temperature: transformers reads it but refuses to save it
    (source / "generation_config.json").write_text('{"temperature": 0.6, "do_sample": false}')
    (source / "tokenizer.json").write_text("{}")
    (source / "secret.txt").write_text("stays")
    model = create_llama(model_context(source))
    model.save(tmp_path / "saved", parameters=model.parameters)
    assert (tmp_path / "saved" / "generation_config.json").read_text() == '{"temperature": 0.6, "do_sample": false}'
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


@pytest.mark.parametrize("config", [LLAMA, DEEPSEEK_V3], ids=["llama", "deepseek"])
def test_shards_stay_under_their_limit_and_hold_everything(
    tmp_path: Path, model_folder: ModelFolder, model_context: Callable[..., ModelContext], config: Any
) -> None:
    limit = 20_000
    model = create_auto(model_context(model_folder(config)))
    model.save(tmp_path / "whole", parameters=model.parameters)
    model.save(tmp_path / "saved", parameters=model.parameters, max_shard_bytes=limit)
    index = json.loads((tmp_path / "saved" / "model.safetensors.index.json").read_text())
    names = sorted(path.name for path in (tmp_path / "saved").glob("*.safetensors"))
    count = len(names)
    assert count > 2
    assert names == [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
    whole = stored(tmp_path / "whole")
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in whole.values())
    for name in names:
        tensors = load_file(tmp_path / "saved" / name)
        assert sum(tensor.nbytes for tensor in tensors.values()) <= limit
        assert all(torch.equal(tensor, whole[key]) and index["weight_map"][key] == name for key, tensor in tensors.items())
        with safe_open(tmp_path / "saved" / name, framework="pt") as handle:
            assert handle.metadata() == {"format": "pt"}
    assert index["weight_map"].keys() == whole.keys()
    loaded, info = AUTO.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not any(info.values())
    assert all(torch.equal(tensor, model.parameters[name]) for name, tensor in loaded.named_parameters())


def test_a_tensor_over_the_limit_has_a_shard_of_its_own() -> None:
    plan = [Planned(name, torch.float32, (size,)) for name, size in (("a", 2), ("b", 9), ("c", 1), ("d", 3))]
    assert [[tensor.name for tensor in shard] for shard in into_shards(plan, max_bytes=16)] == [["a"], ["b"], ["c", "d"]]


def test_bfloat16_checkpoints_hold_rounded_parameters(
    tmp_path: Path, model_folder: ModelFolder, model_context: Callable[..., ModelContext]
) -> None:
    model = create_auto(model_context(model_folder(DEEPSEEK_V3)))
    model.save(tmp_path / "saved", parameters=model.parameters, dtype="bfloat16")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["dtype"] == "bfloat16"
    tensors = stored(tmp_path / "saved")
    buffers = {name for name in tensors if name.endswith("e_score_correction_bias")}
    assert {name for name, tensor in tensors.items() if tensor.dtype == torch.float32} == buffers  # no parameter of ours
    again = create_auto(model_context(tmp_path / "saved"))
    for name, tensor in again.parameters.items():
        assert torch.equal(tensor, model.parameters[name].bfloat16().float())


def test_other_dtypes_are_refused(tmp_path: Path, model_folder: ModelFolder, model_context: Callable[..., ModelContext]) -> None:
    model = create_llama(model_context(model_folder()))
    with pytest.raises(ModelError, match="float32, bfloat16, got 'float16'"):
        model.save(tmp_path / "saved", parameters=model.parameters, dtype="float16")


@pytest.mark.parametrize("config", [LLAMA, DEEPSEEK_V3], ids=["llama", "deepseek"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saving_takes_no_second_copy_of_the_model(
    tmp_path: Path,
    model_folder: ModelFolder,
    model_context: Callable[..., ModelContext],
    config: Any,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("psyche_core.models.hf.tensor_files.SLICE_VALUES", 256)
    model = create_auto(model_context(model_folder(config, num_hidden_layers=8)))
    size = sum(tensor.nbytes for tensor in model.parameters.values())
    peak = peak_tensor_bytes(lambda: model.save(tmp_path / "saved", parameters=model.parameters, dtype=dtype))
    # planned shapes are counted though nobody allocates them; what is left is one layer of experts and a slice of values
    shapes = sum(tensor.nbytes for tensor in stored(tmp_path / "saved").values())
    assert peak < shapes + size / 6


def test_a_large_tensor_is_converted_in_slices(tmp_path: Path) -> None:
    """One is made while the one before is still there, of three."""
    large = torch.zeros(3, SLICE_VALUES)
    writer = ShardWriter(tmp_path, [[Planned("large", torch.bfloat16, (3, SLICE_VALUES))]])
    assert peak_tensor_bytes(lambda: writer.write(iter([("large", large)]))) == 2 * SLICE_VALUES * 2


@pytest.fixture
def full_disk() -> Any:
    """No file may grow beyond 30 kB, as if the disk were full: the system refuses the write."""
    import signal

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limit[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_the_older_checkpoint(
    tmp_path: Path, model_folder: ModelFolder, model_context: Callable[..., ModelContext], full_disk: None
) -> None:
    target = tmp_path / "saved"
    target.mkdir()
    (target / "older.txt").write_text("older")
    model = create_llama(model_context(model_folder()))
    with pytest.raises(ModelError, match=r"cannot save the model to .*(too large|No space)"):
        model.save(target, parameters=model.parameters)
    assert [path.name for path in target.iterdir()] == ["older.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved", "source"]


def test_files_and_folder_are_flushed_before_the_name_appears(
    tmp_path: Path, model_folder: ModelFolder, model_context: Callable[..., ModelContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that survives a power cut must stand for a whole checkpoint: every file is on disk before the rename."""
    flushed: list[Path] = []
    real_fsync, real_rename = os.fsync, Path.rename

    def fsync(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real_fsync(descriptor)

    def rename(path: Path, target: Path) -> Path:
        assert {*path.iterdir(), path} <= set(flushed)
        flushed.clear()
        return real_rename(path, target)

    model = create_llama(model_context(model_folder()))
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    model.save(tmp_path / "saved", parameters=model.parameters)
    assert flushed == [tmp_path]


def test_a_writer_refuses_what_was_not_planned(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, [[Planned("a", torch.float32, (2,)), Planned("b", torch.float32, (3,))]])
    with pytest.raises(ValueError, match=r"expected tensor b \(3,\), got 'b' \(4,\)"):
        writer.write(iter([("a", torch.zeros(2)), ("b", torch.zeros(4))]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_written_values_are_read_back_by_safetensors(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {"cut": torch.arange(60).view(5, 12)[:, 3:7], "scalar": torch.tensor(1), "empty": torch.zeros(0, 3)}
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    plan = [Planned(name, dtype, tuple(tensor.shape)) for name, tensor in tensors.items()]
    ShardWriter(tmp_path, into_shards(plan, max_bytes=10**6)).write(iter(tensors.items()))
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(tensor, tensors[name]) and tensor.dtype == dtype for name, tensor in found.items())
