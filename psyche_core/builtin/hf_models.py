"""Causal language models of Hugging Face transformers: `HfLlama`, `HfDeepseek`, and `HfAuto` for any that it implements.

- Weights are float32 for every compute dtype, so members with different compute dtypes start from equal masters, and gradients
  are summed in float32 over micro-batches.
- No dropout, so equal inputs give equal gradients.
- The folder decides: if it has safetensors, all of them are loaded; if it has none, weights are random from the run's seed,
  drawn on the CPU from a separate generator.
- Only local folders are read. Code found in one is never run, and no pickle (`*.bin`) is read.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import torch
import transformers

from psyche_core.errors import ModelError
from psyche_core.hookspecs import ModelContext
from psyche_core.models.hf.configuration import Configuration, read_configuration
from psyche_core.models.hf.devices import pick_devices
from psyche_core.models.hf.model import HfModel
from psyche_core.models.hf.model_types import MODEL_TYPES
from psyche_core.models.hf.quiet import first_line, quiet
from psyche_core.models.hf.replica import COMPUTE_DTYPES, checkpoint_gradients
from psyche_core.models.hf.weights import load_module, stored_tensors

if TYPE_CHECKING:
    from psyche_core.models.sharding.controller import RankController
    from psyche_core.models.sharding.model import ShardedModel

ATTENTIONS: Final = ("auto", "sdpa", "eager")

_GENERATOR_IN_USE = threading.Lock()  # torch has one CPU generator per process, so members in one process take turns


def create_llama(context: ModelContext) -> HfModel:
    """Architecture `HfLlama`: config.json must say `"model_type": "llama"`. Raises ModelError."""
    return _create(context, required_types=MODEL_TYPES["HfLlama"])


def create_deepseek(context: ModelContext) -> HfModel:
    """Architecture `HfDeepseek`: model_type `deepseek_v3` or `deepseek_v2`. Raises ModelError."""
    return _create(context, required_types=MODEL_TYPES["HfDeepseek"])


def create_auto(context: ModelContext) -> HfModel:
    """Architecture `HfAuto`: any causal language model that transformers itself implements. Raises ModelError."""
    return _create(context, required_types=MODEL_TYPES["HfAuto"])


def divide(context: ModelContext, *, controller: RankController) -> ShardedModel:
    """A model of any architecture, divided among running ranks, which keep running. For tests. Raises ModelError."""
    model: Any = _create(context, required_types=(), controller=controller)
    return model  # type: ignore[no-any-return]  # the class needs torch.distributed, which others need not import


def _create(context: ModelContext, *, required_types: tuple[str, ...], controller: RankController | None = None) -> HfModel:
    _check_context(context)
    devices = pick_devices(context.device) if context.parallelism is None else ()
    configuration = read_configuration(context.source, required_types=required_types)
    configuration.check_length(context.max_seq_len)
    try:
        module = _build_module(configuration, context)
        if context.gradient_checkpointing:
            checkpoint_gradients(module)
        if context.parallelism is not None:
            from psyche_core.models.sharding.model import ShardedModel  # it is based on HfModel

            return ShardedModel(module, configuration=configuration, context=context, controller=controller)
        return HfModel(module, configuration=configuration, devices=devices, dtype=context.dtype, max_seq_len=context.max_seq_len)
    except ModelError:
        raise
    except Exception as error:  # a broken config or file may raise almost any exception of transformers or safetensors
        message = f"cannot build a causal language model from {context.source}: {first_line(error)}"
        raise ModelError(message) from error


def _check_context(context: ModelContext) -> None:
    if context.dtype not in COMPUTE_DTYPES:
        message = f"the compute dtype must be one of {', '.join(COMPUTE_DTYPES)}, got {context.dtype!r}"
        raise ModelError(message)
    if context.attention not in ATTENTIONS:
        message = f"attention must be one of {', '.join(ATTENTIONS)}, got {context.attention!r}"
        raise ModelError(message)


def _build_module(configuration: Configuration, context: ModelContext) -> Any:
    """The module on the CPU, float32, in eval mode."""
    auto: Any = transformers.AutoModelForCausalLM
    attention = None if context.attention == "auto" else context.attention
    # fork only the CPU's generator: manual_seed on it does not change the random state of any GPU
    with _GENERATOR_IN_USE, quiet(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int.from_bytes(context.seed[:8], "little"))
        stored = stored_tensors(context.source)
        if stored:
            module = load_module(configuration, stored, attention=attention)
        else:
            module = auto.from_config(configuration.parsed, dtype=torch.float32, attn_implementation=attention)
    return module.eval()
