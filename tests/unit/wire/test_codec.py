"""Canonical CBOR: what passes is canonical, what does not raises WireError and nothing else."""

from __future__ import annotations

import struct
from typing import Any

import cbor2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from psyche_core.errors import WireError
from psyche_core.wire.codec import MAX_DEPTH, decode, encode

LIMIT = 1 << 16

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8) | st.integers(0, 2**64 - 1), inner, max_size=5)
    ),
    max_leaves=20,
)


def same(left: Any, right: Any) -> bool:
    """Equality that tells 1 from 1.0 and True, and 0.0 from -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(item, right[key]) for key, item in left.items())
    if isinstance(left, float):
        return struct.pack(">d", left) == struct.pack(">d", right)

    return bool(left == right)


@given(values)
@example(-0.0)
@example([1, 1.0, True])
@example({"b": 1, "a": 2, "aa": 0, 0: 1, 24: 2})
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    assert same(decode(encode(value), max_bytes=LIMIT), value)


@given(values)
def test_an_encoding_is_the_only_one(value: Any) -> None:
    data = encode(value)

    assert encode(decode(data, max_bytes=LIMIT)) == data


@given(st.dictionaries(st.text(max_size=4), st.integers(0, 9), max_size=6))
def test_the_order_in_which_a_map_was_filled_does_not_matter(mapping: dict[str, int]) -> None:
    assert encode(dict(reversed(mapping.items()))) == encode(mapping)


@settings(max_examples=500)
@given(st.binary(max_size=64))
def test_arbitrary_bytes_decode_canonically_or_raise_wire_error(data: bytes) -> None:
    try:
        value = decode(data, max_bytes=LIMIT)
    except WireError:
        return

    assert encode(value) == data


@settings(max_examples=300)
@given(values, st.data())
def test_damaged_encodings_decode_canonically_or_raise_wire_error(value: Any, data: st.DataObject) -> None:
    damaged = bytearray(encode(value))
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    try:
        read = decode(bytes(damaged), max_bytes=LIMIT)
    except WireError:
        return

    assert encode(read) == damaged


@given(values)
def test_every_truncation_is_refused(value: Any) -> None:
    data = encode(value)
    for length in range(len(data)):
        with pytest.raises(WireError):
            decode(data[:length], max_bytes=LIMIT)


@given(values, st.binary(min_size=1, max_size=3))
def test_trailing_bytes_are_refused(value: Any, tail: bytes) -> None:
    with pytest.raises(WireError, match=f"{len(tail)} bytes follow the CBOR value"):
        decode(encode(value) + tail, max_bytes=LIMIT)


@pytest.mark.parametrize(("data", "reason"), [
    ("", "ends in the middle"),
    ("1800", "canonical"),  # 0 in two bytes
    ("190010", "canonical"),  # 16 in three
    ("fb3ff0000000000000", "canonical"),  # 1.0 fits a half float
    ("fa3f800000", "canonical"),
    ("a2616201616101", "canonical"),  # keys b, a
    ("a2616101616102", "canonical"),  # the key a twice
    ("a2036101026102", "canonical"),  # keys 3, 2
    ("5801ff", "canonical"),  # length 1 in a byte of its own
    ("5f41ff41ffff", "indefinite"),
    ("7f6161ff", "indefinite"),
    ("9f01ff", "indefinite"),
    ("bf6161f6ff", "indefinite"),
    ("ff", "simple"),
    ("c11a514b67b0", "tags"),  # a date
    ("c249010000000000000000", "tags"),  # a big integer
    ("d81c80", "tags"),  # a shared value
    ("d81d00", "tags"),  # a reference to one
    ("f97c00", "finite"),
    ("f9fc00", "finite"),
    ("f97e00", "finite"),
    ("fa7f800000", "finite"),
    ("fb7ff8000000000000", "finite"),
    ("f7", "simple"),  # undefined
    ("f0", "simple"),
    ("f820", "simple"),
    ("1c", "indefinite"),  # reserved additional information
    ("61ff", "not valid"),  # text that is not UTF-8
    ("9bffffffffffffffff", "more items than it has bytes"),
    ("bb7fffffffffffffff", "more items than it has bytes"),
    ("5bffffffffffffffff", "ends in the middle"),
])  # fmt: skip
def test_what_is_refused_and_why(data: str, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        decode(bytes.fromhex(data), max_bytes=LIMIT)


@pytest.mark.parametrize("key", ["8101", "a10101", "81f6", "f6", "f5", "4100"])
def test_a_map_with_a_container_as_key_raises_nothing_but_wire_error(key: str) -> None:
    data = bytes.fromhex("a1" + key + "01")
    try:
        value = decode(data, max_bytes=LIMIT)
    except WireError:
        return

    assert encode(value) == data


def test_size_is_checked_first() -> None:
    data = encode(b"x" * 100)
    assert decode(data, max_bytes=len(data)) == b"x" * 100
    with pytest.raises(WireError, match="of 102 bytes is over the limit of 101"):
        decode(data, max_bytes=len(data) - 1)


@pytest.mark.parametrize("head", [b"\x81", b"\xa1\x00"])
def test_depth_is_limited(head: bytes) -> None:
    decode(head * MAX_DEPTH + b"\x00", max_bytes=LIMIT)
    for depth in (MAX_DEPTH + 1, 5_000):
        with pytest.raises(WireError, match="nested deeper than 16"):
            decode(head * depth + b"\x00", max_bytes=LIMIT)


def test_items_are_limited() -> None:
    data = encode([0] * 9)
    decode(data, max_bytes=LIMIT, max_items=10)
    with pytest.raises(WireError, match="more than 9 items"):
        decode(data, max_bytes=LIMIT, max_items=9)


def test_a_canonical_encoding_by_others_is_read() -> None:
    assert decode(cbor2.dumps({"a": [1, 2.5, b"x"]}, canonical=True), max_bytes=LIMIT) == {"a": [1, 2.5, b"x"]}
