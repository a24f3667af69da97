"""The address of a run's coordinator: everything that a client needs to reach it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from psyche_core.builtin.memory_server import MemoryServer
from psyche_core.coordinator.state import CoordinatorState


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A run's address: `Coordinator.address` returns it, and `Client` takes it.

    run_id: the run's name. backend: plugin name of the backend that reaches the coordinator. location: the address in that
    backend's format, for tcp `host:port#KEY`. `str()` returns it; clients on other machines need it and the run id. base: folder
    on this machine that the run's relative paths start from. server: the coordinator itself if it is in this process, else None.
    """

    run_id: str
    backend: str
    location: str
    base: Path = field(default_factory=Path)
    server: MemoryServer | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.location


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedAddress(Address):
    """The same of a coordinator in this process, whatever its backend. state: the run's, now."""

    state: Callable[[], CoordinatorState] = field(repr=False, compare=False)
