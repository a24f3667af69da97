"""The first frame of both sides: writes ours and reads the peer's."""

from __future__ import annotations

from psyche_core.errors import WireError
from psyche_core.wire.frames import FrameDecoder, frame
from psyche_p2p_quic.connections import control_frames
from psyche_p2p_quic.connections.control_frames import Hello
from psyche_p2p_quic.endpoint.links import LinkLost, Stream


def hello_frame(hello: Hello) -> bytes:
    """Return our hello as it is sent."""
    return frame(control_frames.encode(hello), limit=control_frames.MAX_HELLO_BYTES)


async def read_hello(stream: Stream, *, run_id: str, frame_bytes: int) -> tuple[Hello, FrameDecoder]:
    """Read the peer's hello; return it, and the decoder for what follows.

    frame_bytes: longest later frame. Raises WireError when it is not a hello of our run, LinkLost when the stream ends.
    """
    decoder = FrameDecoder(limit=control_frames.MAX_HELLO_BYTES)
    while (data := decoder.next()) is None:
        received = await stream.read(control_frames.MAX_HELLO_BYTES)
        if not received:
            message = "the control stream ended before the hello"
            raise LinkLost(message)

        decoder.feed(received)

    hello = control_frames.decode(data, max_bytes=control_frames.MAX_HELLO_BYTES)
    if not isinstance(hello, Hello) or hello.run_id != run_id:
        message = f"expected a hello of the run {run_id!r}"
        raise WireError(message)

    decoder.limit = frame_bytes
    return hello, decoder
