"""Control frames, blob requests and blob heads of the QUIC transport: what is accepted encodes to the same bytes."""

from __future__ import annotations

from collections.abc import Callable

from psyche_core.errors import WireError
from psyche_p2p_quic.blobs.frames import BlobHead, BlobRequest
from psyche_p2p_quic.connections import control_frames
from psyche_p2p_quic.connections.control_frames import Frame, Hello, IHave, Inventory, IWant, Message, Ping, Pong
from tests.fuzz.mutation import change_cbor as mutate

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (WireError,)
MAX_BYTES = 512
MEMORY = (160, 65_536)


def seeds() -> list[bytes]:
    frames: list[Frame] = [
        Hello("run", b"instance"),
        Message(7, b"sealed" * 20, relayed=True),
        Message(2**63 - 1, b"", relayed=False),
        Inventory(()),
        Inventory((b"a" * 16, b"b" * 16)),
        Ping(1, None),
        Ping(2, b"d" * 32),
        Pong(3),
        IHave((b"a" * 16, b"b" * 16)),
        IWant((b"c" * 16,)),
    ]
    return [*map(control_frames.encode, frames), BlobRequest(b"h" * 32, 2**40).encode(), BlobHead(found=True, length=99).encode()]


def TARGET(data: bytes) -> None:
    readers: tuple[Callable[[bytes], BlobRequest | BlobHead], ...] = (BlobRequest.decode, BlobHead.decode)
    for read in readers:
        try:
            assert read(data).encode() == data
        except WireError:
            continue

    assert control_frames.encode(control_frames.decode(data, max_bytes=MAX_BYTES)) == data
