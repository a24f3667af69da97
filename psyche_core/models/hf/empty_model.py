"""Builds a module from config.json only, for weights that are received from another process.

The memory of parameters is allocated but not written, so that a rank that will hold a part of them never needs physical memory
for all of them. Buffers (rotary frequencies, routing biases) are received from the sender. Everything else is as in a model that
is built from a folder.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

from psyche_core.errors import ModelError
from psyche_core.models.hf.configuration import CONFIG_FILE, Configuration, read_configuration
from psyche_core.models.hf.quiet import first_line, quiet
from psyche_core.models.hf.replica import checkpoint_gradients


def build_empty_model(config: bytes, *, attention: str, gradient_checkpointing: bool) -> tuple[Any, Configuration]:
    """Return the module on the CPU, float32, in eval mode, and its configuration. Parameters and buffers are not initialised.

    config: content of config.json. attention: `auto` for the model's default. Raises ModelError.
    """
    with tempfile.TemporaryDirectory(prefix="psyche-empty-model-") as folder:
        (Path(folder) / CONFIG_FILE).write_bytes(config)
        configuration = read_configuration(Path(folder))
    auto: Any = transformers.AutoModelForCausalLM
    try:
        with quiet(), torch.device("meta"):
            module = auto.from_config(
                configuration.parsed, dtype=torch.float32, attn_implementation=None if attention == "auto" else attention
            )
        names: dict[int, list[str]] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        module.to_empty(device="cpu")
        for first, *others in names.values():  # to_empty has separated tied parameters
            for other in others:
                owner, _, own = other.rpartition(".")
                setattr(module.get_submodule(owner), own, module.get_parameter(first))
        if gradient_checkpointing:
            checkpoint_gradients(module)
    except ModelError:
        raise
    except Exception as error:  # a wrong configuration can raise almost any exception in transformers
        message = f"cannot build model_type {configuration.model_type!r} without its weights: {first_line(error)}"
        raise ModelError(message) from error
    return module.eval(), configuration


def write_buffers(module: torch.nn.Module, values: dict[str, torch.Tensor]) -> None:
    """Write the buffers of a module built by `build_empty_model`. values: by name, exactly those of the module."""
    for name, buffer in module.named_buffers():
        buffer.copy_(values[name])
