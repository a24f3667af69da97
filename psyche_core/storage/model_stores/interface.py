"""What a store for a run's checkpoints must do, how its files are opened, and which models it keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from psyche_core.config.run_config import Choice
from psyche_core.interfaces.store import ModelStore

OpenStore = Callable[[str], ModelStore]
"""Opens a bucket, given its name or URL. Raises StoreError for an unusable one, and UserError for a plugin's."""


class CheckpointStore(Protocol):
    """Stores a run's checkpoints, each as a whole folder; `stores` has implementations."""

    async def put(self, directory: Path, *, run_id: str, step: int) -> Choice:
        """Store a checkpoint's whole folder; return its location as in a run configuration. Raises StoreError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """Which stored steps are kept. steps: number of newest steps to keep. delete: whether older ones are deleted at all."""

    steps: int = 3
    delete: bool = False
