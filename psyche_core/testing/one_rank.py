"""One rank that is the whole client, and what a sharding engine is made from there. Needs torch, and no pytest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from psyche_core.hookspecs import ShardingContext
from psyche_core.interfaces.sharding import Axes, RankGroup
from psyche_core.models.hf.configuration import read_configuration
from psyche_core.models.hf.empty_model import build_empty_model


class Alone(RankGroup):
    """One rank that is the whole client, without processes and without a connection."""

    rank = 0
    data_parallelism = 1
    tensor_parallelism = 1
    mesh: Any = None

    def broadcast(self, tensor: Any) -> None:
        """Keep it: ours are the values of rank 0."""

    def scatter(self, pieces: Any, into: Any) -> None:
        """Take the only piece."""
        into.copy_(pieces[0])

    def gather(self, piece: Any, *, over: Axes = "both") -> list[Any] | None:  # noqa: ARG002  # the contract's
        """The only piece."""
        return [piece]

    def add_up(self, tensor: Any, *, over: str) -> None:
        """Keep it: the sum of one."""


def context_of(folder: Path, config: Mapping[str, Any], group: RankGroup) -> ShardingContext:
    """What an engine is made from, on the CPU. folder: config.json is written there. config: as transformers reads it."""
    (folder / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
    model_type = read_configuration(folder).model_type
    module, _ = build_empty_model((folder / "config.json").read_bytes(), attention="auto", gradient_checkpointing=False)
    return ShardingContext(module=module, model_type=model_type, group=group, device=torch.device("cpu"))
