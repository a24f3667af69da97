"""What the factories build, and what they refuse to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from psyche_core.builtin.hf_models import create_auto, create_deepseek, create_llama
from psyche_core.errors import ModelError, NonFiniteError
from psyche_core.hookspecs import ModelContext
from psyche_core.models.hf.devices import pick_devices
from psyche_core.testing.model import ModelConformance
from psyche_core.testing.tiny_models import DEEPSEEK_V3, GPT2, LLAMA
from tests.unit.builtin.conftest import ModelFolder

samples = ModelConformance().samples


def test_loss_is_that_of_transformers(model_folder: ModelFolder, model_context: Callable[..., ModelContext]) -> None:
    model = create_llama(model_context(model_folder()))
    given = samples(model, count=3, sequence_length=9)
    ids = torch.frombuffer(bytearray(given.tokens), dtype=torch.int32).long().view(3, 9)
    theirs = model._first.module(input_ids=ids, labels=ids).loss.item()
    assert model.loss(given, micro_batch_size=2) == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_dropout_is_off(model_folder: ModelFolder, model_context: Callable[..., ModelContext], checkpointing: bool) -> None:
    changes = {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5}
    model = create_auto(model_context(model_folder(GPT2, **changes), gradient_checkpointing=checkpointing))
    given = samples(model)
    assert model.gradients(given, micro_batch_size=5) == model.loss(given, micro_batch_size=5)


def test_layer_dropout_is_off_where_layers_must_think_that_they_train(
    model_folder: ModelFolder, model_context: Callable[..., ModelContext]
) -> None:
    """OPT's layers drop their own output where they train, and a layer with checkpointed gradients thinks so."""
    opt = {"model_type": "opt", "vocab_size": 61, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2}
    changes = {"num_attention_heads": 4, "max_position_embeddings": 64, "word_embed_proj_dim": 32, "dropout": 0.5}
    model = create_auto(model_context(model_folder(opt, **changes), gradient_checkpointing=True))
    given = samples(model)
    assert model.gradients(given, micro_batch_size=5) == model.loss(given, micro_batch_size=5)


def test_positions_without_a_limit_allow_any_length(
    model_folder: ModelFolder, model_context: Callable[..., ModelContext]
) -> None:
    """XLNet says max_position_embeddings -1."""
    xlnet = {"model_type": "xlnet", "vocab_size": 61, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}
    with pytest.raises(ModelError, match="predicts a token from later tokens"):  # the next obstacle: it is no causal model
        create_auto(model_context(model_folder(xlnet)))


def test_loss_that_is_not_finite_leaves_no_gradient(
    model_folder: ModelFolder, model_context: Callable[..., ModelContext]
) -> None:
    model = create_llama(model_context(model_folder()))
    with torch.no_grad():
        model.parameters["model.norm.weight"].fill_(float("nan"))
    with pytest.raises(NonFiniteError, match="nan"):
        model.gradients(samples(model), micro_batch_size=2)
    assert all(tensor.grad is None for tensor in model.parameters.values())


def test_sequences_longer_than_the_run_are_refused(model_folder: ModelFolder, model_context: Callable[..., ModelContext]) -> None:
    model = create_llama(model_context(model_folder()))
    with pytest.raises(ModelError, match="2 to 16 tokens, got 1 of 17"):
        model.loss(samples(model, count=1, sequence_length=17), micro_batch_size=1)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (GPT2, "model_type 'gpt2', this architecture needs 'llama'; try architecture HfAuto"),
        ({"vocab_size": 3}, "expected a JSON object with a model_type"),
        ({"model_type": 3}, "expected a JSON object with a model_type"),
        ([], "expected a JSON object with a model_type"),
        ({**LLAMA, "quantization_config": {"quant_method": "fp8"}}, "quantised weights cannot be trained"),
    ],
)
def test_llama_refuses_other_configurations(
    model_folder: ModelFolder, model_context: Callable[..., ModelContext], config: Any, sentence: str
) -> None:
    with pytest.raises(ModelError, match=sentence):
        create_llama(model_context(model_folder(config)))


def test_deepseek_refuses_other_configurations(model_folder: ModelFolder, model_context: Callable[..., ModelContext]) -> None:
    with pytest.raises(ModelError, match="model_type 'llama', this architecture needs 'deepseek_v3' or 'deepseek_v2'"):
        create_deepseek(model_context(model_folder(LLAMA)))


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"model_type": "nothing_like_it"}, "nothing_like_it"),
        ({"model_type": "own", "auto_map": {"AutoConfig": "code.Own", "AutoModelForCausalLM": "code.Own"}}, "cannot read"),
        ({"model_type": "vit"}, "not a causal language model"),
        ({**LLAMA, "hidden_size": "wide"}, "hidden_size|cannot"),
        ({**DEEPSEEK_V3, "n_group": 3}, "cannot build"),
    ],
)
def test_auto_refuses_what_transformers_does_not_have(
    model_folder: ModelFolder, model_context: Callable[..., ModelContext], config: Any, sentence: str
) -> None:
    path = model_folder(config)
    (path / "code.py").write_text("raise SystemExit('code of a model folder was run')")
    with pytest.raises(ModelError, match=sentence) as caught:
        create_auto(model_context(path))
    assert "\n" not in str(caught.value)


def test_a_configuration_that_is_too_large_is_not_read(
    model_folder: ModelFolder, model_context: Callable[..., ModelContext]
) -> None:
    path = model_folder()
    (path / "config.json").write_bytes(b"[" * (5 * 2**20))
    with pytest.raises(ModelError, match=r"it has 5242880 bytes, expected at most 4194304"):
        create_llama(model_context(path))


def test_a_model_that_sees_what_it_is_to_predict_is_refused(
    model_folder: ModelFolder, model_context: Callable[..., ModelContext]
) -> None:
    """BERT has a language modelling head, but without is_decoder attention goes both ways; its loss would fall to nothing."""
    bert = {
        "model_type": "bert",
        "vocab_size": 61,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    with pytest.raises(ModelError, match="predicts a token from later tokens"):
        create_auto(model_context(model_folder(bert)))
    create_auto(model_context(model_folder(bert, name="decoder", is_decoder=True)))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"max_seq_len": 65}, "max_position_embeddings 64"),
        ({"dtype": "float16"}, "float32, bfloat16, got 'float16'"),
        ({"attention": "flash"}, "auto, sdpa, eager, got 'flash'"),
        ({"device": "tpu"}, "a device is auto, cpu, mps, cuda, cuda:N or cuda:X,Y, got 'tpu'"),
    ],
)
@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_unusable_contexts_are_refused(
    model_folder: ModelFolder, model_context: Callable[..., ModelContext], config: Any, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ModelError, match=sentence):
        create_auto(model_context(model_folder(config), **changes))


@pytest.mark.parametrize("name", ["cuda:", "cuda:-1", "cuda:0,", "cuda:0;1", "cpu:0", "cpu,cpu", "CPU", ""])
def test_malformed_devices_are_refused(name: str) -> None:
    with pytest.raises(ModelError, match="a device is"):
        pick_devices(name)


@pytest.mark.parametrize("listed", ["{}", "0,{}"])
def test_absent_cuda_devices_are_refused(listed: str) -> None:
    with pytest.raises(ModelError, match="CUDA devices; use cpu or auto"):
        pick_devices("cuda:" + listed.format(torch.cuda.device_count()))


def test_auto_picks_one_device_that_works() -> None:
    (device,) = pick_devices("auto")
    assert torch.zeros(2, device=device).sum().item() == 0


def test_transformers_stays_quiet_and_its_settings_are_put_back(
    tmp_path: Path, model_folder: ModelFolder, model_context: Callable[..., ModelContext], capfd: pytest.CaptureFixture[str]
) -> None:
    source = model_folder()
    model = create_llama(model_context(source))
    model.save(tmp_path / "trained", parameters=model.parameters)
    log: Any = transformers.utils.logging
    before = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity(logging.INFO)
    log.enable_progress_bar()
    try:
        model = create_llama(model_context(tmp_path / "trained"))
        model.save(tmp_path / "saved", parameters=model.parameters)
        assert (log.get_verbosity(), log.is_progress_bar_enabled()) == (logging.INFO, True)
    finally:
        log.set_verbosity(before[0])
        if not before[1]:
            log.disable_progress_bar()
    assert capfd.readouterr() == ("", "")
