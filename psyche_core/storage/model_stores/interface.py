"""What a place for a run's checkpoints must do, how its files are opened, and which of its models are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from psyche_core.config.run_config import Choice
from psyche_core.interfaces.store import ModelStore

OpenStore = Callable[[str], ModelStore]
"""Opens the files of a bucket: its name, or its URL. Raises StoreError for an unusable one, and UserError for a plugin's."""


class CheckpointStore(Protocol):
    """Takes a run's checkpoints, each a whole folder; `stores` has some."""

    async def put(self, directory: Path, *, run_id: str, step: int) -> Choice:
        """Store a checkpoint's whole folder; returns its location as in a run configuration. Raises StoreError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """Which stored steps are kept. steps: number of newest steps to keep. delete: whether older ones are deleted at all."""

    steps: int = 3
    delete: bool = False
