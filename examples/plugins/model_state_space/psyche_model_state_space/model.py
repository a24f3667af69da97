"""A diagonal state-space language model: no attention, and a state of fixed size instead of a cache that grows.

Each layer gates a linear recurrence per channel, h[t] = a * h[t-1] + u[t] with 0 < a < 1. It is computed for all positions at
once, as a sum over earlier positions weighted by powers of a.

config.json: {"model_type": "state_space", "vocab_size": V, "hidden_size": D, "state_size": E, "num_layers": N};
model.safetensors beside it, or random weights. Trains on the CPU only and in float32.
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
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from psyche_core.errors import ModelError, NonFiniteError
from psyche_core.hookspecs import ModelContext
from psyche_core.interfaces import Model
from psyche_core.interfaces.data import Samples

SIZES = ("vocab_size", "hidden_size", "state_size", "num_layers")


class Layer(nn.Module):
    """x (B, T, D) -> x plus a gated recurrence of it. decay: logit of a for each of E channels."""

    def __init__(self, hidden_size: int, state_size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size)
        self.inner = nn.Linear(hidden_size, 2 * state_size, bias=False)
        self.decay = nn.Parameter(torch.empty(state_size))
        self.outer = nn.Linear(state_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        signal, gate = self.inner(self.norm(x)).chunk(2, dim=-1)  # each (B, T, E)
        length = x.shape[1]
        past = torch.arange(length)[:, None] - torch.arange(length)[None, :]  # (T, T): how long ago
        weights = torch.exp(functional.logsigmoid(self.decay)[:, None, None] * past.clamp(min=0)).masked_fill(
            past < 0, 0.0
        )  # (E, T, T)
        state = torch.einsum("ets,bse->bte", weights, signal)
        residual: torch.Tensor = x + self.outer(state * functional.silu(gate))
        return residual


class Network(nn.Module):
    """ids (B, T) -> logits (B, T, V); the output is tied to the embedding."""

    def __init__(self, vocab_size: int, hidden_size: int, state_size: int, num_layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, hidden_size)
        self.layers = nn.ModuleList(Layer(hidden_size, state_size) for _ in range(num_layers))
        self.norm = nn.LayerNorm(hidden_size)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of the next token at every position."""
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return functional.linear(self.norm(x), self.embed.weight)


class StateSpace(Model):
    """The contract around `Network`. Build it with `create_model`."""

    def __init__(self, module: Network, config: Mapping[str, Any]) -> None:
        self._module = module
        self._config = config
        self._parameters = dict(sorted(module.named_parameters()))

    @property
    def module(self) -> Network:
        """ids (B, T) -> logits (B, T, V)."""
        return self._module

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
            message = "StateSpace trains on plain text: it knows neither labels nor texts packed into one sequence"
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
        return functional.cross_entropy(logits, micro[:, 1:].flatten(), reduction="sum") / ids[:, 1:].numel()


def create_model(context: ModelContext) -> StateSpace:
    """The registration's factory. Raises ModelError."""
    if context.device not in ("auto", "cpu") or context.dtype != "float32" or context.gradient_checkpointing:
        message = f"StateSpace runs on the CPU in float32 and keeps its activations, got {context.device} and {context.dtype}"
        raise ModelError(message)

    path = context.source / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        sizes = [int(config[key]) for key in SIZES]
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"{path} must be a JSON object with {', '.join(SIZES)}: {error}"
        raise ModelError(message) from error

    with torch.device("meta"):  # shapes only: torch's own initialisation would draw from the process's random state
        module = Network(*sizes)
    weights = context.source / "model.safetensors"
    try:
        state = load_file(weights) if weights.exists() else _random_state(module, context.seed)
        module.load_state_dict(state, assign=True)
    except Exception as error:  # safetensors and torch raise several kinds for a file that does not fit
        message = f"{weights} does not fit {path}"
        raise ModelError(message) from error
    return StateSpace(module, config)


def _random_state(module: nn.Module, seed: bytes) -> dict[str, torch.Tensor]:
    """First weights in order of name, from a generator of their own; decays from 0.5 to 0.98, so that memories differ."""
    generator = torch.Generator().manual_seed(int.from_bytes(seed[:8], "little"))
    state = module.state_dict()

    def first(name: str) -> torch.Tensor:
        shape = state[name].shape
        if name.endswith("decay"):
            return torch.linspace(0.0, 4.0, shape[0])
        if "norm" in name:
            return torch.ones(shape) if name.endswith("weight") else torch.zeros(shape)
        return torch.randn(shape, generator=generator) * (0.02 if name == "embed.weight" else shape[-1] ** -0.5)

    return {name: first(name) for name in sorted(state)}
