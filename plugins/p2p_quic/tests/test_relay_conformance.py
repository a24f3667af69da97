"""The relay and its command pass what psyche-core asks of every plugin."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from nacl.signing import SigningKey

from plugins.p2p_quic.tests.relay_parts import Refused, RelayClient
from psyche_core.errors import TransportError
from psyche_core.testing.command import CommandConformance
from psyche_core.testing.relay import RelayConformance
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic import hooks

pytestmark = pytest.mark.quic


class TestRelay(RelayConformance):
    registration = hooks.psyche_register_relays()[0]

    @contextlib.asynccontextmanager
    async def connect(self, url: str, key: SecretKey) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        try:
            async with RelayClient.login(url, key=SigningKey(key.seed)) as client:

                async def disconnected() -> None:
                    await client.closed()

                yield disconnected
        except Refused as error:
            raise TransportError(str(error)) from error


class TestCommand(CommandConformance):
    registration = hooks.psyche_register_commands()[0]
    hooks = "psyche_p2p_quic.hooks"
