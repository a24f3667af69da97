"""What decoders may allocate, as a multiple of what they were sent: the dearest inputs we know, and those hypothesis finds."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.errors import PayloadRejected, WireError
from psyche_core.wire.codec import MAX_ITEMS, decode
from psyche_core.wire.frames import FrameDecoder
from psyche_optim_distro.chunks.layout import build_layout
from psyche_optim_distro.payload import codec as distro
from psyche_optim_distro.value_format import ValueFormat

PER_BYTE = 160
CONSTANT = 65_536
MIB = 2**20
ATTEMPTS = 10


def peak(work: Callable[[], object], *, enough: int) -> int:
    """Most bytes that were allocated at once while `work` ran; what it raises on purpose is an answer too.

    Every thread's memory is counted, and threads that earlier tests have left behind go on meanwhile. So what is more than
    `enough` is measured again, ATTEMPTS times at most, and the least counts: `work` needs at least as much every time. It runs
    once before: what Python and numpy allocate at the first use of something belongs to no input. Nor does what destructors do,
    so garbage is left alone.
    """
    _outcome(work)
    least = _peak(work)
    for _ in range(ATTEMPTS - 1):
        if least <= enough:
            break
        least = min(least, _peak(work))
    return least


def _peak(work: Callable[[], object]) -> int:
    collecting = gc.isenabled()
    gc.disable()
    tracemalloc.start()
    try:
        result = _outcome(work)
        most = tracemalloc.get_traced_memory()[1]
        del result
        return most
    finally:
        tracemalloc.stop()
        if collecting:
            gc.enable()


def _outcome(work: Callable[[], object]) -> object:
    try:
        return work()
    except (WireError, PayloadRejected):
        return None


def encoded(value: Any) -> bytes:
    return bytes(cbor2.dumps(value, canonical=True))


nested: Any = 0
for _ in range(14):
    nested = {0: nested}

DEAR = {
    "empty lists": [[]] * 8_000,
    "empty maps": [{}] * 8_000,
    "maps of one entry": [{0: 0}] * 6_000,
    "nested maps": [nested] * 600,
    "short texts": ["é€"] * 5_000,
    "wide text": "x" * 20_000 + "\U0001f980",
    "numbers": [1000] * 8_000,
    "floats": [1.5] * 6_000,
    "a long map": dict.fromkeys(range(40000), 0),
    "bytes": b"x" * 100_000,
}


@pytest.mark.parametrize("name", DEAR)
def test_a_message_takes_at_most_160_times_its_length(name: str) -> None:
    data = encoded(DEAR[name])
    assert decode(data, max_bytes=MIB) == DEAR[name]
    limit = PER_BYTE * len(data) + CONSTANT
    assert peak(lambda: decode(data, max_bytes=MIB), enough=limit) <= limit


@pytest.mark.parametrize(
    "head",
    [
        "5bffffffffffffffff",
        "7b00000000ffffffff",
        "9b00000000ffffffff",
        "bb00000000ffffffff",
        "9affffffff",
        "81" * 5000,
        "a100" * 5000,
    ],
)
def test_an_announced_length_takes_no_memory(head: str) -> None:
    data = bytes.fromhex(head)
    limit = PER_BYTE * len(data) + CONSTANT
    assert peak(lambda: decode(data, max_bytes=MIB), enough=limit) <= limit


def test_a_message_of_many_items_is_refused_before_a_value_is_built() -> None:
    data = b"\x9a" + (4 * MIB - 5).to_bytes(4, "big") + bytes(4 * MIB - 5)
    with pytest.raises(WireError, match=f"more than {MAX_ITEMS} items"):
        decode(data, max_bytes=8 * MIB)
    assert peak(lambda: decode(data, max_bytes=8 * MIB), enough=CONSTANT) <= CONSTANT


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.binary(max_size=8)
)
keys = st.integers(0, 99) | st.text(max_size=2)
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.integers(0, 99) | st.text(max_size=2), inner),
    max_leaves=60,
)


@settings(deadline=None)
@given(trees, st.integers(1, 40))
def test_any_message_takes_at_most_160_times_its_length(tree: Any, times: int) -> None:
    data = encoded([tree] * times)
    decode(data, max_bytes=MIB)
    limit = PER_BYTE * len(data) + CONSTANT
    assert peak(lambda: decode(data, max_bytes=MIB), enough=limit) <= limit


@pytest.mark.parametrize("piece", [1, 1000, 30_000])
def test_a_frame_that_is_announced_and_does_not_come_takes_no_memory(piece: int) -> None:
    def feed() -> None:
        decoder = FrameDecoder(limit=4 * MIB)
        decoder.feed((4 * MIB).to_bytes(4, "big"))
        for _ in range(100):
            decoder.feed(bytes(piece))
            assert decoder.next() is None

    limit = 3 * 100 * piece + CONSTANT
    assert peak(feed, enough=limit) <= limit


# --------------------------------------------------------------------------------------------------------------- payloads

LAYOUT = build_layout({"a": (256, 256), "b": (64,), "c": (3, 32, 16)}, chunk=16, topk=8)
HEADER = distro._HEADER.pack(distro.MAGIC, distro.VERSION, ValueFormat.SIGNS, LAYOUT.fingerprint)
PAYLOAD_PER_BYTE = 150
TABLE_BYTES = 64 * sum(entry.chunks.size * entry.topk for entry in LAYOUT.classes)
"""What a full payload may need whatever its length: a few int64 for every coefficient our own table allows."""


def payload_peak(data: bytes, *, enough: int) -> int:
    return peak(lambda: distro.decode(LAYOUT, data, values=ValueFormat.SIGNS), enough=enough)


@pytest.mark.parametrize("filling", [0x00, 0x01, 0x55, 0x80, 0xFF])
@pytest.mark.parametrize("flags", [0, 1, 2])
@pytest.mark.parametrize("rice", [0, 4, 8])
@pytest.mark.parametrize("announced", [0, 100, 2**32 - 1])
def test_a_payload_takes_memory_for_its_length_and_our_table_only(filling: int, flags: int, rice: int, announced: int) -> None:
    room = distro.max_payload_bytes(LAYOUT, values=ValueFormat.SIGNS) - len(HEADER) - 6
    data = HEADER + distro._CLASS.pack(flags, rice, announced) + bytes((filling,)) * room
    limit = PAYLOAD_PER_BYTE * len(data) + TABLE_BYTES + CONSTANT
    assert payload_peak(data, enough=limit) <= limit


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2), st.integers(0, 9), st.integers(0, 400), st.binary(max_size=600))
def test_any_payload_takes_memory_for_its_length_and_our_table_only(flags: int, rice: int, unary: int, rest: bytes) -> None:
    data = HEADER + distro._CLASS.pack(flags, rice, unary) + rest
    limit = PAYLOAD_PER_BYTE * len(data) + TABLE_BYTES + CONSTANT
    assert payload_peak(data, enough=limit) <= limit


def test_a_payload_over_what_the_table_can_need_is_refused_unread() -> None:
    data = HEADER + bytes(64 * MIB)
    assert payload_peak(data, enough=CONSTANT) <= CONSTANT
