"""Registers the `tcp` backend and the `Server` data location. Imports no large packages."""

from __future__ import annotations

from psyche_backend_tcp.client.connection import TcpBackend
from psyche_backend_tcp.data.provider import ServerData, ServerSettings
from psyche_backend_tcp.server.tcp_server import TcpServer
from psyche_core.hookspecs import BackendRegistration, DataRegistration, hookimpl

PSYCHE_PLUGIN_API = "1.0"


@hookimpl
def psyche_register_backends() -> list[BackendRegistration]:
    """Return the `tcp` backend."""
    return [
        BackendRegistration(
            name="tcp",
            summary="a coordinator server over TCP that anybody can host",
            create=TcpBackend.from_context,
            create_server=TcpServer,
            offers_relays=True,
        )
    ]


@hookimpl
def psyche_register_data() -> list[DataRegistration]:
    """Return the `Server` data location."""
    return [
        DataRegistration(
            name="Server",
            summary="samples from the run's data server",
            settings=ServerSettings,
            create=ServerData.from_context,
        )
    ]
