"""Where a run's coordinator is, and what a client needs to know to reach it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from psyche_core.builtin.memory_server import MemoryServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """What `Coordinator.address` gives and `Client` takes.

    run_id: of the run. backend: how to reach the coordinator, by plugin name. location: as that backend says it, for tcp
    `host:port#KEY`; what `str()` gives, to be handed to other machines beside the run id. base: folder that relative paths of the
    run start from on this machine. server: the coordinator itself where it is in this process, else None.
    """

    run_id: str
    backend: str
    location: str
    base: Path = field(default_factory=Path)
    server: MemoryServer | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.location
