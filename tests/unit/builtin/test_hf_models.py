from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from psyche_core.builtin.hf_models import create_auto, create_llama, pick_device
from psyche_core.errors import ModelError, NonFiniteError
from psyche_core.hookspecs import ModelContext
from psyche_core.testing.model import ModelConformance

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TIED_LLAMA = {**LLAMA, "tie_word_embeddings": True}
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 61,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


class TestHfLlama(ModelConformance):
    create = staticmethod(create_llama)
    config = LLAMA


class TestHfAutoTiedEmbeddings(ModelConformance):
    create = staticmethod(create_auto)
    config = GPT2


class TestHfLlamaTiedEmbeddings(ModelConformance):
    create = staticmethod(create_auto)
    config = TIED_LLAMA


def context(source: Path, **changes: Any) -> ModelContext:
    return ModelContext(**{"source": source, "max_seq_len": 16, "seed": bytes(32), "device": "cpu", **changes})


def folder(path: Path, config: dict[str, Any]) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return folder(tmp_path / "source", LLAMA)


@pytest.fixture
def trained(tmp_path: Path, source: Path) -> Path:
    model = create_llama(context(source))
    model.save(tmp_path / "trained", parameters=model.parameters)
    return tmp_path / "trained"


@pytest.mark.parametrize("config", [LLAMA, GPT2, TIED_LLAMA], ids=["llama", "gpt2", "tied llama"])
def test_transformers_loads_what_was_saved(tmp_path: Path, config: dict[str, Any]) -> None:
    model = create_auto(context(folder(tmp_path / "source", config)))
    masters = {name: tensor.detach() * 2 for name, tensor in model.parameters.items()}
    model.save(tmp_path / "saved", parameters=masters)
    auto: Any = transformers.AutoModelForCausalLM
    loaded, info = auto.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not any(info.values())
    assert all(torch.equal(tensor, masters[name]) for name, tensor in loaded.named_parameters())
    output = loaded.get_output_embeddings().weight
    tied = config.get("tie_word_embeddings", config["model_type"] == "gpt2")
    assert (output is loaded.get_input_embeddings().weight) == tied
    assert all(tensor.dtype == torch.float32 for tensor in load_file(tmp_path / "saved" / "model.safetensors").values())


def test_loss_is_that_of_transformers(source: Path) -> None:
    model = create_llama(context(source))
    samples = ModelConformance().samples(model, count=3, sequence_length=9)
    ids = torch.frombuffer(bytearray(samples.tokens), dtype=torch.int32).long().view(3, 9)
    theirs = model._module(input_ids=ids, labels=ids).loss.item()
    assert model.loss(samples, micro_batch_size=2) == pytest.approx(theirs, abs=1e-5)


def test_bfloat16_compute_keeps_float32_weights_and_comes_close(source: Path) -> None:
    exact, rounded = create_llama(context(source)), create_llama(context(source, dtype="bfloat16"))
    samples = ModelConformance().samples(exact)
    expected = exact.gradients(samples, micro_batch_size=5)
    got = rounded.gradients(samples, micro_batch_size=2)
    assert got != expected
    assert got == pytest.approx(expected, abs=0.02)
    for name, tensor in rounded.parameters.items():
        assert torch.equal(tensor, exact.parameters[name])  # so both members start from the same masters
        assert tensor.grad is not None
        assert tensor.grad.dtype == torch.float32


def test_generation_config_and_tokenizer_travel_with_the_checkpoint(tmp_path: Path, source: Path) -> None:
    # do_sample false with a temperature: transformers reads it but refuses to save it
    (source / "generation_config.json").write_text('{"temperature": 0.6, "do_sample": false}')
    (source / "tokenizer.json").write_text("{}")
    model = create_llama(context(source))
    model.save(tmp_path / "saved", parameters=model.parameters)
    assert (tmp_path / "saved" / "generation_config.json").read_text() == '{"temperature": 0.6, "do_sample": false}'
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


def test_no_generation_config_is_made_up(tmp_path: Path, source: Path) -> None:
    model = create_llama(context(source))
    model.save(tmp_path / "saved", parameters=model.parameters)
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["config.json", "model.safetensors"]


def test_dropout_is_off(tmp_path: Path) -> None:
    model = create_auto(context(folder(tmp_path / "gpt2", {**GPT2, "resid_pdrop": 0.5})))
    samples = ModelConformance().samples(model)
    assert model.gradients(samples, micro_batch_size=5) == model.loss(samples, micro_batch_size=5)


def test_loss_that_is_not_finite_leaves_no_gradient(source: Path) -> None:
    model = create_llama(context(source))
    with torch.no_grad():
        model.parameters["model.norm.weight"].fill_(float("nan"))
    with pytest.raises(NonFiniteError, match="nan"):
        model.gradients(ModelConformance().samples(model), micro_batch_size=2)
    assert all(tensor.grad is None for tensor in model.parameters.values())


def test_sequences_longer_than_the_run_are_refused(source: Path) -> None:
    model = create_llama(context(source))
    with pytest.raises(ModelError, match="2 to 16 tokens, got 1 of 17"):
        model.loss(ModelConformance().samples(model, count=1, sequence_length=17), micro_batch_size=1)


def edit(path: Path, change: Any) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def test_missing_tensor_is_named(trained: Path) -> None:
    edit(trained, lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(ModelError, match=r"tensor model\.norm\.weight missing"):
        create_llama(context(trained))


def test_unexpected_tensor_is_named(trained: Path) -> None:
    edit(trained, lambda tensors: tensors.update(surprise=torch.zeros(2)))
    with pytest.raises(ModelError, match="tensor surprise unexpected"):
        create_llama(context(trained))


def test_wrong_shape_is_named(trained: Path) -> None:
    edit(trained, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(31)}))
    with pytest.raises(ModelError, match=r"tensor model\.norm\.weight wrongly shaped"):
        create_llama(context(trained))


def test_broken_file_is_one_sentence(trained: Path) -> None:
    (trained / "model.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(ModelError, match="cannot build a causal language model from") as caught:
        create_llama(context(trained))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.gguf"])
def test_weights_in_other_formats_are_never_replaced_by_random_ones(source: Path, name: str) -> None:
    (source / name).write_bytes(b"")
    with pytest.raises(ModelError, match="convert them to safetensors"):
        create_llama(context(source))


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({**GPT2}, "model_type 'gpt2', this architecture needs 'llama'"),
        ({"vocab_size": 3}, "expected a JSON object with a model_type"),
        ([], "expected a JSON object with a model_type"),
    ],
)
def test_llama_refuses_other_configurations(tmp_path: Path, config: Any, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        create_llama(context(folder(tmp_path / "other", config)))


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"model_type": "nothing_like_it"}, "nothing_like_it"),
        ({"model_type": "own", "auto_map": {"AutoConfig": "code.Own", "AutoModelForCausalLM": "code.Own"}}, "cannot read"),
        ({"model_type": "vit"}, "not a causal language model"),
        ({**LLAMA, "hidden_size": "wide"}, "hidden_size|cannot"),
    ],
)
def test_auto_refuses_what_transformers_does_not_have(tmp_path: Path, config: Any, sentence: str) -> None:
    path = folder(tmp_path / "other", config)
    (path / "code.py").write_text("raise SystemExit('code of a model folder was run')")
    with pytest.raises(ModelError, match=sentence) as caught:
        create_auto(context(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"max_seq_len": 65}, "max_position_embeddings 64"),
        ({"dtype": "float16"}, "float32, bfloat16, got 'float16'"),
        ({"options": {"colour": 1}}, "no options, got colour"),
        ({"device": "tpu"}, "a device is auto, cpu, mps, cuda or cuda:N, got 'tpu'"),
    ],
)
def test_unusable_contexts_are_refused(source: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        create_llama(context(source, **changes))


@pytest.mark.parametrize("name", ["cuda:", "cuda:-1", "cpu:0", "CPU", ""])
def test_malformed_devices_are_refused(name: str) -> None:
    with pytest.raises(ModelError, match="a device is"):
        pick_device(name)


def test_absent_cuda_devices_are_refused() -> None:
    with pytest.raises(ModelError, match="CUDA devices; use cpu or auto"):
        pick_device(f"cuda:{torch.cuda.device_count()}")


def test_auto_picks_a_device_that_works() -> None:
    assert torch.zeros(2, device=pick_device("auto")).sum().item() == 0


def test_transformers_stays_quiet_and_its_settings_are_put_back(
    tmp_path: Path, trained: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log: Any = transformers.utils.logging
    before = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity(logging.INFO)
    log.enable_progress_bar()
    try:
        model = create_llama(context(trained))
        model.save(tmp_path / "saved", parameters=model.parameters)
        assert (log.get_verbosity(), log.is_progress_bar_enabled()) == (logging.INFO, True)
    finally:
        log.set_verbosity(before[0])
        if not before[1]:
            log.disable_progress_bar()
    assert capfd.readouterr() == ("", "")
