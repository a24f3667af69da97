"""What tests of the relay over sockets share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from plugins.p2p_quic.tests.relay_parts import TIMEOUT


async def until(condition: Callable[[], bool]) -> None:
    """Poll a condition on counters, since nothing tells of it."""
    async with asyncio.timeout(TIMEOUT):
        while not condition():
            await asyncio.sleep(0.01)
