"""Implements the model interface with one or more replicas of a transformers module.

With several devices, each device computes its part of the micro-batches in its own thread, with a copy of the first device's
weights. Gradients are summed on the first device, in the order of devices, so the sum does not depend on their speed.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from psyche_core.errors import ModelError, NonFiniteError
from psyche_core.interfaces.data import Samples
from psyche_core.interfaces.model import Model
from psyche_core.models.hf.batches import Batch, read_batch
from psyche_core.models.hf.configuration import Configuration
from psyche_core.models.hf.replica import Replica
from psyche_core.models.hf.saving import MAX_SHARD_BYTES, SAVED_DTYPES, Checkpoint, describe

Work = Callable[[Replica, Sequence[Batch]], list[float]]
"""Function that processes a replica's micro-batches and returns one number for each."""


class HfModel(Model):
    """A transformers causal LM. Build it with the factories of `psyche_core.builtin.hf_models`.

    module: on any device, float32, eval mode. devices: at least one; the first owns the weights. dtype: compute dtype. Raises
    ModelError if the module predicts a token from later tokens.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        configuration: Configuration,
        devices: Sequence[torch.device],
        dtype: str = "float32",
        max_seq_len: int,
    ) -> None:
        modules = [module, *(copy.deepcopy(module) for _ in devices[1:])]
        self._replicas = [Replica(each, device=device, dtype=dtype) for each, device in zip(modules, devices, strict=True)]
        self._first = self._replicas[0]
        self._configuration = configuration
        self._max_seq_len = max_seq_len
        self._vocab_size = int(module.get_input_embeddings().num_embeddings)  # type: ignore[operator]  # transformers types modules loosely
        self._keeps_texts_apart = False  # checked at the first packed batch
        if self._first.sees_later_tokens():
            message = (
                f"model_type {configuration.model_type!r} in {configuration.source} predicts a token from later tokens, "
                "so it cannot be trained as a causal language model; is is_decoder missing in its config.json?"
            )
            raise ModelError(message)

    @property
    def parameters(self) -> Mapping[str, torch.nn.Parameter]:
        """Trainable parameters by full name, ascending; float32, on the first device; a tied weight once."""
        return self._first.parameters

    @property
    def description(self) -> Mapping[str, bytes]:
        """config.json without the keys that saving changes, and the tokenizer and generation files of the source, by name."""
        return describe(self._configuration)

    @property
    def inference_module(self) -> Any:
        """The first device's module."""
        return self._first.module

    @property
    def vocab_size(self) -> int:
        """Number of rows of the input embedding."""
        return self._vocab_size

    def gradients(self, samples: Samples, *, micro_batch_size: int) -> float:
        """Return the mean cross-entropy in nats per predicted token, and store its gradient in `.grad` of the parameters.

        Raises ModelError for samples that do not fit the model and NonFiniteError for a loss that is NaN or infinite. After an
        exception no parameter has a gradient.
        """
        batch = self._read(samples)
        self._drop_gradients()
        try:
            mean = self._accumulate(batch, micro_batch_size) / batch.predictions
            if not math.isfinite(mean):
                message = f"the training loss is {mean}; the batch, the weights or the learning rate is bad"
                raise NonFiniteError(message)
        except BaseException:
            self._drop_gradients()
            raise
        return mean

    def loss(self, samples: Samples, *, micro_batch_size: int) -> float:
        """Return the same mean without computing gradients. A loss that is not finite is also returned."""
        batch = self._read(samples)
        return self._measure(batch, micro_batch_size) / batch.predictions

    def save(
        self,
        directory: Path,
        *,
        parameters: Mapping[str, Any],
        dtype: str = "float32",
        max_shard_bytes: int = MAX_SHARD_BYTES,
    ) -> None:
        """Write config.json, safetensors, and generation config and tokenizer files if the source had them.

        parameters: the values to save, by name. dtype: of the parameters on disk, float32 or bfloat16. max_shard_bytes: maximum
        size of one safetensors file; a larger model is written as several files with an index. The folder is written under
        another name and then renamed, so `directory` appears complete; an older one is replaced. Needs memory for at most one
        layer in addition to the model. Raises ModelError.
        """
        if dtype not in SAVED_DTYPES:
            message = f"a model is saved as one of {', '.join(SAVED_DTYPES)}, got {dtype!r}"
            raise ModelError(message)

        weights, converted = self._to_save(parameters)
        checkpoint = Checkpoint(self._first.module, self._configuration, weights, converted, dtype)
        checkpoint.write(directory, max_shard_bytes=max_shard_bytes)

    def _read(self, samples: Samples) -> Batch:
        batch = read_batch(samples, vocab_size=self._vocab_size, max_seq_len=self._max_seq_len)
        if batch.packed and not self._keeps_texts_apart:
            if self._first.mixes_packed_texts():
                message = (
                    f"model_type {self._configuration.model_type!r} cannot separate texts that are packed into one sequence; "
                    "use data with one text per sequence"
                )
                raise ModelError(message)
            self._keeps_texts_apart = True
        return batch

    def _accumulate(self, batch: Batch, micro_batch_size: int) -> float:
        """Return the summed cross-entropy of the batch, and store the gradient of the mean in our parameters' `.grad`."""
        sums = self._spread(batch, micro_batch_size, functools.partial(Replica.accumulate, predictions=batch.predictions))
        for other in self._replicas[1:]:
            self._first.add_gradients(other)
            other.drop_gradients()
        return sum(sums)

    def _measure(self, batch: Batch, micro_batch_size: int) -> float:
        """Return the same sum without computing gradients."""
        return sum(self._spread(batch, micro_batch_size, Replica.measure))

    def _spread(self, batch: Batch, micro_batch_size: int, work: Work) -> list[float]:
        """Run `work` on all replicas and return all numbers.

        The micro-batches are given to the replicas in turn. They are made smaller if otherwise some replicas would get none.
        """
        count = len(self._replicas)
        micros = list(batch.split(min(micro_batch_size, -(-batch.count // count))))
        if count == 1:
            return work(self._first, micros)

        for other in self._replicas[1:]:
            other.copy_weights(self._first)
        with ThreadPoolExecutor(max_workers=count) as threads:
            jobs = [threads.submit(work, replica, micros[turn::count]) for turn, replica in enumerate(self._replicas)]
            return [value for job in jobs for value in job.result()]

    def _drop_gradients(self) -> None:
        for replica in self._replicas:
            replica.drop_gradients()

    def _to_save(self, parameters: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], frozenset[str]]:
        """Return the module's state with the given weights, tied ones once, and the names of the parameters.

        Raises ModelError if a parameter is missing or has another shape.
        """
        for name, own in self.parameters.items():
            if name not in parameters or parameters[name].shape != own.shape:
                got = tuple(parameters[name].shape) if name in parameters else "nothing"
                message = f"cannot save the model: parameter {name} must have shape {tuple(own.shape)}, got {got}"
                raise ModelError(message)

        ours = {id(parameter): name for name, parameter in self.parameters.items()}
        module: Any = self._first.module
        ignored = frozenset(module._keys_to_ignore_on_save or ())
        weights: dict[str, torch.Tensor] = {}
        for key, tensor in module.state_dict(keep_vars=True).items():
            known = ours.get(id(tensor))
            if known is not None:
                weights[known] = parameters[known]  # a tied weight has several keys but is stored once
            elif key not in ignored:
                weights[key] = tensor
        return weights, frozenset(self.parameters)
