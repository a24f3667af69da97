"""Offers our master weights together with the description of how their model is built.

`exchange` transfers master weights and `description` transfers a description. The machine decides which members need them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

import anyio.to_thread

from psyche_core.client.machine.actions import TakeSnapshot
from psyche_core.client.machine.events import SnapshotFailed, SnapshotTaken
from psyche_core.client.model_sync.description import DescriptionExchange
from psyche_core.client.model_sync.exchange import ModelExchange, ModelHolder
from psyche_core.errors import ModelError
from psyche_core.telemetry import events as telemetry


class DescribedModel(ModelHolder, Protocol):
    """The offered data: master weights, and a description from which their model is built."""

    @property
    def description(self) -> Mapping[str, bytes]:
        """The small files that describe how the model is built; empty if files cannot describe it."""


async def offer_described(
    trainer: DescribedModel,
    work: TakeSnapshot,
    *,
    exchange: ModelExchange,
    descriptions: DescriptionExchange,
    run_id: str,
    report: Callable[[telemetry.Event], None],
) -> SnapshotTaken | SnapshotFailed:
    """Offer the master weights and the model's description, without which only members that know the model can use them."""
    taken = await exchange.offer(trainer, work, run_id=run_id)
    if isinstance(taken, SnapshotFailed):
        return taken

    taken = replace(taken, digest=await anyio.to_thread.run_sync(trainer.full_digest))
    try:
        files = await anyio.to_thread.run_sync(lambda: trainer.description)
        described = await descriptions.offer(files, tag=work.tag)
    except ModelError as error:
        report(telemetry.Problem("warning", str(error)))
        return taken

    return replace(taken, description_hash=described[0], description_bytes=described[1])
