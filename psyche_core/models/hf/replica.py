"""One compute module on one device: forward and backward over micro-batches.

Weights and their gradients are float32; with `bfloat16`, matrix products run under autocast. The module stays in eval mode. With
gradient checkpointing, only its layers are set to training mode, because transformers recomputes them only in this mode. A device
computes its micro-batches in order; the CPU waits for it only once, at the end.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 - the usual alias
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from psyche_core.errors import ModelError
from psyche_core.interfaces.data import IGNORED_LABEL
from psyche_core.models.hf.batches import Batch

COMPUTE_DTYPES: Final = ("float32", "bfloat16")

_LEAK: Final = 1e-3
"""Relative to the largest logit, the largest difference that counts as equal. Rounding errors are a thousand times smaller."""


class Replica:
    """One module on one device, see the top of this file.

    module: a causal LM of transformers; it is moved to `device`. dtype: one of COMPUTE_DTYPES.
    """

    def __init__(self, module: torch.nn.Module, *, device: torch.device, dtype: str) -> None:
        self.module: torch.nn.Module = module.to(device)
        self.device = device
        self._autocast = dtype == "bfloat16"
        # named_parameters() returns a tied weight once, under the first of its names
        trainable = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        self.parameters: dict[str, torch.nn.Parameter] = dict(sorted(trainable.items()))

    def accumulate(self, micros: Iterable[Batch], *, predictions: int) -> list[float]:
        """Return the summed cross-entropy of each micro-batch in nats, and add the gradient of sum / predictions to `.grad`.

        predictions: number of predicted tokens of the whole batch.
        """
        sums = []
        for micro in micros:
            loss = self._summed_loss(micro)
            (loss / predictions).backward()  # type: ignore[no-untyped-call]  # untyped in torch
            sums.append(loss.detach())
        return _values(sums)

    def measure(self, micros: Iterable[Batch]) -> list[float]:
        """Return the same sums without computing gradients."""
        with torch.no_grad():
            return _values([self._summed_loss(micro) for micro in micros])

    def copy_weights(self, other: Replica) -> None:
        """Copy another replica's weights. This is needed because the optimizer writes only the first replica's weights."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(other.parameters[name])

    def add_gradients(self, other: Replica) -> None:
        """Add another replica's gradients to ours, in float32."""
        for name, parameter in self.parameters.items():
            theirs = other.parameters[name].grad
            if theirs is not None:
                ours = theirs.to(self.device)
                parameter.grad = ours if parameter.grad is None else parameter.grad.add_(ours)

    def drop_gradients(self) -> None:
        """Delete all gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def sees_later_tokens(self) -> bool:
        """Whether the prediction of a token depends on later tokens. Such a model would see the tokens it has to predict."""
        ids = self._few_tokens()
        changed = _other(ids, place=-1)
        return _differ(self._logits(ids)[:, :-1], self._logits(changed)[:, :-1])

    def mixes_packed_texts(self) -> bool:
        """Whether a text's predictions depend on the text that is packed before it in the same sequence."""
        ids = self._few_tokens()
        half = ids.shape[1] // 2
        positions = torch.arange(half, device=self.device).repeat(2)[None]  # (1, T): both texts start at 0
        changed = _other(ids, place=half - 1)
        return _differ(self._logits(ids, positions)[:, half:], self._logits(changed, positions)[:, half:])

    def _few_tokens(self) -> torch.Tensor:
        """Return 8 token ids, shape (1, 8): 0 to 7, repeated from 0 if the vocabulary is smaller."""
        vocabulary: Any = self.module.get_input_embeddings()  # type: ignore[operator]  # transformers types modules loosely
        return (torch.arange(8, device=self.device) % int(vocabulary.num_embeddings))[None]

    def _logits(self, ids: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        with torch.no_grad():
            return self._forward(ids, positions)

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
        """Return the logits (b, T, V) for ids (b, T)."""
        more = {} if positions is None else {"position_ids": positions}
        logits: torch.Tensor = self.module(input_ids=ids, use_cache=False, **more).logits
        return logits

    def _summed_loss(self, micro: Batch) -> torch.Tensor:
        """Return the cross-entropy summed over the micro-batch's predictions, as a float32 scalar on the device."""
        ids = micro.ids.to(self.device)  # (b, T)
        positions = None if micro.positions is None else micro.positions.to(self.device)
        autocast: AbstractContextManager[Any] = (
            torch.autocast(self.device.type, torch.bfloat16) if self._autocast else nullcontext()
        )
        with autocast:
            logits = self._forward(ids, positions)
        logits = logits[:, :-1].float().flatten(0, 1)  # (b·(T-1), V)
        targets = micro.targets.to(self.device).flatten()
        return F.cross_entropy(logits, targets, reduction="sum", ignore_index=IGNORED_LABEL)


def checkpoint_gradients(module: Any) -> None:
    """Switch on gradient checkpointing: keep only each layer's input and compute the rest again in the backward pass.

    Raises ModelError if the module does not support it.
    """
    layers: list[Any] = [layer for layer in module.modules() if isinstance(layer, GradientCheckpointingLayer)]
    if not layers or not module.supports_gradient_checkpointing:
        kind = type(module).__name__
        message = f"{kind} does not support gradient checkpointing; leave out --gradient-checkpointing"
        raise ModelError(message)

    # layers use no random numbers (no dropout), so the generator's state is not needed for the second computation
    again = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    for layer in layers:
        layer._gradient_checkpointing_func = again  # set directly: the name of transformers' own method depends on its version
        layer.gradient_checkpointing = True
        layer.training = True  # only the flag of the layer: its parts, including dropout, stay in eval mode


def _values(sums: list[torch.Tensor]) -> list[float]:
    """Return the values of scalars on one device. The CPU waits for the device only once."""
    values: list[float] = torch.stack(sums).tolist() if sums else []
    return values


def _other(ids: torch.Tensor, *, place: int) -> torch.Tensor:
    changed = ids.clone()
    changed[:, place] = ids[:, 0] if bool((ids[:, place] != ids[:, 0]).all()) else ids[:, 1]
    return changed


def _differ(first: torch.Tensor, second: torch.Tensor) -> bool:
    return bool((first - second).abs().max() > _LEAK * first.abs().max())
