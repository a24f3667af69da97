"""What a store for a run's models must do, and which of its models are kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from psyche_core.config.run_config import Choice


class ModelStore(Protocol):
    """A store for the run's models; `stores` has some."""

    async def put(self, directory: Path, *, run_id: str, step: int) -> Choice:
        """Store a checkpoint's whole folder; returns its location as in a run configuration. Raises StoreError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """Which stored steps are kept. steps: number of newest steps to keep. delete: whether older ones are deleted at all."""

    steps: int = 3
    delete: bool = False
