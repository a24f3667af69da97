"""Contract of a relay: it forwards encrypted traffic between members that cannot reach each other directly.

`psyche server run --with-relay` runs one beside its coordinator. A relay sees who is connected, from which address, and how much
is sent to whom; it cannot read or change what is sent, and the members' transport does not trust it with anything else.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection

from anyio.abc import AsyncResource


class Relay(AsyncResource):
    """A running relay. It is an async context manager: entering it listens; the context raises UserError if it cannot.

    Guaranteed: only members are served, and nothing a stranger or a member sends stops it. Not guaranteed: that every packet
    arrives. Nobody is a member before the first call of `set_members`.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL that members are given."""

    @abstractmethod
    def set_members(self, keys: Collection[bytes]) -> None:
        """Serve the owners of these transport keys (32 bytes each) and nobody else. Others are disconnected. Must not block."""

    @abstractmethod
    async def aclose(self) -> None:
        """Tell the clients that the relay ends, stop listening and close all connections; idempotent."""
