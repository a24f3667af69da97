"""The relay of `psyche server run --with-relay`: relay and observer for the members that the server names."""

from __future__ import annotations

from collections.abc import Collection
from typing import Self

import anyio

from psyche_core.hookspecs import RelayContext
from psyche_core.interfaces import Relay
from psyche_p2p_quic.relay.access import MemberAccess
from psyche_p2p_quic.relay.limits import RelayLimits
from psyche_p2p_quic.relay_program.open_files import within_open_files
from psyche_p2p_quic.relay_program.service import RelayService, ServiceOptions

_COORDINATORS_FILES = 1024
"""Number of open files reserved for the coordinator: connections of members and newcomers, data, its state."""


class IrohRelay(Relay):
    """A relay for stock iroh endpoints."""

    def __init__(self, context: RelayContext) -> None:
        self._access = MemberAccess()
        self._service = RelayService(
            self._access,
            ServiceOptions(
                hosts=(context.host,),
                port=context.port,
                url=context.url,
                tls_cert=context.tls_cert,
                tls_key=context.tls_key,
                limits=within_open_files(RelayLimits(), others=_COORDINATORS_FILES),
            ),
        )
        self._open = False

    async def __aenter__(self) -> Self:
        """Listen. Raises UserError if that is not possible, or if the certificate cannot be used."""
        await self._service.__aenter__()
        self._open = True
        return self

    @property
    def url(self) -> str:
        """The URL that members are given."""
        return self._service.url

    def set_members(self, keys: Collection[bytes]) -> None:
        """Serve the owners of these keys and no others."""
        if self._access.replace(keys) and self._open:
            self._service.reconsider()

    async def aclose(self) -> None:
        """Inform the clients, and stop; idempotent."""
        if not self._open:
            return

        self._open = False
        with anyio.CancelScope(shield=True):  # both steps have time limits, and a server that stops is cancelled
            await self._service.drain()
            await self._service.__aexit__(None, None, None)
