"""DeMo as its paper writes it down, tensor by tensor: what our DisTrO is measured against.

Source: "DeMo: Decoupled Momentum Optimization" (arXiv 2411.19870), algorithm 1, with 64-bit indices and float32 values, a loop
over parameters, chunks by `einsum`, and all peers' results concatenated before one scatter. Decided: nothing is tuned and nothing
is left out; it is nobody's optimizer, only a yardstick.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from psyche_optim_distro.chunks.transform import chunk_size


@dataclass(frozen=True, slots=True)
class Sent:
    """One tensor's part of a result. indices: int64, values: float32, both [chunks, k]."""

    indices: Tensor
    values: Tensor


def basis(size: int) -> Tensor:
    """Orthonormal DCT-II, float32 [size, size]: coefficients = signal @ basis."""
    position = torch.arange(size).unsqueeze(1)
    matrix = torch.cos(math.pi * (2 * position + 1) * torch.arange(size) / (2 * size)) * math.sqrt(2 / size)
    matrix[:, 0] = math.sqrt(1 / size)
    return matrix


class DemoPaper:
    """parameters: by name, with gradients in `.grad` when `compress` is called."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        *,
        chunk: int = 64,
        topk: int = 8,
        decay: float = 0.999,
        weight_decay: float = 0.1,
    ) -> None:
        self._parameters = {name: parameters[name] for name in sorted(parameters)}
        self._delta = {name: torch.zeros_like(tensor) for name, tensor in self._parameters.items()}
        self._chunk, self._topk, self._decay, self._weight_decay = chunk, topk, decay, weight_decay
        sizes = {chunk_size(side, chunk) for tensor in self._parameters.values() for side in tensor.shape}
        self._basis = {size: basis(size) for size in sizes}

    @torch.no_grad()
    def compress(self, *, learning_rate: float) -> list[Sent]:
        """Momentum, transform, the largest coefficients, and their part taken off the momentum."""
        results = []
        for name, parameter in self._parameters.items():
            delta = self._delta[name]
            assert parameter.grad is not None
            delta.mul_(self._decay).add_(parameter.grad, alpha=learning_rate)
            rows = self._encode(delta)
            count = min(self._topk, rows.shape[1])
            indices = torch.topk(rows.abs(), count, dim=1, sorted=False).indices
            values = rows.gather(1, indices)
            delta.sub_(self._decode(torch.zeros_like(rows).scatter_(1, indices, values), delta.shape))
            results.append(Sent(indices, values))
        return results

    @torch.no_grad()
    def apply(self, results: Sequence[Sequence[Sent]], *, learning_rate: float) -> None:
        """Weight decay, and the sign of the decoded mean of all peers' results, slot by slot."""
        for place, parameter in enumerate(self._parameters.values()):
            indices = torch.cat([result[place].indices for result in results], dim=1)
            values = torch.cat([result[place].values for result in results], dim=1)
            rows = torch.zeros(indices.shape[0], parameter.numel() // indices.shape[0])
            mean = rows.scatter_reduce_(1, indices, values, reduce="mean", include_self=False)
            parameter.mul_(1 - learning_rate * self._weight_decay)
            parameter.sub_(self._decode(mean, parameter.shape).sign_(), alpha=learning_rate)

    def _encode(self, tensor: Tensor) -> Tensor:
        """Coefficients [chunks, elements of a chunk]."""
        if tensor.dim() == 1:
            side = chunk_size(tensor.shape[0], self._chunk)
            return tensor.view(-1, side) @ self._basis[side]

        height, width = (chunk_size(size, self._chunk) for size in tensor.shape)
        blocks = tensor.view(tensor.shape[0] // height, height, tensor.shape[1] // width, width)
        coefficients = torch.einsum("yhxw,hk,wl->yxkl", blocks, self._basis[height], self._basis[width])
        return coefficients.reshape(-1, height * width)

    def _decode(self, rows: Tensor, shape: torch.Size) -> Tensor:
        if len(shape) == 1:
            return (rows @ self._basis[rows.shape[1]].T).view(shape)

        height, width = (chunk_size(size, self._chunk) for size in shape)
        blocks = rows.view(shape[0] // height, shape[1] // width, height, width)
        return torch.einsum("yxkl,hk,wl->yhxw", blocks, self._basis[height], self._basis[width]).reshape(shape)
