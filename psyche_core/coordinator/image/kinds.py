"""Kinds of fields of a fixed binary image: how a value is stored in its bytes, and which bytes are refused.

Numbers are little-endian, at multiples of their size. Every padding byte is a field of its own, so that a C structure with
natural alignment (`#[repr(C)]`) has exactly these offsets. A value has one form only, and unused bytes are zero. Everything else
is refused with a FieldError that names the path of the field. This module does not depend on the coordinator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

Path = tuple[str | int, ...]
"""Names of fields and numbers of slots, from the outermost record inwards."""

_SHOWN_CHARACTERS = 80


class FieldError(ValueError):
    """A value or its bytes do not fit their place.

    text: what was expected and got. path: of the field, completed on the way out. byte: the first wrong byte within the field.
    """

    def __init__(self, text: str, *path: str | int, byte: int = 0) -> None:
        super().__init__(text)
        self.text = text
        self.path: Path = path
        self.byte = byte

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.text}"


def dotted(path: Path) -> str:
    """A path as people write it: `epoch.rounds[2].seed`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


class Kind(ABC):
    """How a value lies in bytes.

    size, alignment: in bytes. title: for the documentation. parts: the fields inside, empty for a plain value. silent: whether
    the bytes carry no value.
    """

    silent = False

    def __init__(self, *, size: int, alignment: int = 1, title: str, parts: tuple[Part, ...] = ()) -> None:
        self.size = size
        self.alignment = alignment
        self.title = title
        self.parts = parts

    def part(self, step: str | int) -> Part:
        """The field inside with this name, of a list the slot with this number. Raises KeyError when there is none."""
        for part in self.parts:
            if part.name == step:
                return part

        raise KeyError(step)

    @abstractmethod
    def write(self, value: Any) -> bytes:
        """The `size` bytes of a value. Raises FieldError."""

    @abstractmethod
    def read(self, image: bytes, at: int) -> Any:
        """The value whose bytes start at `at`; there are `size` of them. Raises FieldError."""


@dataclass(frozen=True, slots=True)
class Part:
    """A field of a kind: where it starts in it, what it is, what it means."""

    name: str
    offset: int
    kind: Kind
    note: str = ""


def offset_of(kind: Kind, path: Path) -> int:
    """Byte within `kind` at which the field at `path` starts. Raises KeyError when there is none."""
    offset = 0
    for step in path:
        inner = kind.part(step)
        offset, kind = offset + inner.offset, inner.kind
    return offset


class Number(Kind):
    """An unsigned integer."""

    def __init__(self, bits: int) -> None:
        super().__init__(size=bits // 8, alignment=bits // 8, title=f"u{bits}")
        self._limit = 2**bits

    def write(self, value: Any) -> bytes:
        """Of an int within the range; no bool."""
        if type(value) is not int or not 0 <= value < self._limit:
            raise FieldError(f"expected a whole number from 0 to {self._limit - 1}, got {shown(value)}")

        return value.to_bytes(self.size, "little")

    def read(self, image: bytes, at: int) -> int:
        """An int."""
        return int.from_bytes(image[at : at + self.size], "little")


U8, U16, U32, U64 = Number(8), Number(16), Number(32), Number(64)


class Enumeration(Kind):
    """One of a few values as its number, in one byte."""

    def __init__(self, title: str, values: Mapping[int, Any]) -> None:
        super().__init__(size=1, title=f"{title} (u8)")
        self.values = dict(values)

    def write(self, value: Any) -> bytes:
        """Of one of the values, of exactly its type."""
        for number, known in self.values.items():
            if type(value) is type(known) and value == known:
                return bytes([number])

        raise FieldError(f"expected one of {self._known()}, got {shown(value)}")

    def read(self, image: bytes, at: int) -> Any:
        """One of the values."""
        number = image[at]
        if number not in self.values:
            raise FieldError(f"expected a number of {self._known()}, got {number}")

        return self.values[number]

    def _known(self) -> str:
        return ", ".join(f"{number} {value_name(value)}" for number, value in self.values.items())


def members(enumeration: type[IntEnum]) -> dict[int, IntEnum]:
    """The values of an Enumeration over all members of an IntEnum."""
    return {int(member): member for member in enumeration}


def value_name(value: Any) -> str:
    """What a value of an Enumeration is called."""
    return value.name if isinstance(value, IntEnum) else str(value)


FLAG = Enumeration("flag", {0: False, 1: True})


class Bytes(Kind):
    """A fixed number of raw bytes."""

    def __init__(self, size: int) -> None:
        super().__init__(size=size, title=f"{size} bytes")

    def write(self, value: Any) -> bytes:
        """Of bytes of exactly the size."""
        if type(value) is not bytes or len(value) != self.size:
            raise FieldError(f"expected {self.size} bytes, got {shown(value)}")

        return value

    def read(self, image: bytes, at: int) -> bytes:
        """Bytes of the size."""
        return image[at : at + self.size]


class Hex(Bytes):
    """A fixed number of raw bytes whose value is text, two lower-case hexadecimal digits for each."""

    def write(self, value: Any) -> bytes:
        """Of a str of two digits for each byte."""
        try:
            raw = bytes.fromhex(value)
        except (TypeError, ValueError):
            raw = b""
        if len(raw) != self.size or raw.hex() != value:
            raise FieldError(f"expected {2 * self.size} lower-case hexadecimal digits, got {shown(value)}")

        return raw

    def read(self, image: bytes, at: int) -> Any:
        """A str of two digits for each byte."""
        return super().read(image, at).hex()


class Text(Kind):
    """UTF-8 without NUL characters, filled up with zero bytes; a text may fill its place."""

    def __init__(self, size: int) -> None:
        super().__init__(size=size, title=f"text, {size} bytes")

    def write(self, value: Any) -> bytes:
        """Of a str that fits."""
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
        """A str without NUL."""
        encoded = image[at : at + self.size].rstrip(b"\0")
        if b"\0" in encoded:
            raise FieldError("expected nothing but zero bytes after the end of the text", byte=encoded.index(b"\0"))
        try:
            return encoded.decode()
        except UnicodeDecodeError as error:
            raise FieldError(f"expected UTF-8, got 0x{encoded[error.start]:02x}", byte=error.start) from None


class Bitmap(Kind):
    """A set of small numbers, given ascending: number n is bit n % 8 of byte n // 8."""

    def __init__(self, bits: int) -> None:
        super().__init__(size=bits // 8, title=f"bitmap of {bits}")

    def write(self, value: Any) -> bytes:
        """Of ascending ints."""
        bits, last = bytearray(self.size), -1
        for number in value:
            if type(number) is not int or not last < number < 8 * self.size:
                raise FieldError(f"expected ascending numbers from 0 to {8 * self.size - 1}, got {shown(value)}")

            bits[number // 8] |= 1 << number % 8
            last = number
        return bytes(bits)

    def read(self, image: bytes, at: int) -> tuple[int, ...]:
        """The ints, ascending."""
        bits = int.from_bytes(image[at : at + self.size], "little")
        return tuple(number for number in range(8 * self.size) if bits >> number & 1)


class Padding(Kind):
    """Zero bytes that move the next field to its alignment."""

    silent = True

    def __init__(self, size: int) -> None:
        super().__init__(size=size, title=f"{size} zero bytes" if size > 1 else "zero byte")

    def write(self, value: Any) -> bytes:  # noqa: ARG002 - padding has no value
        """Whatever the value: zero."""
        return bytes(self.size)

    def read(self, image: bytes, at: int) -> None:
        """None, from nothing but zero."""
        expect_zero(image, at, self.size, "in padding")


class Constant(Kind):
    """Bytes that are the same in every image. mismatch: what to say about others, after `expected … and got …`."""

    silent = True

    def __init__(self, kind: Kind, value: Any, *, mismatch: str) -> None:
        super().__init__(size=kind.size, alignment=kind.alignment, title=f"{kind.title} = {shown(value)}")
        self._kind = kind
        self._value = value
        self._mismatch = mismatch

    def write(self, value: Any) -> bytes:  # noqa: ARG002 - its value is its own
        """Whatever the value: the constant."""
        return self._kind.write(self._value)

    def read(self, image: bytes, at: int) -> None:
        """None, from nothing but the constant."""
        found = self._kind.read(image, at)
        if found != self._value:
            raise FieldError(f"expected {shown(self._value)}, got {shown(found)}; {self._mismatch}")


def expect_zero(image: bytes, start: int, size: int, where: str, *path: str | int, byte: int = 0) -> None:
    """Refuse a stretch that is not all zero. byte: where it starts within the field at `path`."""
    found = image[start : start + size].lstrip(b"\0")
    if found:
        raise FieldError(f"expected zero {where}, got 0x{found[0]:02x}", *path, byte=byte + size - len(found))


def expect_order(keys: Iterable[Any], rule: str, *path: str | int) -> None:
    """Refuse keys that do not strictly ascend; the path ends with the first that does not."""
    last: Any = None
    for place, key in enumerate(keys):
        if last is not None and not last < key:
            raise FieldError(f"expected {rule}, got {shown(key)} after {shown(last)}", *path, place)

        last = key


def shown(value: Any) -> str:
    """A value for a message: bytes in hex, cut to a line."""
    text = value.hex() if isinstance(value, bytes) and len(value) > 8 else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
