"""Following a run without taking part: for relays, dashboards and scripts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from psyche_core.errors import UserError
from psyche_core.hookspecs import BackendContext
from psyche_core.interfaces import Backend
from psyche_core.plugins import PluginRegistry
from psyche_core.wire.signing import SecretKey


@asynccontextmanager
async def observed_run(
    run_id: str, address: str, *, backend: str = "tcp", key: SecretKey | None = None, retry_seconds: float = 60.0
) -> AsyncIterator[Backend]:
    """Give a connection to a run's coordinator that only reads; call its `next_state` for each new state.

    address: of the coordinator, as clients give it; "" for a backend that needs none. backend: by plugin name; its own settings
    come from the environment, as PSYCHE_<OPTION>. key: for a coordinator that admits only listed keys; None makes one. Raises
    UserError and BackendError as clients do.
    """
    registration = PluginRegistry.discover().load("backend", backend)
    if registration.needs_address and not address:
        message = f"the backend {backend} needs the coordinator's address; give --server-addr HOST:PORT#KEY"
        raise UserError(message)

    context = BackendContext(
        run_id=run_id,
        address=address,
        key=key or SecretKey.generate(),
        settings=None,
        retry_seconds=retry_seconds,
    )
    create = registration.observe or registration.create
    async with create(context) as connection:
        yield connection
