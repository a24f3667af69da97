"""The systems side by side, and where the programs of each come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

ADAMW_RATE = 1.6e-3
"""Tuned for AdamW on one machine (benchmarks.convergence); of matrices, at width 128."""

TORCH = ("torch==2.13.0", "transformers==5.23.0", "numpy")
ENVIRONMENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"torch": TORCH, "hivemind": (*TORCH, "hivemind==1.1.12"), "torchft": (*TORCH, "torchft==0.2.0")}
)
"""What is installed into each environment. Our own programs run in the environment of whoever measures."""

BASE = "alone"
PERIODS = 2
"""Periods of DiLoCo and LocalSGD that are watched after a fault, which they notice when they synchronise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One system with its settings.

    environment: "" for our own. worker: a module of `workers`. meeting: what members meet at: "" the first member, "lighthouse",
    "dht" or "server". rate: before tuning. periodic: members exchange something every so many steps only (--period, the setting
    `every`), and a late one trains alone until then.
    """

    name: str
    title: str
    environment: str = "torch"
    worker: str = ""
    meeting: str = ""
    rate: float = ADAMW_RATE
    settings: Mapping[str, Any] = field(default_factory=dict)
    periodic: bool = False


def _ddp(name: str, title: str, **settings: object) -> System:
    return System(name=name, title=title, worker="ddp", settings=settings)


def _hivemind(name: str, title: str, **settings: object) -> System:
    chosen = {"accumulate": 1, "matchmaking": 3.0, "average_state_every": 20, **settings}
    return System(name=name, title=title, environment="hivemind", worker="hivemind_member", meeting="dht", settings=chosen)


def _torchft(name: str, title: str, **settings: object) -> System:
    return System(
        name=name,
        title=title,
        environment="torchft",
        worker="torchft_member",
        meeting="lighthouse",
        settings=settings,
        periodic=True,
    )


def _ours(name: str, title: str, topk: int, *, optimizer: str = "Distro", inner_steps: int = 1) -> System:
    settings = {"optimizer": optimizer, "topk": topk, "inner_steps": inner_steps}
    return System(name=name, title=title, environment="", meeting="server", settings=settings)


SYSTEMS: Mapping[str, System] = MappingProxyType(
    {
        system.name: system
        for system in (
            System(name=BASE, title="computing alone, no exchange", worker="alone"),
            _ddp("ddp", "DDP, float32"),
            _ddp("ddp-fp16", "DDP, fp16 hook", hook="fp16"),
            _ddp("ddp-bf16", "DDP, bf16 hook", hook="bf16"),
            _ddp("ddp-powersgd", "DDP, PowerSGD rank 2", hook="powersgd", rank=2),
            System(name="fsdp", title="FSDP2", worker="fsdp"),
            _hivemind("hivemind", "hivemind, an update a step"),
            _hivemind("hivemind-16", "hivemind, an update in 16 steps", accumulate=16, average_state_every=2),
            _torchft("torchft-diloco", "torchft DiLoCo", method="diloco"),
            _torchft("torchft-localsgd", "torchft LocalSGD", method="localsgd"),
            _ours("ours-8", "ours, DisTrO 1-bit, k = 8", 8),
            _ours("ours-64", "ours, DisTrO 1-bit, k = 64", 64),
            _ours("ours-sparse", "ours, SparseLoCo, 8 inner steps, k = 64", 64, optimizer="SparseLoCo", inner_steps=8),
        )
    }
)
"""In the order of the table. `alone` is what the others are compared with: four members, each of which trains by itself."""
