"""A tiny module and dataset that the SDK's tests train with."""

from __future__ import annotations

from typing import Any

import torch

import psyche_core as psyche

VOCABULARY = 32
LENGTH = 8
DATA = [[(3 * item + 5 * place) % VOCABULARY for place in range(LENGTH)] for item in range(64)]
"""Token i + 1 follows from token i, so there is something to learn."""


QUICK = {"max_round_train_time": 3, "epoch_time": 120}
"""Seconds; a round whose members have left ends after the first."""


class Net(torch.nn.Module):
    """ids (B, T) -> logits (B, T, V)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, 16)
        self.mix = torch.nn.GRU(16, 16, batch_first=True)
        self.out = torch.nn.Linear(16, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.out(self.mix(self.embed(ids))[0])
        return answer


def make_net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def make_run(*, steps: int = 8, clients: int = 2, **more: Any) -> psyche.RunConfig:
    given: dict[str, Any] = {"sequence_length": LENGTH, "batch_size": 8, "learning_rate": 1e-2, "config": QUICK, **more}
    return psyche.RunConfig("tiny", total_steps=steps, clients=clients, **given)


def digests(told: list[psyche.events.Event]) -> list[str]:
    return [event.sha256 for event in told if isinstance(event, psyche.events.EpochDigest)]


def losses(told: list[psyche.events.Event]) -> list[float]:
    return [event.loss for event in told if isinstance(event, psyche.events.StepTrained)]
