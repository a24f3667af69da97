"""What the factory of each kind of plugin is called with, as runs do it: small, on this machine, nothing sent to anybody.

The tests of a registration and `psyche plugins check` use it. No pytest here, and torch only for kinds that need it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio

from psyche_core import hookspecs
from psyche_core.interfaces.tracker import TrackedRun
from psyche_core.testing.sentences import within
from psyche_core.testing.small_run import small_state
from psyche_core.wire.signing import SecretKey

RUN_ID = "conformance"
KEY = SecretKey(bytes([1]) * 32)
SERVER_SECONDS = 30.0
"""Time limit for a server to be there."""


def context_for(registration: hookspecs.Registration, *, settings: Any, folder: Path) -> Any | None:
    """The context of a registration's factory; None for a model and a command, which are made from something else.

    settings: validated by the registration's own. folder: an empty one, where relative paths start.
    """
    match registration:
        case hookspecs.BackendRegistration():
            address = server_address(registration, folder)
            address = str(folder / "run") if address is None else address
            return hookspecs.BackendContext(run_id=RUN_ID, address=address, key=KEY, settings=settings)
        case hookspecs.OptimizerRegistration():
            from psyche_core.testing.toy_model import ToyModel

            return hookspecs.OptimizerContext(settings=settings, model=ToyModel())
        case hookspecs.DataRegistration():
            return hookspecs.DataContext(settings=settings, sequence_length=8, key=KEY, base=folder, cache=folder / "cache")
        case hookspecs.TransportRegistration():
            return hookspecs.TransportContext(run_id=RUN_ID, key=KEY, settings=settings)
        case hookspecs.TrackerRegistration():
            run = TrackedRun(run_id=RUN_ID, member="ab" * 32, config={"run_id": RUN_ID})
            return hookspecs.TrackerContext(run=run, settings=settings)
        case hookspecs.ModelStoreRegistration():
            return hookspecs.ModelStoreContext(url=f"{registration.name}://127.0.0.1/{RUN_ID}", settings=settings)
        case hookspecs.ShardingRegistration():
            from psyche_core.testing.one_rank import Alone, context_of
            from psyche_core.testing.tiny_models import LLAMA

            return context_of(folder, LLAMA, Alone())
        case hookspecs.RelayRegistration():
            return hookspecs.RelayContext()
        case _:
            return None


def server_address(registration: hookspecs.BackendRegistration, folder: Path) -> str | None:
    """The address that a client of a backend is given: that of the backend's own server, which is started and ended here.

    Empty for a backend that needs none; None for one that needs one and hosts no server. folder: for the server's state.
    Raises TimeoutError if the server takes too long, and what its factory and its start raise.
    """
    create_server = registration.create_server
    if not registration.needs_address:
        return ""
    if create_server is None:
        return None

    async def start() -> str:
        with within(SERVER_SECONDS, "entering a BackendServer must make it reachable"):
            context = hookspecs.ServerContext(state=small_state(run_id=RUN_ID), state_dir=folder)
            async with create_server(context) as server:
                return server.address

    return anyio.run(start)
