"""What tests of connections share: how long they wait, and the bye that a raw connection gets."""

from __future__ import annotations

import anyio
from anyio import EndOfStream

from psyche_backend_tcp.protocol import Bye, decode_server
from psyche_core.wire.frames import FramedStream

TIMEOUT = 10.0
LOST = (EndOfStream, anyio.BrokenResourceError)


async def bye_of(frames: FramedStream) -> str | None:
    """The code of the good-bye a peer is sent, None when it is just closed."""
    code = None
    with anyio.fail_after(TIMEOUT):
        try:
            while True:
                message = decode_server(await frames.receive())
                if isinstance(message, Bye):
                    code = message.code
        except LOST:
            await frames.aclose()
            return code
