"""A quadratic model for optimizer tests: a dozen odd-shaped parameters, gradients computed from the tokens, no data files.

Each sample pulls the parameters towards targets drawn from its tokens. The gradient is (weights - mean target), so training moves
all members towards a common solution while every member's gradients differ. It is not a language model: the loss is half the mean
squared distance. It cannot be saved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch

from psyche_core.errors import ModelError
from psyche_core.interfaces.data import Samples
from psyche_core.interfaces.model import Model

TOY_SHAPES: Mapping[str, tuple[int, ...]] = {
    "embed.weight": (96, 64),
    "layers.0.attention.weight": (64, 64),
    "layers.0.norm.weight": (64,),
    "layers.10.mlp.weight": (48, 20),
    "layers.2.experts.weight": (2, 8, 12),
    "layers.2.mlp.weight": (7, 13),
    "odd.bias": (5,),
    "odd.prime.weight": (97, 3),
    "odd.single": (1,),
}
"""Matrices, a norm vector, a 3-D tensor, prime sizes and size 1; layer 10 sorts before layer 2."""


class ToyModel(Model):
    """A quadratic model; see the module.

    Args:
        shapes: by parameter name.
        seed: for the first weights (normal, standard deviation 0.02).
        dtype: of the compute weights.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]] = TOY_SHAPES, *, seed: int = 0, dtype: torch.dtype = torch.float32
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._parameters = {
            name: torch.nn.Parameter((0.02 * torch.randn(shapes[name], generator=generator)).to(dtype)) for name in sorted(shapes)
        }

    @property
    def parameters(self) -> Mapping[str, torch.Tensor]:
        """The compute weights."""
        return self._parameters

    @property
    def vocab_size(self) -> int:
        """Every 16-bit token id is valid."""
        return 2**16

    def gradients(self, samples: Samples, *, micro_batch_size: int) -> float:  # noqa: ARG002 - nothing to split
        """Store weights - mean target in `.grad`; return the loss."""
        targets = self._targets(samples)
        for name, parameter in self._parameters.items():
            parameter.grad = parameter.detach() - targets[name].to(parameter.dtype)

        return self._distance(targets)

    def loss(self, samples: Samples, *, micro_batch_size: int) -> float:  # noqa: ARG002 - nothing to split
        """The loss alone."""
        return self._distance(self._targets(samples))

    def save(self, directory: Path, *, parameters: Mapping[str, torch.Tensor]) -> None:  # noqa: ARG002 - never written
        """Raises ModelError: a toy model cannot be saved."""
        message = f"the toy model has no checkpoint format; nothing was written to {directory}"
        raise ModelError(message)

    def fill_gradients(self, value: float) -> None:
        """Set every gradient to one value."""
        for parameter in self._parameters.values():
            parameter.grad = torch.full_like(parameter, value)

    def _targets(self, samples: Samples) -> dict[str, torch.Tensor]:
        """Mean target over the samples. A sample's target is 0.1 * normal numbers, seeded by its tokens."""
        length = samples.sequence_length * samples.token_size
        targets = {name: torch.zeros(parameter.shape) for name, parameter in self._parameters.items()}
        for row in range(samples.count):
            tokens = samples.tokens[row * length : (row + 1) * length]
            seed = int.from_bytes(hashlib.sha256(tokens).digest()[:6], "little")
            generator = torch.Generator().manual_seed(seed)
            for target in targets.values():
                target += 0.1 / samples.count * torch.randn(target.shape, generator=generator)

        return targets

    def _distance(self, targets: Mapping[str, torch.Tensor]) -> float:
        squares = [(parameter.detach().float() - targets[name]).square().sum() for name, parameter in self._parameters.items()]
        return float(sum(squares) / (2 * sum(parameter.numel() for parameter in self._parameters.values())))


def toy_samples(number: int, *, count: int = 2) -> Samples:
    """`count` samples of four tokens. Another `number` gives other tokens."""
    tokens = b"".join(number.to_bytes(4, "little") + row.to_bytes(4, "little") for row in range(count))
    return Samples(tokens, count, 4, 2)
