"""Ways to compute that save memory or time give the plain way's loss and gradient."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from psyche_core.builtin.hf_models import create_auto, create_llama
from psyche_core.errors import ModelError, NonFiniteError
from psyche_core.hookspecs import ModelContext
from psyche_core.interfaces.data import IGNORED_LABEL, Samples
from psyche_core.models.hf.configuration import read_configuration
from psyche_core.models.hf.model import HfModel
from psyche_core.models.memory import peak_tensor_bytes
from psyche_core.testing.model import ModelConformance, gradients_of
from psyche_core.testing.tiny_models import GPT2, LLAMA, TINY_MODELS
from tests.unit.builtin.conftest import ModelFolder

samples = ModelConformance().samples
EVERY_MODEL = pytest.mark.parametrize("config", TINY_MODELS.values(), ids=TINY_MODELS)


def assert_equal_gradients(model: HfModel, other: HfModel, given: Samples, *, tolerance: float = 1e-5) -> None:
    """Both models give one loss and one gradient, up to rounding."""
    assert other.gradients(given, micro_batch_size=2) == pytest.approx(model.gradients(given, micro_batch_size=5), abs=tolerance)
    expected = gradients_of(model)
    for name, gradient in gradients_of(other).items():
        torch.testing.assert_close(gradient, expected[name], rtol=tolerance, atol=tolerance)


def packed(model: HfModel) -> Samples:
    """Five rows, each of three texts with padding after them, and some labels ignored."""
    given = samples(model, count=5, sequence_length=12)
    labels = list(struct.unpack("<60i", given.tokens))
    labels[::7] = [IGNORED_LABEL] * len(labels[::7])
    lengths = ((5, 4, 2), (12,), (1, 1, 10), (3, 3, 3), (2, 9, 1))
    return replace(given, labels=struct.pack("<60i", *labels), sequence_lengths=lengths)


def attention_of(model: HfModel) -> str:
    config: Any = model._first.module.config
    name: str = config._attn_implementation
    return name


@EVERY_MODEL
def test_eager_and_fused_attention_agree(
    model_folder: ModelFolder, model_context: Callable[..., ModelContext], config: Any
) -> None:
    source = model_folder(config)
    eager, fused = (create_auto(model_context(source, attention=attention)) for attention in ("eager", "sdpa"))
    assert attention_of(eager) == "eager"
    assert attention_of(fused) == "sdpa"
    assert_equal_gradients(eager, fused, samples(eager))
    assert_equal_gradients(eager, fused, packed(eager))


def test_attention_is_fused_where_nothing_is_said(model_folder: ModelFolder, model_context: Callable[..., ModelContext]) -> None:
    assert attention_of(create_auto(model_context(model_folder()))) == "sdpa"


@EVERY_MODEL
def test_bfloat16_compute_keeps_float32_weights_and_comes_close(
    model_folder: ModelFolder, model_context: Callable[..., ModelContext], config: Any
) -> None:
    source = model_folder(config)
    exact, rounded = (create_auto(model_context(source, dtype=dtype)) for dtype in ("float32", "bfloat16"))
    given = samples(exact)
    expected = exact.gradients(given, micro_batch_size=2)
    got = rounded.gradients(given, micro_batch_size=2)
    assert got != expected  # it does compute in bfloat16
    assert got == pytest.approx(expected, abs=0.02)
    for name, tensor in rounded.parameters.items():
        assert torch.equal(tensor, exact.parameters[name])  # so both members start from the same masters
        assert tensor.grad is not None
        assert tensor.grad.dtype == torch.float32


def test_gradients_of_micro_batches_add_up_in_float32(
    model_folder: ModelFolder, model_context: Callable[..., ModelContext]
) -> None:
    """64 equal sequences, one at a time: a sum in bfloat16 would be off by parts in a hundred."""
    model = create_llama(model_context(model_folder(), dtype="bfloat16"))
    one = samples(model, count=1, sequence_length=16)
    many = Samples(one.tokens * 64, 64, 16, 4)
    model.gradients(one, micro_batch_size=1)
    expected = gradients_of(model)
    model.gradients(many, micro_batch_size=1)
    for name, gradient in gradients_of(model).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-7)


@EVERY_MODEL
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_checkpointed_gradients_are_the_plain_ones(
    model_folder: ModelFolder, model_context: Callable[..., ModelContext], config: Any, dtype: str
) -> None:
    source = model_folder(config)
    plain, again = (create_auto(model_context(source, dtype=dtype, gradient_checkpointing=on)) for on in (False, True))
    for given in (samples(plain), packed(plain)):
        assert again.gradients(given, micro_batch_size=2) == plain.gradients(given, micro_batch_size=2)
        expected = gradients_of(plain)
        assert all(torch.equal(gradient, expected[name]) for name, gradient in gradients_of(again).items())


@EVERY_MODEL
def test_checkpointed_gradients_take_less_memory(
    model_folder: ModelFolder, model_context: Callable[..., ModelContext], config: Any
) -> None:
    source = model_folder(config, num_hidden_layers=8, n_layer=8)
    peaks = []
    for on in (False, True):
        model = create_auto(model_context(source, gradient_checkpointing=on))
        given = samples(model, count=8, sequence_length=16)
        peaks.append(peak_tensor_bytes(partial(model.gradients, given, micro_batch_size=8)))
    assert peaks[1] < 0.6 * peaks[0]


def test_an_architecture_without_layers_to_checkpoint_is_refused(
    model_folder: ModelFolder, model_context: Callable[..., ModelContext]
) -> None:
    source = model_folder(
        {"model_type": "openai-gpt", "vocab_size": 61, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
    )
    create_auto(model_context(source))
    with pytest.raises(ModelError, match="OpenAIGPTLMHeadModel does not support gradient checkpointing"):
        create_auto(model_context(source, gradient_checkpointing=True))


def test_an_architecture_that_mixes_packed_texts_is_refused_at_the_first_of_them(
    model_folder: ModelFolder, model_context: Callable[..., ModelContext]
) -> None:
    """A state space model carries its state over a text's end, whatever positions say."""
    mamba = {"model_type": "mamba", "vocab_size": 61, "hidden_size": 32, "state_size": 4, "num_hidden_layers": 2}
    model = create_auto(model_context(model_folder(mamba)))
    model.gradients(samples(model), micro_batch_size=2)
    for call in (model.gradients, model.loss):
        with pytest.raises(ModelError, match="'mamba' cannot separate texts that are packed into one sequence"):
            call(packed(model), micro_batch_size=2)


# ------------------------------------------------------------------------------------------------------- several devices


def on_devices(
    model_folder: ModelFolder, model_context: Callable[..., ModelContext], count: int, config: Any = LLAMA, **changes: Any
) -> HfModel:
    """The same model on so many devices; all of them are this machine's CPU, as no flag would have it."""
    source = model_folder(config, name=f"for {count} devices")
    single = create_auto(model_context(source))
    return HfModel(
        single._first.module,
        configuration=read_configuration(source),
        devices=[torch.device("cpu")] * count,
        max_seq_len=16,
        **changes,
    )


@EVERY_MODEL
@pytest.mark.parametrize("count", [2, 3])
def test_several_devices_give_the_gradient_of_one(
    model_folder: ModelFolder, model_context: Callable[..., ModelContext], config: Any, count: int
) -> None:
    single, several = (on_devices(model_folder, model_context, number, config) for number in (1, count))
    assert list(several.parameters) == list(single.parameters)
    for given in (samples(single), samples(single, count=1), packed(single)):
        assert_equal_gradients(single, several, given)
        assert several.loss(given, micro_batch_size=2) == pytest.approx(single.loss(given, micro_batch_size=2), abs=1e-5)


def test_several_devices_give_the_same_bits_each_time(
    model_folder: ModelFolder, model_context: Callable[..., ModelContext]
) -> None:
    model = on_devices(model_folder, model_context, 4)
    given = samples(model, count=11)
    loss, first = model.gradients(given, micro_batch_size=1), gradients_of(model)
    for _ in range(5):
        assert model.gradients(given, micro_batch_size=1) == loss
        assert all(torch.equal(gradient, first[name]) for name, gradient in gradients_of(model).items())


def test_several_devices_follow_the_weights_of_the_first(
    model_folder: ModelFolder, model_context: Callable[..., ModelContext]
) -> None:
    """The optimizer writes the first one's weights only."""
    single, several = (on_devices(model_folder, model_context, number, GPT2) for number in (1, 2))
    for model in (single, several):
        with torch.no_grad():
            for tensor in model.parameters.values():
                tensor.mul_(1.5)
    assert_equal_gradients(single, several, samples(single))


def test_every_device_has_work_when_there_is_enough(
    model_folder: ModelFolder, model_context: Callable[..., ModelContext]
) -> None:
    """Six sequences and a micro-batch of 8 on three devices: two each, not all on the first."""
    model = on_devices(model_folder, model_context, 3)
    seen: list[tuple[int, int]] = []
    for number, replica in enumerate(model._replicas):
        replica.module.register_forward_pre_hook(
            lambda _, __, arguments, number=number: seen.append((number, len(arguments["input_ids"]))), with_kwargs=True
        )
    model.gradients(samples(model, count=6), micro_batch_size=8)
    assert sorted(seen) == [(0, 2), (1, 2), (2, 2)]


@pytest.mark.parametrize("broken", [0, 1])
def test_a_device_that_fails_leaves_no_gradient_anywhere(
    model_folder: ModelFolder, model_context: Callable[..., ModelContext], broken: int
) -> None:
    model = on_devices(model_folder, model_context, 2)

    def fail(*_: Any) -> None:
        message = "out of memory, say"
        raise RuntimeError(message)

    model._replicas[broken].module.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        model.gradients(samples(model), micro_batch_size=1)
    assert all(parameter.grad is None for replica in model._replicas for parameter in replica.parameters.values())


def test_a_loss_that_is_not_finite_on_a_further_device_is_found(
    model_folder: ModelFolder, model_context: Callable[..., ModelContext]
) -> None:
    model = on_devices(model_folder, model_context, 2)
    given = samples(model, count=2)
    with torch.no_grad():
        model.parameters["model.embed_tokens.weight"][struct.unpack("<24I", given.tokens)[-2]] = float("nan")
    with pytest.raises(NonFiniteError):
        model.gradients(given, micro_batch_size=1)


# ------------------------------------------------------------------------------------------------------------------ GPU


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_cpus_gradient(model_folder: ModelFolder, model_context: Callable[..., ModelContext], dtype: str) -> None:
    source = model_folder()
    cpu, gpu = (create_llama(model_context(source, device=device, dtype=dtype)) for device in ("cpu", "cuda"))
    tolerance = 1e-4 if dtype == "float32" else 0.03
    given = samples(cpu)
    assert gpu.gradients(given, micro_batch_size=2) == pytest.approx(cpu.gradients(given, micro_batch_size=5), abs=tolerance)
    expected = gradients_of(cpu)
    for name, gradient in gradients_of(gpu).items():
        torch.testing.assert_close(gradient.cpu(), expected[name], rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_gpus_give_the_gradient_of_one(model_folder: ModelFolder, model_context: Callable[..., ModelContext]) -> None:
    source = model_folder()
    one, two = (create_llama(model_context(source, device=device)) for device in ("cuda:0", "cuda:0,1"))
    assert_equal_gradients(one, two, samples(one), tolerance=1e-4)
