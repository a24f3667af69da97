"""Measures how fast a relay receives our data and returns it.

Upload: datagrams to an id that does not exist, then a ping; the pong shows that all of them have been read. Download: datagrams
to ourselves; as they travel in both directions, the result is the rate of the slower direction. The key is our own, so a relay
that serves members only can be measured by a member that is not running at the same time.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable

from psyche_p2p_quic.relay.login import RelayLogin
from psyche_p2p_quic.relay.protocol import frames

_PAYLOAD_BYTES = 16 * 1024
_FIRST_BYTES = 256 * 1024
_MOST_BYTES = 16 * 2**20
_ENOUGH_SECONDS = 1.0
_LONGEST_SECONDS = 20.0


async def relay_rates(login: RelayLogin) -> tuple[float, float]:
    """Return (upload, download) in bytes a second. Raises as `RelayLogin.receive` does, OSError, and TimeoutError."""
    async with asyncio.timeout(3 * _LONGEST_SECONDS):
        return await _growing(lambda size: _upload(login, size)), await _growing(lambda size: _echo(login, size))


async def _growing(measure: Callable[[int], Awaitable[None]]) -> float:
    """Measure with more and more bytes until it takes long enough to give a reliable rate."""
    size = _FIRST_BYTES
    while True:
        began = time.perf_counter()
        await measure(size)
        seconds = time.perf_counter() - began
        if seconds >= _ENOUGH_SECONDS or size >= _MOST_BYTES:
            return size / seconds

        size = min(_MOST_BYTES, 4 * size)


async def _upload(login: RelayLogin, size: int) -> None:
    """Send about `size` bytes to an id that does not exist, and wait until the relay has read them."""
    nobody, question = secrets.token_bytes(32), secrets.token_bytes(8)
    for _ in range(max(1, size // _PAYLOAD_BYTES)):
        login.send(bytes([frames.DATAGRAM_OUT]) + nobody + b"\0" + bytes(_PAYLOAD_BYTES))
        await login.drain()
    login.send(frames.ping(question))
    while await login.receive() != frames.pong(frames.ping(question)):
        pass


async def _echo(login: RelayLogin, size: int) -> None:
    """Send about `size` bytes to ourselves, a few at a time, and wait until they have returned."""
    left = waiting = max(1, size // _PAYLOAD_BYTES)
    while waiting:
        while left and waiting - left < 64:  # a relay drops what it cannot queue
            login.send(bytes([frames.DATAGRAM_OUT]) + login.public + b"\0" + bytes(_PAYLOAD_BYTES))
            left -= 1
        await login.drain()
        if (await login.receive())[0] == frames.DATAGRAM_IN:
            waiting -= 1
