"""The canonical image of a coordinator's state: what is accepted encodes to the same bytes. An earlier state changes nothing.

An image is long and mostly zero, so an input is not the image but a list of changes to a valid one: offset (3 bytes), length (1)
and the bytes to put there. The first byte chooses the image and whether it is cut.
"""

from __future__ import annotations

from random import Random

from psyche_core.config.run_config import parse_run_file
from psyche_core.coordinator.canonical_image import SIZE, decode, encode
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import WireError
from tests.fuzz.mutation import change_bytes
from tests.fuzz.targets.coordinator_state import rich_state
from tests.fuzz.targets.run_file import LOCAL_TESTNET

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (WireError,)
MAX_BYTES = 512
MEMORY = (4096, 8 * SIZE)


def _images() -> list[bytes]:
    run_file = parse_run_file(LOCAL_TESTNET, source="state.toml")
    return [encode(rich_state()), encode(CoordinatorState(run_file.run_id, run_file.config, run_file.model))]


_IMAGES = _images()
_STATES = [decode(image) for image in _IMAGES]
_WRITTEN = [place for place in range(SIZE) if any(image[place] for image in _IMAGES)]
"""Bytes that are in use: changes elsewhere are all refused alike."""


def seeds() -> list[bytes]:
    return [bytes((0,)), bytes((1,)), bytes((2, 0, 0, 9)), _change(0, _WRITTEN[40], b"\1\2")]


def _change(image: int, offset: int, data: bytes) -> bytes:
    return bytes((image,)) + offset.to_bytes(3, "big") + bytes((len(data),)) + data


def mutate(data: bytes, random: Random) -> bytes:
    """One or two changes of bytes in use."""
    image = random.choice((0, 0, 0, 1))
    made = bytes((image,))
    for _ in range(random.choice((1, 1, 2))):
        offset = random.choice(_WRITTEN)
        old = _IMAGES[image][offset : offset + random.choice((1, 1, 2, 4, 8))]
        made += _change(image, offset, change_bytes(old, random)[:255])[1:]
    return made


def TARGET(data: bytes) -> None:
    choice = data[0] if data else 0
    image = bytearray(_IMAGES[choice & 1])
    at = 1
    while at + 4 < len(data):
        offset, size = int.from_bytes(data[at : at + 3], "big") % SIZE, data[at + 3]
        piece = data[at + 4 : at + 4 + size][: SIZE - offset]
        image[offset : offset + len(piece)] = piece
        at += 4 + size
    if choice & 2:
        del image[int.from_bytes(data[1:4], "big") :]

    changed = bytes(image)
    for earlier in zip(_IMAGES, _STATES, strict=True):
        assert _decoded(changed, earlier) == _decoded(changed, None)
    assert encode(decode(changed)) == changed


def _decoded(image: bytes, earlier: tuple[bytes, CoordinatorState] | None) -> CoordinatorState | str:
    """The state, or the sentence with which the image is refused."""
    try:
        return decode(image, earlier=earlier)
    except WireError as error:
        return str(error)
