"""A recurrent language model: embedding, one GRU layer, output tied to the embedding.

config.json: {"model_type": "tiny_gru", "vocab_size": V, "hidden_size": D}; model.safetensors beside it, or random weights.
Trains on the CPU only and in float32.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the field's own alias
from safetensors.torch import load_file, save_file
from torch import nn

from psyche_core.errors import ModelError, NonFiniteError
from psyche_core.hookspecs import ModelContext
from psyche_core.interfaces import Model
from psyche_core.interfaces.data import Samples


class Gru(nn.Module):
    """ids (B, T) -> logits (B, T, V)."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size, batch_first=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of the next token at every position."""
        hidden, _ = self.gru(self.embed(ids))  # (B, T, D)
        return F.linear(hidden, self.embed.weight)


class TinyGru(Model):
    """The contract around `Gru`. Build it with `create_tiny_gru`."""

    def __init__(self, module: Gru, config: Mapping[str, Any]) -> None:
        self._module = module
        self._config = config
        self._parameters = dict(sorted(module.named_parameters()))

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Ascending by name; the tied output is `embed.weight`."""
        return self._parameters

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return self._module.embed.num_embeddings

    def gradients(self, samples: Samples, *, micro_batch_size: int) -> float:
        """Mean cross-entropy in nats per predicted token; its gradient is left in `.grad`."""
        self._module.zero_grad(set_to_none=True)
        ids = self._token_ids(samples)
        mean = 0.0
        for micro in torch.split(ids, micro_batch_size):  # (b, T)
            loss = self._share_of_mean(micro, ids)
            if not torch.isfinite(loss):
                self._module.zero_grad(set_to_none=True)
                message = f"the training loss is {loss.item()}"
                raise NonFiniteError(message)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            mean += loss.item()
        return mean

    def loss(self, samples: Samples, *, micro_batch_size: int) -> float:
        """The same mean without gradients."""
        ids = self._token_ids(samples)
        with torch.no_grad():
            return float(sum(self._share_of_mean(micro, ids).item() for micro in torch.split(ids, micro_batch_size)))

    def save(self, directory: Path, *, parameters: Mapping[str, Any]) -> None:
        """config.json and model.safetensors, written beside `directory` and renamed."""
        for name, own in self._parameters.items():
            if name not in parameters or parameters[name].shape != own.shape:
                message = f"cannot save: {name} must have shape {tuple(own.shape)}"
                raise ModelError(message)

        partial = directory.parent / f".{directory.name}.{uuid.uuid4().hex}.partial"
        try:
            partial.mkdir(parents=True)
            (partial / "config.json").write_text(json.dumps(dict(self._config)), encoding="utf-8")
            weights = {name: parameters[name].detach().to("cpu", torch.float32).contiguous() for name in self._parameters}
            save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
            for path in (*partial.iterdir(), partial):
                descriptor = os.open(path, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)
            if directory.exists():
                directory.rename(partial.with_suffix(".old"))
            partial.rename(directory)
        except OSError as error:
            message = f"cannot save the model to {directory}: {error}"
            raise ModelError(message) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            shutil.rmtree(partial.with_suffix(".old"), ignore_errors=True)

    def _token_ids(self, samples: Samples) -> torch.Tensor:
        """int64 ids (B, T)."""
        if (samples.labels, samples.position_ids, samples.sequence_lengths) != (None, None, None):
            message = "TinyGru trains on plain text: it knows neither labels nor texts packed into one sequence"
            raise ModelError(message)
        if samples.count < 1 or samples.sequence_length < 2:
            message = "a batch needs at least one sequence of two tokens"
            raise ModelError(message)
        flat = np.frombuffer(samples.tokens, dtype=f"<u{samples.token_size}")
        if int(flat.max()) >= self.vocab_size:
            message = f"token id {int(flat.max())} is outside the vocabulary of {self.vocab_size}"
            raise ModelError(message)
        return torch.from_numpy(flat.astype(np.int64).reshape(samples.count, samples.sequence_length))

    def _share_of_mean(self, micro: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """What `micro` (b, T) adds to the mean over all predictions of `ids` (B, T)."""
        logits = self._module(micro)[:, :-1].flatten(0, 1)  # (b·(T-1), V)
        return F.cross_entropy(logits, micro[:, 1:].flatten(), reduction="sum") / ids[:, 1:].numel()


def create_tiny_gru(context: ModelContext) -> TinyGru:
    """The registration's factory. Raises ModelError."""
    if context.device not in ("auto", "cpu") or context.dtype != "float32" or context.gradient_checkpointing:
        message = f"TinyGru runs on the CPU in float32 and keeps its activations, got {context.device} and {context.dtype}"
        raise ModelError(message)

    path = context.source / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        vocab_size, hidden_size = int(config["vocab_size"]), int(config["hidden_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"{path} must be a JSON object with vocab_size and hidden_size: {error}"
        raise ModelError(message) from error

    with torch.device("meta"):  # shapes only: torch's own initialisation would draw from the process's random state
        module = Gru(vocab_size, hidden_size)
    weights = context.source / "model.safetensors"
    try:
        state = load_file(weights) if weights.exists() else _random_state(module, context.seed)
        module.load_state_dict(state, assign=True)
    except Exception as error:  # safetensors and torch raise several kinds for a file that does not fit
        message = f"{weights} does not fit {path}"
        raise ModelError(message) from error
    return TinyGru(module, config)


def _random_state(module: nn.Module, seed: bytes) -> dict[str, torch.Tensor]:
    """Small normal weights in order of name, from a generator of their own."""
    generator = torch.Generator().manual_seed(int.from_bytes(seed[:8], "little"))
    state = module.state_dict()
    return {name: torch.randn(state[name].shape, generator=generator) * 0.1 for name in sorted(state)}
