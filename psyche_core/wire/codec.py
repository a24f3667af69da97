"""Canonical CBOR with limits, the only encoding of messages between machines.

`decode` checks the bytes in one pass *before* they reach the CBOR decoder. It rejects data that is too long, nested too deep or
has too many items, and indefinite lengths, tags, floats that are not finite, trailing bytes, and map keys that are not text or
integers, are duplicate or are not in order. Accepted bytes are canonical (decoding and encoding gives the same bytes), so
signatures over encodings are unambiguous. `encode` rejects every value of a kind that `decode` would reject. Tensors are never
encoded here.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import cbor2

from psyche_core.errors import WireError

MAX_DEPTH = 16
MAX_ITEMS = 100_000

_ALWAYS_ALLOWED = frozenset({type(None), bool, str, bytes})
"""Types whose values are all allowed. They are checked first, because most values have one of these types."""

_FLOATS = {25: struct.Struct(">e"), 26: struct.Struct(">f"), 27: struct.Struct(">d")}
"""By the low bits of the head."""


def encode(value: Any) -> bytes:
    """Return the canonical CBOR of a value.

    Allowed are None, bool, int from -2**64 to 2**64 - 1, finite float, str, bytes, list, tuple, and dict with str or int keys.
    Raises ValueError for a number that is not finite or too large and for text with surrogates, and TypeError for other types.
    """
    _check(value)
    return bytes(cbor2.dumps(value, canonical=True))


def _check(value: Any) -> None:
    """Raise for values that `decode` would reject, so that a message that nobody can read fails at its sender."""
    kind = type(value)
    if kind in _ALWAYS_ALLOWED or (kind is int and -(2**64) <= value < 2**64):
        return

    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(key, bool) or not isinstance(key, str | int):
                message = f"a map key on the wire is a str or an int, got {type(key).__name__}"
                raise TypeError(message)

            if type(key) is not str:
                _check(key)
            _check(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check(item)
    elif isinstance(value, int):
        if not -(2**64) <= value < 2**64:
            message = f"an integer on the wire is from -2**64 to 2**64 - 1, got one of {value.bit_length()} bits"
            raise ValueError(message)
    elif isinstance(value, float):
        if not math.isfinite(value):
            message = f"a float on the wire must be finite, got {value}"
            raise ValueError(message)
    elif not isinstance(value, str | bytes):
        message = f"only None, bool, int, float, str, bytes, list, tuple and dict go over the wire, got {type(value).__name__}"
        raise TypeError(message)


def decode(data: bytes, *, max_bytes: int, max_depth: int = MAX_DEPTH, max_items: int = MAX_ITEMS) -> Any:
    """Return the value encoded in `data`. Raises only WireError. No value is built from input that the first pass rejects.

    max_bytes: limit for the length of `data`. max_depth: limit for nesting. max_items: limit for the number of CBOR items.
    """
    if len(data) > max_bytes:
        message = f"a message of {len(data)} bytes is over the limit of {max_bytes}"
        raise WireError(message)

    _Scan(data, max_depth=max_depth, max_items=max_items).run()
    try:
        value = cbor2.loads(data)
        again = cbor2.dumps(value, canonical=True)
    except Exception as error:  # cbor2 raises several kinds of exceptions; all mean invalid CBOR
        message = f"not valid CBOR: {type(error).__name__}"
        raise WireError(message) from error

    if again != data:
        message = "CBOR is not in canonical form (shortest integers and floats, ordered map keys, no duplicates)"
        raise WireError(message)

    return value


class _Scan:
    """Checks CBOR heads (RFC 8949, section 3) in one pass, and counts items and depth, without building values."""

    def __init__(self, data: bytes, *, max_depth: int, max_items: int) -> None:
        self._data = data
        self._end = len(data)
        self._at = 0
        self._items = 0
        self._max_depth = max_depth
        self._max_items = max_items

    def run(self) -> None:
        self._item(0)
        if self._at != self._end:
            message = f"{self._end - self._at} bytes follow the CBOR value"
            raise WireError(message)

    def _skip(self, count: int) -> int:
        """Go on by some bytes; returns where they begin."""
        start = self._at
        if count > self._end - start:
            message = "CBOR ends in the middle of a value"
            raise WireError(message)

        self._at = start + count
        return start

    def _item(self, depth: int) -> None:
        if depth > self._max_depth:
            message = f"CBOR is nested deeper than {self._max_depth}"
            raise WireError(message)

        self._items += 1
        if self._items > self._max_items:
            message = f"CBOR has more than {self._max_items} items"
            raise WireError(message)

        head = self._data[self._skip(1)]
        major, low = head >> 5, head & 31
        if major == 7:
            self._simple(low)
            return

        if low > 27:
            message = "CBOR with indefinite length is refused"
            raise WireError(message)

        argument = low
        if low >= 24:
            start = self._skip(1 << (low - 24))
            argument = int.from_bytes(self._data[start : self._at], "big")
        if major < 2:  # an integer, which its argument is
            return

        if major < 4:  # bytes or text
            self._skip(argument)
        elif major < 6:
            self._items_of(argument, is_map=major == 5, depth=depth + 1)
        else:
            message = "CBOR tags are refused"
            raise WireError(message)

    def _items_of(self, count: int, *, is_map: bool, depth: int) -> None:
        """Check what a list or a map holds. count: items of a list, pairs of a map."""
        if (2 * count if is_map else count) > self._end - self._at:
            message = "CBOR announces more items than it has bytes"
            raise WireError(message)

        for _ in range(count):
            if is_map:
                self._key()
                self._item(depth)
            self._item(depth)

    def _key(self) -> None:
        """Check the type of a map key without consuming it."""
        if self._at < self._end and self._data[self._at] >> 5 not in (0, 1, 3):
            message = "CBOR map keys other than integers and text are refused"
            raise WireError(message)

    def _simple(self, low: int) -> None:
        if low in (20, 21, 22):
            return

        form = _FLOATS.get(low)
        if form is None:
            message = "CBOR simple values other than true, false and null are refused"
            raise WireError(message)

        start = self._skip(form.size)
        (value,) = form.unpack_from(self._data, start)
        if not math.isfinite(value):
            message = "CBOR floats must be finite"
            raise WireError(message)
