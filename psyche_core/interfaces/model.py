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
    """A causal language model on one device. Synchronous and not thread-safe: one worker thread calls it.

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

    @abstractmethod
    def gradients(self, samples: Samples, *, micro_batch_size: int) -> float:
        """Mean next-token cross-entropy (nats per predicted token) over all samples; leaves its gradient in `.grad`.

        Old gradients are dropped first. Labels are the inputs, shifted inside: a sequence gives sequence_length - 1
        predictions. Raises ModelError for token ids out of the vocabulary.
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
