"""The contract of a model around one or more replicas of a transformers module.

With several devices, each computes its part of the micro-batches in a thread of its own, with the first one's weights. Gradients
are summed on the first in the order of devices, so the sum does not depend on which was faster.
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
"""What each replica does with its micro-batches: one number for each."""


class HfModel(Model):
    """A transformers causal LM. Build it with the factories of `psyche_core.builtin.hf_models`.

    module: on any device, float32, eval mode. devices: at least one; the first owns the weights. dtype: compute dtype.
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
        self._keeps_texts_apart = False  # not known before the first packed batch
        if self._first.sees_later_tokens():
            message = (
                f"model_type {configuration.model_type!r} in {configuration.source} predicts a token from what comes after it, "
                "so it cannot be trained as a causal language model; is is_decoder missing in its config.json?"
            )
            raise ModelError(message)

    @property
    def parameters(self) -> Mapping[str, torch.nn.Parameter]:
        """Trainable parameters by full name, ascending; float32, on the first device; a tied weight once."""
        return self._first.parameters

    @property
    def description(self) -> Mapping[str, bytes]:
        """config.json without what saving changes, and the tokenizer and generation files of the source."""
        return describe(self._configuration)

    @property
    def vocab_size(self) -> int:
        """Rows of the input embedding."""
        return self._vocab_size

    def gradients(self, samples: Samples, *, micro_batch_size: int) -> float:
        """Mean cross-entropy in nats per predicted token; its gradient is left in `.grad`.

        Raises ModelError for samples that do not fit the model and NonFiniteError for a loss that is NaN or infinite; whatever
        is raised, no gradient is left.
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
        """The same mean without gradients. A loss that is not finite is returned as it is."""
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

        dtype: of the parameters on disk, float32 or bfloat16. max_shard_bytes: of one safetensors file; more become shards with
        an index. A complete `directory` appears by renaming a finished sibling; an older one of that name is replaced. Beside
        the model one layer's worth of memory is needed at most. Raises ModelError.
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
                    f"model_type {self._configuration.model_type!r} cannot keep texts apart that are packed into one sequence; "
                    "use data with one text in each"
                )
                raise ModelError(message)
            self._keeps_texts_apart = True
        return batch

    def _accumulate(self, batch: Batch, micro_batch_size: int) -> float:
        """Summed cross-entropy of the batch; leaves the gradient of the mean in our parameters' `.grad`."""
        sums = self._spread(batch, micro_batch_size, functools.partial(Replica.accumulate, predictions=batch.predictions))
        for other in self._replicas[1:]:
            self._first.add_gradients(other)
            other.drop_gradients()
        return sum(sums)

    def _measure(self, batch: Batch, micro_batch_size: int) -> float:
        """The same sum without gradients."""
        return sum(self._spread(batch, micro_batch_size, Replica.measure))

    def _spread(self, batch: Batch, micro_batch_size: int, work: Work) -> list[float]:
        """Every replica's numbers together; micro-batches go to the replicas in turn, none larger than is needed to use all."""
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
        """The module's state with the given weights in place of ours, tied ones once; and the names of those weights."""
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
                weights[known] = parameters[known]  # further keys of a tied weight change nothing
            elif key not in ignored:
                weights[key] = tensor
        return weights, frozenset(self.parameters)
