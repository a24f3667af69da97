"""`psyche` with a client that does not do the work which it is paid for; everything else is real.

    python cheating_client.py KIND python -m psyche_core client train ...

KIND: `other-data` trains on made-up samples, `untrained` sends what it makes of noise, and `false-gradients` trains, and makes
up the gradients of others' shares.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from psyche_core.__main__ import main
from psyche_core.interfaces.data import Samples
from psyche_core.interfaces.replay import AppliedStep
from psyche_core.training.trainer import Trained, Trainer

honest_train = Trainer.train
honest_recompute = Trainer.recompute


def train_on_other_data(self: Trainer, step: int, samples: Samples) -> Trained:
    tokens = bytes(number % 251 * (place % 2 == 0) for place, number in enumerate(range(step, step + len(samples.tokens))))
    return honest_train(self, step, Samples(tokens, samples.count, samples.sequence_length, samples.token_size))


def send_noise(self: Trainer, step: int, samples: Samples) -> Trained:
    gradients = self._micro_batch.gradients

    def noise(_: Samples) -> float:
        generator = torch.Generator().manual_seed(step)
        for parameter in self._model.parameters.values():
            parameter.grad = 1e-3 * torch.randn(parameter.shape, generator=generator)
        return 5.0

    self._micro_batch.gradients = noise  # type: ignore[method-assign]
    try:
        return honest_train(self, step, samples)
    finally:
        self._micro_batch.gradients = gradients  # type: ignore[method-assign]


def make_gradients_up(
    self: Trainer, step: int, samples: Samples, *, signs: Sequence[Any] | None, undone: Sequence[AppliedStep]
) -> list[Any]:
    return [-part for part in honest_recompute(self, step, samples, signs=signs, undone=undone)]


CHEATS: dict[str, tuple[str, Callable[..., Any]]] = {
    "other-data": ("train", train_on_other_data),
    "untrained": ("train", send_noise),
    "false-gradients": ("recompute", make_gradients_up),
}

if __name__ == "__main__":
    method, cheat = CHEATS[sys.argv[1]]
    setattr(Trainer, method, cheat)
    sys.argv = ["psyche", *sys.argv[5:]]
    main()
