"""The address of a run's coordinator: everything that a client needs to reach it.

Also the events of a client that is too late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from psyche_core.builtin.memory_server import MemoryServer
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import ConfigError
from psyche_core.plugin_objects import ObjectPlugin
from psyche_core.telemetry import events as telemetry
from psyche_core.types import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A run's address: `Coordinator.address` returns it, and `Client` takes it.

    Attributes:
        run_id: the run's name.
        backend: plugin name of the backend that reaches the coordinator.
        location: the address in that backend's format, for tcp `host:port#KEY`. `str()` returns it; clients on other machines
            need it and the run id.
        base: folder on this machine that the run's relative paths start from.
        server: the coordinator itself if it is in this process, else None.
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
    """The address of a coordinator in this process, whatever its backend.

    Attributes:
        state: returns the run's present state.
    """

    state: Callable[[], CoordinatorState] = field(repr=False, compare=False)


def resolve_address(
    address: object, run_id: str | None, base: Path | None, found: Mapping[str, ObjectPlugin | str | None]
) -> Address:
    """Return the address that a client connects to.

    address, run_id, base: arguments of Client. found: its plugins by kind, as `as_plugin` returns them. Raises TypeError,
    ConfigError.
    """
    if isinstance(address, Address):
        if run_id is not None and run_id != address.run_id:
            message = f"run_id={run_id!r} is not the run of the address, {address.run_id!r}; leave it out"
            raise ConfigError(message)
        folder = address.base if base is None else base
        return Address(
            run_id=address.run_id, backend=address.backend, location=address.location, base=folder, server=address.server
        )

    if not isinstance(address, str | None):
        message = (
            "a Client takes Coordinator.address, or a string such as 'host:port#KEY' with run_id=, got a "
            f"{type(address).__name__}"
        )
        raise TypeError(message)
    backend = found["backend"]
    if not address and backend in (None, "tcp"):
        message = "address= is needed: Coordinator.address, or a string such as 'host:port#KEY' with run_id="
        raise ConfigError(message)
    if run_id is None:
        message = "run_id= is needed when address= is a string; it must be the run that the coordinator hosts"
        raise ConfigError(message)

    name = backend if isinstance(backend, str) else "tcp" if backend is None else backend.registration.name
    return Address(run_id=run_id, backend=name, location=address or "", base=base or Path())


def late_start(state: CoordinatorState | None) -> tuple[telemetry.Event, ...]:
    """Return the events of a client started after its run had finished, when the server admits nobody; otherwise none."""
    if state is None or state.run_state is not RunState.Finished:
        return ()

    finished = f"the run finished after {state.progress.step - 1} steps"
    late = f"{finished}, before this client took part; its model has not changed"
    problem = telemetry.Problem("warning", f"{late}, and the run's result is in the checkpoints of its members")
    return problem, telemetry.Ended(finished, success=True)
