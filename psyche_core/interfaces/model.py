"""Contract of a model: compute weights, their gradients, and a way to store them. Tensors are opaque here (no torch import).

A model owns the *compute* weights only. The optimizer owns the float32 master weights and writes compute weights through
`parameters`; see psyche_core.interfaces.optimizer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psyche_core.interfaces.data import Samples


class Model(ABC):
    """A causal language model; its weights are on one device. Synchronous and not thread-safe: one worker thread calls it.

    Guaranteed: two models built from the same source on the same software give the same bits. Not guaranteed: that across
    versions or devices (the run compares digests before its first round).
    """

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, Any]:
        """Trainable parameters by full name, in ascending lexicographic order. Tied weights appear once. torch.Tensor each."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Token ids are 0 <= id < vocab_size."""

    @property
    def description(self) -> Mapping[str, bytes]:
        """The small files that say how this model is built and what its tokens are, by name: no weights, no code.

        Who writes them into a folder and builds the same architecture from it, without weights, gets the same parameters. Equal
        for every member that has this model, wherever it got it from. Empty for a model that cannot be described so: those who
        join a run of it must bring it. Names and sizes as psyche_core.p2p.description allows.
        """
        return {}

    @abstractmethod
    def gradients(self, samples: Samples, *, micro_batch_size: int) -> float:
        """Mean next-token cross-entropy (nats per predicted token) over all samples; leaves its gradient in `.grad`.

        Old gradients are dropped first. Labels are shifted inside: of plain samples every token but a sequence's first is
        predicted. Where samples carry labels, ignored ones count neither in the sum nor in the number divided by; where they
        carry packed texts, each counts as if it stood in a row of its own. Raises ModelError for ids out of the vocabulary, for
        samples without a single prediction, and for labels or packed texts in a model that does not know them;
        NonFiniteError for a loss that is NaN or infinite. An exception leaves no gradient; running out of memory is torch's own
        exception, after which a smaller micro_batch_size is tried.
        """

    @abstractmethod
    def loss(self, samples: Samples, *, micro_batch_size: int) -> float:
        """The same mean without gradients, with the compute weights as they are."""

    @abstractmethod
    def save(self, directory: Path, *, parameters: Mapping[str, Any]) -> None:
        """Write a self-contained checkpoint (config, tokenizer if known, float32 safetensors of `parameters`) atomically.

        parameters: master weights by the same names and shapes. `directory` appears complete or not at all.
        Raises ModelError.
        """

    def close(self) -> None:  # noqa: B027 - most models have nothing to let go of
        """End what the model runs beside this process. Nothing else is called afterwards. Idempotent; raises nothing."""
