"""AdamW payloads: what passes the check can be applied and leaves finite masters, moved no further than an honest peer could."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from psyche_core.builtin.adamw import HEADER, AdamW
from psyche_core.builtin.adamw_settings import AdamWSettings
from psyche_core.errors import PayloadRejected
from psyche_core.interfaces.data import Samples
from psyche_core.interfaces.model import Model
from tests.fuzz.mutation import change_bytes

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (PayloadRejected,)
MEMORY = (64, 65_536)

_SETTINGS = AdamWSettings(weight_decay=0.0)
_RATE = 0.01


class _Bare(Model):
    """Two parameters of zeros."""

    def __init__(self) -> None:
        self._parameters = {"bias": torch.nn.Parameter(torch.zeros(5)), "weight": torch.nn.Parameter(torch.zeros(7, 3))}

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        return self._parameters

    @property
    def vocab_size(self) -> int:
        return 2

    def gradients(self, samples: Samples, *, micro_batch_size: int) -> float:
        raise NotImplementedError

    def loss(self, samples: Samples, *, micro_batch_size: int) -> float:
        raise NotImplementedError

    def save(self, directory: Path, *, parameters: Mapping[str, Any]) -> None:
        raise NotImplementedError


_OPTIMIZER = AdamW(_SETTINGS, _Bare())
MAX_BYTES = _OPTIMIZER.max_payload_bytes + 8


def seeds() -> list[bytes]:
    model = _Bare()
    optimizer = AdamW(_SETTINGS, model)
    payloads = [optimizer.compress(1, learning_rate=_RATE)]
    for number, parameter in enumerate(model.parameters.values()):
        parameter.grad = torch.linspace(-1.0, 2.0 + number, parameter.numel()).view_as(parameter)
    return [*payloads, optimizer.compress(2, learning_rate=_RATE)]


def mutate(data: bytes, random: Random) -> bytes:
    """Other values behind the header, at times one of the kinds that arithmetic stumbles over."""
    values = bytearray(data[HEADER.size :])
    for _ in range(random.choice((1, 2, 8))):
        place = 2 * random.randrange(max(1, len(values) // 2))
        special = random.choice((0x7F80, 0xFF80, 0x7FC0, 0x0001, 0x8000, 0x7F7F, 0x4049, random.getrandbits(16)))
        values[place : place + 2] = special.to_bytes(2, "little")
    return data[: HEADER.size] + (bytes(values) if random.random() < 0.8 else change_bytes(bytes(values), random))


def TARGET(data: bytes) -> None:
    _OPTIMIZER.check(data)
    for master in _OPTIMIZER.masters.values():
        master.zero_()
    _OPTIMIZER.apply(1, [data], learning_rate=_RATE, own_accepted=False)
    for master in _OPTIMIZER.masters.values():
        moved = master.numpy()
        assert bool(np.isfinite(moved).all())
        assert float(np.abs(moved).max()) <= _RATE * _SETTINGS.bound * 1.02
