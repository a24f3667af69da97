"""Causal language models of Hugging Face transformers: `HfLlama` (model_type llama) and `HfAuto` (any causal LM).

Decided here:
- Weights stay float32; `dtype = "bfloat16"` runs the matrix products under autocast. So two members with different compute
  dtypes still start from equal masters, and gradients add up in float32 over micro-batches.
- No dropout: the module stays in eval mode, so equal inputs give equal gradients.
- The folder decides: safetensors present means load them, all of them; none means random weights from the run's seed, drawn
  on the CPU from a generator of their own.
- Reads local folders only, never runs code found in one, and reads no pickle (`*.bin`).
"""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the field's own alias
import transformers

from psyche_core.errors import ModelError, NonFiniteError
from psyche_core.hookspecs import ModelContext
from psyche_core.interfaces.data import Samples
from psyche_core.interfaces.model import Model

TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
"""Copied from the source folder into every checkpoint, when present."""

COMPUTE_DTYPES: Final = ("float32", "bfloat16")

_GENERATOR_IN_USE = threading.Lock()  # torch's CPU generator is one per process; two members in one process take turns


class HfModel(Model):
    """A transformers causal LM. Build it with `create_llama` or `create_auto`."""

    def __init__(self, module: torch.nn.Module, *, source: Path, device: torch.device, dtype: str, max_seq_len: int) -> None:
        self._module = module.to(device).eval()
        self._source = source
        self._device = device
        self._autocast = dtype == "bfloat16"
        self._max_seq_len = max_seq_len
        # named_parameters() gives a tied weight once, under the first of its names
        trainable = {name: parameter for name, parameter in self._module.named_parameters() if parameter.requires_grad}
        self._parameters = dict(sorted(trainable.items()))
        self._vocab_size = int(self._module.get_input_embeddings().num_embeddings)  # type: ignore[operator]  # transformers types modules loosely

    @property
    def parameters(self) -> Mapping[str, torch.nn.Parameter]:
        """Trainable parameters by full name, ascending; float32; a tied weight once."""
        return self._parameters

    @property
    def vocab_size(self) -> int:
        """Rows of the input embedding."""
        return self._vocab_size

    def gradients(self, samples: Samples, *, micro_batch_size: int) -> float:
        """Mean next-token cross-entropy in nats per predicted token; its gradient is left in `.grad`.

        Raises ModelError for samples that do not fit the model and NonFiniteError (leaving no gradient) for a loss that is
        NaN or infinite.
        """
        ids = self._token_ids(samples)  # (B, T)
        predictions = ids.shape[0] * (ids.shape[1] - 1)
        self._drop_gradients()
        mean = 0.0
        for micro in torch.split(ids, micro_batch_size):  # (b, T); the last may be smaller, so weigh by tokens
            loss = self._summed_loss(micro) / predictions
            if not torch.isfinite(loss):
                self._drop_gradients()
                message = f"the training loss is {loss.item()}; the batch, the weights or the learning rate is bad"
                raise NonFiniteError(message)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            mean += loss.item()

        return mean

    def loss(self, samples: Samples, *, micro_batch_size: int) -> float:
        """The same mean without gradients. A loss that is not finite is returned as it is."""
        ids = self._token_ids(samples)  # (B, T)
        predictions = ids.shape[0] * (ids.shape[1] - 1)
        with torch.no_grad():
            return math.fsum((self._summed_loss(micro) / predictions).item() for micro in torch.split(ids, micro_batch_size))

    def save(self, directory: Path, *, parameters: Mapping[str, Any]) -> None:
        """Write config.json, model.safetensors (float32), generation_config.json and tokenizer files if the source had them.

        A complete `directory` appears by renaming a finished sibling; an older one of that name is replaced. Raises ModelError.
        """
        state = self._state_dict(parameters)
        partial = directory.parent / f".{directory.name}.{uuid.uuid4().hex}.partial"
        try:
            partial.mkdir(parents=True)
            with _quiet():
                self._module.save_pretrained(partial, state_dict=state, max_shard_size="100TB")  # type: ignore[operator]  # as above
            # transformers writes a generation config of its own making; the source's, if any, is the true one
            (partial / "generation_config.json").unlink(missing_ok=True)
            for name in ("generation_config.json", *TOKENIZER_FILES):
                if (self._source / name).is_file():
                    shutil.copyfile(self._source / name, partial / name)

            _publish(partial, directory)
        except Exception as error:  # transformers and safetensors raise many kinds here; all mean "not saved"
            message = f"cannot save the model to {directory}: {_first_line(error)}"
            raise ModelError(message) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _token_ids(self, samples: Samples) -> torch.Tensor:
        """Samples as int64 ids on the device. Shape (B, T)."""
        if samples.count < 1 or not 2 <= samples.sequence_length <= self._max_seq_len:
            message = (
                f"a batch needs at least one sequence of 2 to {self._max_seq_len} tokens, "
                f"got {samples.count} of {samples.sequence_length}"
            )
            raise ModelError(message)

        flat = np.frombuffer(samples.tokens, dtype=f"<u{samples.token_size}")
        highest = int(flat.max())
        if highest >= self._vocab_size:
            message = (
                f"token id {highest} is outside the model's vocabulary of {self._vocab_size}; was the data made for this model?"
            )
            raise ModelError(message)
        ids = flat.astype(np.int64).reshape(samples.count, samples.sequence_length)
        return torch.from_numpy(ids).to(self._device)

    def _summed_loss(self, ids: torch.Tensor) -> torch.Tensor:
        """Cross-entropy summed over the b·(T-1) predictions of `ids` (b, T), as a float32 scalar."""
        autocast: AbstractContextManager[Any] = (
            torch.autocast(self._device.type, torch.bfloat16) if self._autocast else nullcontext()
        )
        with autocast:
            logits = self._module(input_ids=ids, use_cache=False).logits  # (b, T, V)
        logits = logits[:, :-1].float().flatten(0, 1)  # (b·(T-1), V)
        return F.cross_entropy(logits, ids[:, 1:].flatten(), reduction="sum")

    def _drop_gradients(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None

    def _state_dict(self, parameters: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The module's whole state dict with the given weights in place of ours, tied names sharing one tensor."""
        names: dict[int, str] = {id(parameter): name for name, parameter in self._parameters.items()}
        for name, own in self._parameters.items():
            if name not in parameters or parameters[name].shape != own.shape:
                got = tuple(parameters[name].shape) if name in parameters else "nothing"
                message = f"cannot save the model: parameter {name} must have shape {tuple(own.shape)}, got {got}"
                raise ModelError(message)

        masters = {name: tensor.detach().to("cpu", torch.float32) for name, tensor in parameters.items()}
        state = {}
        for key, tensor in self._module.state_dict(keep_vars=True).items():
            known = names.get(id(tensor))  # several keys of one tied weight get one tensor, which is then written once
            state[key] = tensor.detach() if known is None else masters[known]

        return state


def create_llama(context: ModelContext) -> HfModel:
    """Architecture `HfLlama`: config.json must say `"model_type": "llama"`. Raises ModelError."""
    return _create(context, required_type="llama")


def create_auto(context: ModelContext) -> HfModel:
    """Architecture `HfAuto`: any causal language model transformers itself implements. Raises ModelError."""
    return _create(context, required_type=None)


def _create(context: ModelContext, *, required_type: str | None) -> HfModel:
    if context.dtype not in COMPUTE_DTYPES:
        message = f"the compute dtype is one of {', '.join(COMPUTE_DTYPES)}, got {context.dtype!r}"
        raise ModelError(message)
    if context.options:
        message = f"HfLlama and HfAuto take no options, got {', '.join(sorted(context.options))}"
        raise ModelError(message)

    device = pick_device(context.device)
    config = _read_config(context.source, required_type=required_type)
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None and context.max_seq_len > limit:
        message = (
            f"the run trains sequences of {context.max_seq_len} tokens but {context.source / 'config.json'} "
            f"allows max_position_embeddings {limit}; change one of them"
        )
        raise ModelError(message)

    try:
        # forking only the CPU's generator: manual_seed on it alone leaves every GPU's random state untouched
        auto: Any = transformers.AutoModelForCausalLM
        with _GENERATOR_IN_USE, _quiet(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int.from_bytes(context.seed[:8], "little"))
            if any(context.source.glob("*.safetensors")):
                module = _load_weights(context.source, config)
            else:
                _refuse_pickled_weights(context.source)
                module = auto.from_config(config, dtype=torch.float32)
    except ModelError:
        raise
    except Exception as error:  # a broken config or file surfaces as almost any exception of transformers or safetensors
        message = f"cannot build a causal language model from {context.source}: {_first_line(error)}"
        raise ModelError(message) from error

    if module.can_generate():
        module.generation_config = type(module.generation_config)()  # never used; the source's may be one that cannot be saved
    return HfModel(module, source=context.source, device=device, dtype=context.dtype, max_seq_len=context.max_seq_len)


def _read_config(source: Path, *, required_type: str | None) -> Any:
    path = source / "config.json"
    if not path.is_file():
        message = f"{source} holds no config.json; a model source is a folder with config.json and, if trained, safetensors"
        raise ModelError(message)

    try:
        model_type = json.loads(path.read_text(encoding="utf-8"))["model_type"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        message = f"{path} is not a model configuration: expected a JSON object with a model_type"
        raise ModelError(message) from error

    if required_type is not None and model_type != required_type:
        message = f"{path} says model_type {model_type!r}, this architecture needs {required_type!r}; try architecture HfAuto"
        raise ModelError(message)

    try:
        with _quiet():
            config = transformers.AutoConfig.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # unknown model types and invalid fields come as several kinds
        message = f"transformers {transformers.__version__} cannot read {path} (model_type {model_type!r}): {_first_line(error)}"
        raise ModelError(message) from error

    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        message = f"model_type {model_type!r} in {path} is not a causal language model"
        raise ModelError(message)
    return config


def _load_weights(source: Path, config: Any) -> Any:
    """The module with every tensor of the folder, and no other. Raises ModelError."""
    auto: Any = transformers.AutoModelForCausalLM
    module, info = auto.from_pretrained(
        source,
        config=config,
        dtype=torch.float32,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        ignore_mismatched_sizes=True,  # so that they are reported below, by name
        output_loading_info=True,
    )
    problems = {
        "missing": sorted(info["missing_keys"]),
        "unexpected": sorted(info["unexpected_keys"]),
        "wrongly shaped": sorted(str(entry[0]) for entry in info["mismatched_keys"]),
    }
    for problem, names in problems.items():
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            message = f"the weights in {source} do not fit its config.json: tensor {names[0]}{more} {problem}"
            raise ModelError(message)

    return module


def _refuse_pickled_weights(source: Path) -> None:
    """Random weights must never stand in for trained ones that we do not read."""
    for pattern in ("*.bin", "*.pt", "*.pth", "*.gguf"):
        for path in source.glob(pattern):
            message = (
                f"{path} holds weights in a format that is not read; convert them to safetensors, or remove it to start at random"
            )
            raise ModelError(message)


def pick_device(name: str) -> torch.device:
    """`auto`, `cpu`, `mps`, `cuda` or `cuda:N` as a device that exists here. Raises ModelError."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    kind, colon, index = name.partition(":")
    if kind not in ("cpu", "mps", "cuda") or (colon and (kind != "cuda" or not index.isdecimal())):
        message = f"a device is auto, cpu, mps, cuda or cuda:N, got {name!r}"
        raise ModelError(message)

    if kind == "cuda" and not (torch.cuda.is_available() and int(index or 0) < torch.cuda.device_count()):
        count = torch.cuda.device_count()
        message = f"device {name} was asked for, but torch {torch.__version__} sees {count} CUDA devices; use cpu or auto"
        raise ModelError(message)
    if kind == "mps" and not torch.backends.mps.is_available():
        message = f"device mps was asked for, but torch {torch.__version__} finds no Apple GPU; use cpu or auto"
        raise ModelError(message)
    return torch.device(name)


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and only errors from transformers inside; its settings are put back after."""
    log: Any = transformers.utils.logging
    verbosity = log.get_verbosity()
    bars = log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()


def _publish(partial: Path, directory: Path) -> None:
    """Flush the finished folder to disk and rename it to its name. Only between the two renames is there none of that name."""
    for path in partial.iterdir():
        _fsync(path)
    _fsync(partial)
    old = partial.with_suffix(".old")
    if directory.exists():
        directory.rename(old)
    try:
        partial.rename(directory)
    except OSError:
        if old.exists():
            old.rename(directory)
        raise
    _fsync(directory.parent)
    shutil.rmtree(old, ignore_errors=True)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
