"""Kinds of fields of a fixed binary image: how a value is stored in its bytes, and which bytes are invalid.

Numbers are little-endian, at multiples of their size. Padding is written as fields of its own, so that a C structure with natural
alignment (`#[repr(C)]`) has exactly these offsets. Each value has only one form, and unused bytes are zero. Anything else raises
a FieldError that names the path of the field. This module does not depend on the coordinator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

Path = tuple[str | int, ...]
"""Names of fields and numbers of list slots, the outermost first."""

_SHOWN_CHARACTERS = 80


class FieldError(ValueError):
    """A value, or its bytes, are not valid for a field.

    text: what was expected, and the actual value. path: of the field; each outer record adds its part while the error propagates.
    byte: offset of the first wrong byte within the field.
    """

    def __init__(self, text: str, *path: str | int, byte: int = 0) -> None:
        super().__init__(text)
        self.text = text
        self.path: Path = path
        self.byte = byte

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.text}"


def dotted(path: Path) -> str:
    """Return a path in readable form: `epoch.rounds[2].seed`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


class Kind(ABC):
    """How a value is stored in bytes.

    size, alignment: in bytes. title: for the documentation. parts: the fields inside, empty for a plain value. without_value:
    True if the bytes contain no value, as in padding.
    """

    without_value = False

    def __init__(self, *, size: int, alignment: int = 1, title: str, parts: tuple[Part, ...] = ()) -> None:
        self.size = size
        self.alignment = alignment
        self.title = title
        self.parts = parts

    def part(self, step: str | int) -> Part:
        """Return the field with this name, or the slot of a list with this number. Raises KeyError if there is none."""
        for part in self.parts:
            if part.name == step:
                return part

        raise KeyError(step)

    @abstractmethod
    def write(self, value: Any) -> bytes:
        """Return the `size` bytes of a value. Raises FieldError if it cannot be stored."""

    @abstractmethod
    def read(self, image: bytes, at: int) -> Any:
        """Return the value whose `size` bytes start at offset `at`. Raises FieldError if the bytes are not valid."""

    def read_again(self, image: bytes, at: int, *, earlier: bytes, value: Any) -> Any:
        """Return what `read` returns, sooner where little has changed.

        earlier: an image that `read` accepted, value: what it returned at the same offset. Values are immutable, so the result
        consists of them where the bytes are the same. Raises FieldError.
        """
        end = at + self.size
        return value if image[at:end] == earlier[at:end] else self._read_changed(image, at, earlier=earlier, value=value)

    def _read_changed(self, image: bytes, at: int, *, earlier: bytes, value: Any) -> Any:  # noqa: ARG002 - for those with parts
        """Return the value of bytes that are not those of `earlier`. Kinds that contain others read only what has changed."""
        return self.read(image, at)


@dataclass(frozen=True, slots=True)
class Part:
    """A field of a kind. offset: from the start of the containing kind, in bytes. note: its meaning, for the documentation."""

    name: str
    offset: int
    kind: Kind
    note: str = ""


def offset_of(kind: Kind, path: Path) -> int:
    """Return the byte within `kind` at which the field at `path` starts. Raises KeyError if there is none."""
    offset = 0
    for step in path:
        inner = kind.part(step)
        offset, kind = offset + inner.offset, inner.kind
    return offset


class Number(Kind):
    """An unsigned integer, little-endian. bits: 8, 16, 32 or 64."""

    def __init__(self, bits: int) -> None:
        super().__init__(size=bits // 8, alignment=bits // 8, title=f"u{bits}")
        self._limit = 2**bits

    def write(self, value: Any) -> bytes:
        """Return the bytes of an int. Raises FieldError for a bool, another type, or a number out of range."""
        if type(value) is not int or not 0 <= value < self._limit:
            raise FieldError(f"expected a whole number from 0 to {self._limit - 1}, got {shown(value)}")

        return value.to_bytes(self.size, "little")

    def read(self, image: bytes, at: int) -> int:
        """Return the number."""
        return int.from_bytes(image[at : at + self.size], "little")


U8, U16, U32, U64 = Number(8), Number(16), Number(32), Number(64)


class Enumeration(Kind):
    """One of a few values, stored as a number in one byte. values: the value of each number."""

    def __init__(self, title: str, values: Mapping[int, Any]) -> None:
        super().__init__(size=1, title=f"{title} (u8)")
        self.values: dict[int, Any] = dict(values)

    def write(self, value: Any) -> bytes:
        """Return the byte of one of the values. The type must match exactly. Raises FieldError."""
        for number, known in self.values.items():
            if type(value) is type(known) and value == known:
                return bytes([number])

        raise FieldError(f"expected one of {self._known()}, got {shown(value)}")

    def read(self, image: bytes, at: int) -> Any:
        """Return the value. Raises FieldError for an unknown number."""
        number = image[at]
        if number not in self.values:
            raise FieldError(f"expected a number of {self._known()}, got {number}")

        return self.values[number]

    def _known(self) -> str:
        return ", ".join(f"{number} {value_name(value)}" for number, value in self.values.items())


def members(enumeration: type[IntEnum]) -> dict[int, IntEnum]:
    """Return the `values` of an Enumeration over all members of an IntEnum."""
    return {int(member): member for member in enumeration}


def value_name(value: Any) -> str:
    """Return the name of a value of an Enumeration."""
    return value.name if isinstance(value, IntEnum) else str(value)


FLAG = Enumeration("flag", {0: False, 1: True})


class Bytes(Kind):
    """A fixed number of raw bytes."""

    def __init__(self, size: int) -> None:
        super().__init__(size=size, title=f"{size} bytes")

    def write(self, value: Any) -> bytes:
        """Return the value itself. Raises FieldError unless it is bytes of exactly this size."""
        if type(value) is not bytes or len(value) != self.size:
            raise FieldError(f"expected {self.size} bytes, got {shown(value)}")

        return value

    def read(self, image: bytes, at: int) -> bytes:
        """Return the bytes."""
        return image[at : at + self.size]


class Hex(Bytes):
    """A fixed number of raw bytes. The value is a str with two lower-case hexadecimal digits for each byte."""

    def write(self, value: Any) -> bytes:
        """Return the bytes of a str with two lower-case hexadecimal digits for each byte. Raises FieldError."""
        try:
            raw = bytes.fromhex(value)
        except (TypeError, ValueError):
            raw = b""
        if len(raw) != self.size or raw.hex() != value:
            raise FieldError(f"expected {2 * self.size} lower-case hexadecimal digits, got {shown(value)}")

        return raw

    def read(self, image: bytes, at: int) -> Any:
        """Return a str with two lower-case hexadecimal digits for each byte."""
        return super().read(image, at).hex()


class Text(Kind):
    """UTF-8 text without NUL characters, followed by zero bytes up to `size`. A text may have exactly `size` bytes."""

    def __init__(self, size: int) -> None:
        super().__init__(size=size, title=f"text, {size} bytes")

    def write(self, value: Any) -> bytes:
        """Return the bytes of a str of at most `size` bytes of UTF-8. Raises FieldError."""
        if not isinstance(value, str):
            raise FieldError(f"expected a text, got {shown(value)}")
        try:
            encoded = value.encode()
        except UnicodeEncodeError:
            raise FieldError(f"expected text that UTF-8 can write, got {shown(value)}") from None

        if len(encoded) > self.size or b"\0" in encoded:
            raise FieldError(f"expected at most {self.size} bytes of UTF-8 without NUL, got {len(encoded)}: {shown(value)}")

        return encoded.ljust(self.size, b"\0")

    def read(self, image: bytes, at: int) -> str:
        """Return the text. Raises FieldError for bytes after its end, or if it is not UTF-8."""
        encoded = image[at : at + self.size].rstrip(b"\0")
        if b"\0" in encoded:
            raise FieldError("expected nothing but zero bytes after the end of the text", byte=encoded.index(b"\0"))
        try:
            return encoded.decode()
        except UnicodeDecodeError as error:
            raise FieldError(f"expected UTF-8, got 0x{encoded[error.start]:02x}", byte=error.start) from None


class Bitmap(Kind):
    """A set of small numbers, given in ascending order. Number n is bit n % 8 of byte n // 8."""

    def __init__(self, bits: int) -> None:
        super().__init__(size=bits // 8, title=f"bitmap of {bits}")

    def write(self, value: Any) -> bytes:
        """Return the bytes of ascending ints. Raises FieldError."""
        bits, last = bytearray(self.size), -1
        for number in value:
            if type(number) is not int or not last < number < 8 * self.size:
                raise FieldError(f"expected ascending numbers from 0 to {8 * self.size - 1}, got {shown(value)}")

            bits[number // 8] |= 1 << number % 8
            last = number
        return bytes(bits)

    def read(self, image: bytes, at: int) -> tuple[int, ...]:
        """Return the numbers, ascending."""
        bits = int.from_bytes(image[at : at + self.size], "little")
        return tuple(number for number in range(8 * self.size) if bits >> number & 1)


class Padding(Kind):
    """Zero bytes before a field, for its alignment. They have no value."""

    without_value = True

    def __init__(self, size: int) -> None:
        super().__init__(size=size, title=f"{size} zero bytes" if size > 1 else "zero byte")

    def write(self, value: Any) -> bytes:  # noqa: ARG002 - padding has no value
        """Return zero bytes; the value is ignored."""
        return bytes(self.size)

    def read(self, image: bytes, at: int) -> None:
        """Raise FieldError unless all bytes are zero."""
        expect_zero(image, at, self.size, "in padding")


class Constant(Kind):
    """Bytes that are the same in every image. mismatch: end of the error message about other bytes."""

    without_value = True

    def __init__(self, kind: Kind, value: Any, *, mismatch: str) -> None:
        super().__init__(size=kind.size, alignment=kind.alignment, title=f"{kind.title} = {shown(value)}")
        self._kind = kind
        self._value = value
        self._mismatch = mismatch

    def write(self, value: Any) -> bytes:  # noqa: ARG002 - the value is constant
        """Return the bytes of the constant; the value is ignored."""
        return self._kind.write(self._value)

    def read(self, image: bytes, at: int) -> None:
        """Raise FieldError unless the bytes are those of the constant."""
        found = self._kind.read(image, at)
        if found != self._value:
            raise FieldError(f"expected {shown(self._value)}, got {shown(found)}; {self._mismatch}")


def expect_zero(image: bytes, start: int, size: int, where: str, *path: str | int, byte: int = 0) -> None:
    """Raise FieldError unless all `size` bytes from `start` are zero. byte: offset of `start` within the field at `path`."""
    found = image[start : start + size].lstrip(b"\0")
    if found:
        raise FieldError(f"expected zero {where}, got 0x{found[0]:02x}", *path, byte=byte + size - len(found))


def expect_order(keys: Iterable[Any], rule: str, *path: str | int) -> None:
    """Raise FieldError unless the keys are strictly ascending. The error's path ends with the first wrong position."""
    last: Any = None
    for place, key in enumerate(keys):
        if last is not None and not last < key:
            raise FieldError(f"expected {rule}, got {shown(key)} after {shown(last)}", *path, place)

        last = key


def shown(value: Any) -> str:
    """Return a value as text for a message: long bytes in hex, shortened to one line."""
    text = value.hex() if isinstance(value, bytes) and len(value) > 8 else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
