"""Uses any torch module as a run's model: implements the interface of `interfaces.model` with an existing object.

- The module is called with token ids, int64 (B, T), and nothing else. It returns logits (B, T, V), an object with such `.logits`,
  or a scalar: its own mean loss over its input, in nats per predicted token.
- It is trained in place and stays in eval mode, so that equal inputs give equal gradients: no dropout, no running averages.
- Its weights at the first use are the run's first weights. They must be equal on all members (seed torch before making the
  module). A copy is kept for a run that starts again.
- A checkpoint is `model.safetensors` with the trained weights and the buffers, and a `config.json` that only contains the name of
  the module's class.

Use `hf.model` for a transformers model: it supports packed texts and labels, and transformers can read its checkpoints.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the usual alias

from psyche_core.errors import ModelError, NonFiniteError
from psyche_core.hookspecs import ModelContext
from psyche_core.interfaces.data import IGNORED_LABEL, Samples
from psyche_core.interfaces.model import Model
from psyche_core.models.hf.batches import Batch, read_batch
from psyche_core.models.hf.devices import pick_devices
from psyche_core.storage.folders import whole_folder

WEIGHTS_FILE = "model.safetensors"
_DTYPES = ("float32", "bfloat16")


class ModuleFactory:
    """Creates the model for one module, as `create` of a registration.

    make: returns the module; called once, in a worker thread. When the model is created again, the same module gets its first
    weights again, or those of the source folder if it has any.
    """

    def __init__(self, make: Callable[[], torch.nn.Module]) -> None:
        self._make = make
        self._module: torch.nn.Module | None = None
        self._first: dict[str, torch.Tensor] = {}

    @property
    def module(self) -> torch.nn.Module | None:
        """The module, or None before the first call."""
        return self._module

    def __call__(self, context: ModelContext) -> Model:
        """Create the model. Raises ModelError for a module that cannot be trained, and for options it does not support."""
        module = self._prepared()
        if context.gradient_checkpointing or context.attention != "auto":
            message = "a model given as an object sets attention and gradient checkpointing itself; leave out these options"
            raise ModelError(message)
        if context.dtype not in _DTYPES:
            message = f"the compute dtype is one of {', '.join(_DTYPES)}, got {context.dtype!r}"
            raise ModelError(message)

        if _is_transformers(module):
            return _transformers_model(module, context, self._first)

        devices = pick_devices(context.device)
        if len(devices) > 1:
            message = f"a torch module uses one device, got {context.device}; several devices need a transformers model"
            raise ModelError(message)

        with torch.no_grad():
            module.load_state_dict(_stored(module, context.source) or self._first)
        return TorchModel(module, device=devices[0], dtype=context.dtype, max_seq_len=context.max_seq_len)

    def _prepared(self) -> torch.nn.Module:
        if self._module is None:
            made: object = self._make()
            if not isinstance(made, torch.nn.Module):
                message = f"model= must return a torch.nn.Module, it returned a {type(made).__name__}"
                raise ModelError(message)

            wrong = sorted({str(p.dtype) for p in made.parameters() if p.requires_grad and p.dtype != torch.float32})
            if wrong:
                message = f"a module's trainable parameters must be float32, got {', '.join(wrong)}; call .float() first"
                raise ModelError(message)

            self._first = {name: tensor.detach().cpu().clone() for name, tensor in made.state_dict().items()}
            self._module = made
        return self._module.eval()


class TorchModel(Model):
    """A torch module as a model, see the top of this file.

    device: the module is moved there. dtype: of its matrix products. max_seq_len: maximum length of a sequence in tokens. Raises
    ModelError if the module has no trainable parameter or its vocabulary size is unknown.
    """

    def __init__(self, module: torch.nn.Module, *, device: torch.device, dtype: str, max_seq_len: int) -> None:
        self._module = module.to(device)
        self._device = device
        self._autocast = dtype == "bfloat16"
        self._max_seq_len = max_seq_len
        self._vocab_size = _vocab_size(module)
        trainable = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        if not trainable:
            message = f"the module {type(module).__name__} has no trainable parameter (requires_grad); there is nothing to train"
            raise ModelError(message)
        self._parameters = dict(sorted(trainable.items()))

    @property
    def parameters(self) -> Mapping[str, torch.nn.Parameter]:
        """Trainable parameters by full name, ascending; float32."""
        return self._parameters

    @property
    def vocab_size(self) -> int:
        """The module's attribute `vocab_size`, otherwise the number of rows of its first embedding."""
        return self._vocab_size

    def gradients(self, samples: Samples, *, micro_batch_size: int) -> float:
        """Return the mean loss in nats per predicted token, and store its gradient in `.grad` of the parameters.

        Raises ModelError, and NonFiniteError for a loss that is NaN or infinite. After an exception no parameter has a gradient.
        """
        batch = self._read(samples)
        self._drop_gradients()
        try:
            mean = 0.0
            for micro in batch.split(micro_batch_size):
                part = self._share(micro, batch.predictions)
                part.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                mean += float(part.detach())
            if not math.isfinite(mean):
                message = f"the training loss is {mean}; the batch, the weights or the learning rate is bad"
                raise NonFiniteError(message)
            if all(parameter.grad is None for parameter in self._parameters.values()):
                message = f"the loss of the module {type(self._module).__name__} depends on none of its trainable parameters"
                raise ModelError(message)
        except BaseException:
            self._drop_gradients()
            raise
        return mean

    def loss(self, samples: Samples, *, micro_batch_size: int) -> float:
        """Return the same mean without computing gradients. Raises ModelError."""
        batch = self._read(samples)
        with torch.no_grad():
            return sum(float(self._share(micro, batch.predictions)) for micro in batch.split(micro_batch_size))

    def save(self, directory: Path, *, parameters: Mapping[str, Any]) -> None:
        """Write config.json and model.safetensors. `directory` appears complete or not at all. Raises ModelError.

        parameters: the values to save, by name.
        """
        from safetensors.torch import save_file

        tensors: dict[str, torch.Tensor] = {}
        for name, tensor in {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}.items():
            if name in self._parameters and (name not in parameters or parameters[name].shape != tensor.shape):
                message = f"cannot save the model: parameter {name} must have shape {tuple(tensor.shape)}"
                raise ModelError(message)
            value = parameters[name] if name in self._parameters else tensor
            tensors[name] = value.detach().cpu().contiguous().clone()
        try:
            with whole_folder(directory) as partial:
                about = {"model_type": "torch_module", "class": type(self._module).__name__}
                (partial / "config.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
                save_file(tensors, partial / WEIGHTS_FILE, metadata={"format": "pt"})
        except Exception as error:  # the file system and safetensors raise many exception types; all mean "not saved"
            message = f"cannot save the model to {directory}: {error}"
            raise ModelError(message) from error

    def _read(self, samples: Samples) -> Batch:
        batch = read_batch(samples, vocab_size=self._vocab_size, max_seq_len=self._max_seq_len)
        if batch.positions is not None:
            message = "a torch module gets only token ids and cannot separate packed texts; use one text per sequence"
            raise ModelError(message)
        return batch

    def _share(self, micro: Batch, predictions: int) -> torch.Tensor:
        """Return the contribution of a micro-batch to the mean over `predictions`, as a float32 scalar."""
        ids = micro.ids.to(self._device)  # (b, T)
        run = torch.autocast(self._device.type, torch.bfloat16) if self._autocast else contextlib.nullcontext()
        with run:
            answer = self._module(ids)
        found = getattr(answer, "logits", answer)
        if isinstance(found, torch.Tensor) and found.dim() == 0:
            if bool((micro.targets != micro.ids[:, 1:]).any()):
                message = "this data has its own labels, but the module returns a loss over all tokens; make it return logits"
                raise ModelError(message)
            return found.float() * (micro.predictions / predictions)

        if not isinstance(found, torch.Tensor) or found.dim() != 3 or found.shape[:2] != ids.shape:
            got = f"shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(answer).__name__
            message = (
                f"the module {type(self._module).__name__} must return, for ids of shape {tuple(ids.shape)}, logits (batch, "
                f"tokens, vocabulary), an object with such .logits, or a scalar loss; got {got}"
            )
            raise ModelError(message)
        logits = found[:, :-1].float().flatten(0, 1)  # (b·(T-1), V)
        targets = micro.targets.to(self._device).flatten()
        return F.cross_entropy(logits, targets, reduction="sum", ignore_index=IGNORED_LABEL) / predictions

    def _drop_gradients(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None


def _vocab_size(module: torch.nn.Module) -> int:
    own = getattr(module, "vocab_size", None)
    if isinstance(own, int) and own > 0:
        return own
    for part in module.modules():
        if isinstance(part, torch.nn.Embedding):
            return part.num_embeddings

    message = f"the module {type(module).__name__} has no nn.Embedding and no vocab_size; give it the attribute vocab_size (int)"
    raise ModelError(message)


def _stored(module: torch.nn.Module, source: Path) -> dict[str, torch.Tensor] | None:
    """Return a checkpoint's tensors by name, tied ones under all their names, or None without a checkpoint. Raises ModelError."""
    if not (source / WEIGHTS_FILE).is_file():
        return None

    from safetensors.torch import load_file

    try:
        found = load_file(source / WEIGHTS_FILE)
    except Exception as error:  # safetensors raises its own exceptions
        message = f"cannot read {source / WEIGHTS_FILE}: {error}"
        raise ModelError(message) from error

    wanted = module.state_dict(keep_vars=True)
    names = {id(tensor): name for name, tensor in reversed([*module.named_parameters(), *module.named_buffers()])}
    tensors = {name: found.get(name, found.get(names.get(id(tensor), ""))) for name, tensor in wanted.items()}
    missing = [name for name, tensor in tensors.items() if tensor is None or tensor.shape != wanted[name].shape]
    if missing:
        message = f"the checkpoint {source} does not fit the module {type(module).__name__}: {missing[0]} is missing or differs"
        raise ModelError(message)
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def _is_transformers(module: torch.nn.Module) -> bool:
    """Whether the module is a model of transformers. Does not import transformers."""
    return any(cls.__name__ == "PreTrainedModel" and cls.__module__.startswith("transformers.") for cls in type(module).__mro__)


def _transformers_model(module: Any, context: ModelContext, first: Mapping[str, torch.Tensor]) -> Model:
    from psyche_core.models.hf.configuration import Configuration
    from psyche_core.models.hf.model import HfModel
    from psyche_core.models.hf.weights import load_module, stored_tensors

    fields = json.loads(module.config.to_json_string(use_diff=False))
    configuration = Configuration(context.source, fields, module.config)
    configuration.check_length(context.max_seq_len)
    stored = stored_tensors(context.source)
    with torch.no_grad():
        module.load_state_dict(load_module(configuration, stored, attention=None).state_dict() if stored else first)
    devices = pick_devices(context.device)
    return HfModel(module, configuration=configuration, devices=devices, dtype=context.dtype, max_seq_len=context.max_seq_len)
