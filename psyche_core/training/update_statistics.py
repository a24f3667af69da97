"""Statistics of the optimizer at every N-th applied step, for people: how far tensors moved, and whether as our own momentum
says.

Measuring only reads, so training gives the same bits as without it. A group is all tensors whose names differ only in numbers,
such as one kind of matrix of all layers. Norms of weights and momentum are exact; movement and signs use at most SAMPLE evenly
spaced values of each tensor, which costs little memory.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.telemetry.events import OptimizerStatistics

logger: logging.Logger = logging.getLogger("psyche.training")

_Measured = TypeVar("_Measured")

SAMPLE = 16_384
"""Most values of a tensor that are compared before and after a step."""


@dataclass(slots=True)
class _Sums:
    """Sums over the tensors of a group. moved: estimate of the squared movement.

    equal: values with equal signs, of `compared`.
    """

    values: int = 0
    weights: float = 0.0
    momentum: float = 0.0
    moved: float = 0.0
    equal: int = 0
    compared: int = 0


_Momentum = Mapping[str, tuple[Tensor, float]]
"""For each tensor's momentum: the signs of its sample, int8, and the squared norm of the whole momentum."""

_MOST_STEPS = 4
"""Most trained steps whose results may still be applied; in a run there are two."""


class UpdateStatistics:
    """Measures the steps whose number is a multiple of `every`. Call it in the thread that trains and applies.

    Our own momentum is measured when our result of the step is made, because what was sent is later subtracted from it.
    """

    def __init__(self, optimizer: Optimizer, *, every: int) -> None:
        self._optimizer = optimizer
        self._every = every
        self._failed = False
        self._own: dict[int, _Momentum] = {}
        self._taken: tuple[OptimizerStatistics, ...] = ()

    def trained(self, step: int) -> None:
        """Call this after our result of a step was made."""
        if step % self._every == 0:
            own = self._measured(self._own_momentum)
            if own:
                self._own[step] = own
                for older in sorted(self._own)[:-_MOST_STEPS]:
                    del self._own[older]

    @contextmanager
    def around(self, step: int) -> Iterator[None]:
        """Enter this while applying the results of a step."""
        if step % self._every != 0:
            yield
            return

        before = self._measured(self._sampled)
        yield
        own = self._own.pop(step, {})
        if before is not None:
            self._taken += self._measured(lambda: _statistics(step, self._optimizer.masters, before, own)) or ()

    def _sampled(self) -> dict[str, Tensor]:
        return {name: _sample(master).clone() for name, master in self._optimizer.masters.items()}

    def _own_momentum(self) -> _Momentum:
        return {name: _signs(tensor) for name, tensor in self._optimizer.momentum.items()}

    def _measured(self, measure: Callable[[], _Measured]) -> _Measured | None:
        """Return the result of a measurement; None if it fails, because a failure must not end training."""
        try:
            return measure()
        except Exception as error:
            if not self._failed:
                logger.warning("statistics of the optimizer could not be computed: %r; training goes on without them", error)
            self._failed = True
            return None

    def take(self) -> tuple[OptimizerStatistics, ...]:
        """Return what was measured since the last call, by group in ascending order; usually nothing."""
        taken, self._taken = self._taken, ()
        return taken


def group_of(name: str) -> str:
    """Return the group of a parameter: its name with `*` for each number between dots."""
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def _statistics(
    step: int, masters: Mapping[str, Any], before: Mapping[str, Tensor], own: _Momentum
) -> tuple[OptimizerStatistics, ...]:
    groups: dict[str, _Sums] = {}
    for name, master in masters.items():
        sums = groups.setdefault(group_of(name), _Sums())
        if master.numel() == 0:
            continue

        moved = before[name] - _sample(master)  # the direction that is subtracted, as momentum is
        sums.values += master.numel()
        sums.weights += _squared_norm(master)
        sums.moved += _squared_norm(moved) * master.numel() / moved.numel()
        if name in own:
            signs, squared = own[name]
            sums.momentum += squared
            both = (signs != 0) & (moved != 0)
            sums.compared += int(both.sum())
            sums.equal += int((both & (signs == torch.sign(moved))).sum())
    return tuple(
        OptimizerStatistics(
            step=step,
            group=group,
            values=sums.values,
            weight_norm=math.sqrt(sums.weights),
            update_norm=math.sqrt(sums.moved),
            momentum_norm=math.sqrt(sums.momentum) if own else None,
            sign_agreement=sums.equal / sums.compared if sums.compared else None,
        )
        for group, sums in sorted(groups.items())
    )


def _signs(momentum: Tensor) -> tuple[Tensor, float]:
    return torch.sign(_sample(momentum)).to(torch.int8), _squared_norm(momentum)


def _sample(tensor: Tensor) -> Tensor:
    """Return every k-th value of a tensor, at most SAMPLE values; all values of a smaller tensor. May be a view."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, math.ceil(flat.numel() / SAMPLE))]


def _squared_norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.detach())) ** 2
