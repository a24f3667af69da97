"""Contract of a model: compute weights, their gradients, and a way to store them. Tensors are opaque here (no torch import).

A model owns the *compute* weights only. The optimizer owns the float32 master weights and writes compute weights through
`parameters`; see psyche_core.interfaces.optimizer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from psyche_core.interfaces.data import Samples
from psyche_core.interfaces.optimizer_parts import OptimizerPart, OptimizerParts


class Model(ABC):
    """A causal language model whose weights are on one device. It is synchronous and not thread-safe: one worker thread calls it.

    Guaranteed: two models built from the same source with the same software give the same bits. Not guaranteed: equal bits
    across software versions or devices (the run compares digests before its first round).
    """

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, Any]:
        """Trainable parameters (torch.Tensor) by full name, in ascending lexicographic order. Tied weights appear once."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Token ids are 0 <= id < vocab_size."""

    @property
    def description(self) -> Mapping[str, bytes]:
        """The small files, by name, that describe the architecture and the tokenizer. They contain no weights and no code.

        A member that writes them into a folder and builds the architecture from it gets the same parameter names and shapes.
        They are equal for every member that has this model, whatever its source. The mapping is empty for a model that files
        cannot describe: every member of such a run must bring the model itself. psyche_core.p2p.description limits names and
        sizes.
        """
        return {}

    @property
    def inference_module(self) -> Any:
        """The whole transformers module with the compute weights, for evaluations between training steps; None if there is none.

        Its caller gives it back as it was.
        """
        return None

    def optimizer_parts(
        self,
        optimizer: str,  # noqa: ARG002  # a model in one process has no use for it
        *,
        settings: Any,  # noqa: ARG002
        create_part: Callable[[Any], OptimizerPart],  # noqa: ARG002
    ) -> OptimizerParts | None:
        """Make a part of an optimizer on each process that computes this model; None if this process computes it alone.

        optimizer: its plugin name. settings: validated. create_part: of its registration, for this process's part. Parts that
        were made before are gone. Raises RanksLost.
        """
        return None

    @abstractmethod
    def gradients(self, samples: Samples, *, micro_batch_size: int) -> float:
        """Mean next-token cross-entropy (nats per predicted token) over all samples; stores its gradient in `.grad`.

        Drops old gradients first. The model shifts the labels: in plain samples, every token except the first of a sequence is
        predicted. If samples have labels, ignored ones count neither in the sum nor in the number of predictions that divides
        it. If they have packed texts, each text counts as if it had its own row. micro_batch_size: sequences per forward pass.
        Raises ModelError for ids outside the vocabulary, for samples without any prediction, and for labels or packed texts if
        the model does not support them; NonFiniteError for a loss that is NaN or infinite. After an exception there are no
        gradients. If memory runs out, torch's own exception is raised, and the caller tries a smaller micro_batch_size.
        """

    @abstractmethod
    def loss(self, samples: Samples, *, micro_batch_size: int) -> float:
        """The same mean with the current compute weights, without gradients. Raises ModelError like `gradients`."""

    @abstractmethod
    def save(self, directory: Path, *, parameters: Mapping[str, Any]) -> None:
        """Write a self-contained checkpoint (config, tokenizer if known, float32 safetensors of `parameters`) atomically.

        parameters: master weights with the same names and shapes. `directory` appears complete or not at all. Raises ModelError.
        """

    def close(self) -> None:  # noqa: B027 - most models have nothing to release
        """Stop other processes that the model started. No other method is called afterwards. Idempotent; raises nothing."""
