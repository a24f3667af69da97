"""Kinds of an image that contain other kinds: an optional value, a list of slots, some bytes, the fields of a record.

Absent values and unused slots are zero, and are checked as strictly as the others. A table with a field that is not at its
natural alignment raises ValueError: padding must be written in the table and is never inserted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from psyche_core.coordinator.canonical_image.kinds import FLAG, U32, Bytes, FieldError, Kind, Padding, Part, expect_zero


class Optional(Kind):
    """A value that may be absent: a byte `present`, padding to the value's alignment, the value (zero when absent)."""

    def __init__(self, item: Kind) -> None:
        start = item.alignment
        filling = (Part("padding", 1, Padding(start - 1)),) if start > 1 else ()
        parts = (Part("present", 0, FLAG, "1 when there is a value"), *filling, Part("value", start, item, "zero when absent"))
        super().__init__(size=start + item.size, alignment=item.alignment, title=f"optional {item.title}", parts=parts)
        self._item = item
        self._start = start

    def write(self, value: Any) -> bytes:
        """Return the bytes of the value, or of None. Raises FieldError."""
        if value is None:
            return bytes(self.size)

        return b"\1".ljust(self._start, b"\0") + self._item.write(value)

    def read(self, image: bytes, at: int) -> Any:
        """Return the value, or None if it is absent. Raises FieldError."""
        found = {part.name: _read_part(part, image, at) for part in self.parts[:-1]}
        if found["present"]:
            return _read_part(self.parts[-1], image, at)

        expect_zero(image, at + self._start, self._item.size, "where nothing is present", "value")
        return None


class Blob(Kind):
    """Up to `capacity` bytes: their number (u32), 4 zero bytes, the bytes, then zero up to the capacity."""

    def __init__(self, capacity: int) -> None:
        parts = (
            Part("length", 0, U32, "bytes in use"),
            Part("padding", 4, Padding(4)),
            Part("content", 8, Bytes(capacity), "the bytes in use, then zero"),
        )
        super().__init__(size=8 + capacity, alignment=4, title=f"up to {capacity} bytes", parts=parts)
        self._capacity = capacity

    def write(self, value: Any) -> bytes:
        """Return the stored form of at most `capacity` bytes. Raises FieldError."""
        if len(value) > self._capacity:
            raise FieldError(f"expected at most {self._capacity} bytes, got {len(value)}")

        return U32.write(len(value)) + bytes(4) + bytes(value).ljust(self._capacity, b"\0")

    def read(self, image: bytes, at: int) -> bytes:
        """Return the bytes in use, without the zero bytes after them. Raises FieldError."""
        length, _ = (_read_part(part, image, at) for part in self.parts[:-1])
        if length > self._capacity:
            raise FieldError(f"expected at most {self._capacity}, got {length}", "length")

        end = at + 8 + length
        expect_zero(image, end, self._capacity - length, "after the bytes in use", "content", byte=length)
        return image[at + 8 : end]


class List(Kind):
    """Up to `capacity` values: their number (u32), 4 zero bytes, the slots; unused slots are zero."""

    def __init__(self, item: Kind, capacity: int) -> None:
        parts = (Part("count", 0, U32, "slots in use, from the first"), Part("padding", 4, Padding(4)))
        alignment = max(4, item.alignment)
        super().__init__(size=8 + capacity * item.size, alignment=alignment, title=f"{capacity} × {item.title}", parts=parts)
        self.item = item
        self.capacity = capacity

    def part(self, step: str | int) -> Part:
        """Return a slot by its number, or a field of the list by its name. Raises KeyError if there is none."""
        if isinstance(step, int) and 0 <= step < self.capacity:
            return Part(f"[{step}]", self._offset(step), self.item)

        return super().part(step)

    def _offset(self, slot: int) -> int:
        return 8 + slot * self.item.size

    def write(self, value: Any) -> bytes:
        """Return the bytes of a sequence of at most `capacity` values. Raises FieldError."""
        if len(value) > self.capacity:
            raise FieldError(f"expected at most {self.capacity}, got {len(value)}")

        written = [U32.write(len(value)), bytes(4)]
        for slot, item in enumerate(value):
            try:
                written.append(self.item.write(item))
            except FieldError as error:
                error.path = (slot, *error.path)
                raise

        return b"".join(written).ljust(self.size, b"\0")

    def read(self, image: bytes, at: int) -> tuple[Any, ...]:
        """Return the values of the slots in use. Raises FieldError."""
        return self._read_changed(image, at, earlier=b"", value=())

    def _read_changed(self, image: bytes, at: int, *, earlier: bytes, value: Any) -> tuple[Any, ...]:
        count, _ = (_read_part(part, image, at) for part in self.parts)
        if count > self.capacity:
            raise FieldError(f"expected at most {self.capacity}, got {count}", "count")

        items = []
        for slot in range(count):
            place = at + self._offset(slot)
            try:
                if slot < len(value):
                    items.append(self.item.read_again(image, place, earlier=earlier, value=value[slot]))
                else:
                    items.append(self.item.read(image, place))
            except FieldError as error:
                error.path = (slot, *error.path)
                raise

        if count < self.capacity:
            unused = (self.capacity - count) * self.item.size
            expect_zero(image, at + self._offset(count), unused, "in unused slots", count)
        return tuple(items)


class Record(Kind):
    """Several fields, one after the other.

    fields: name, kind and meaning of each. build: makes the value from its fields, given as keyword arguments. split: returns the
    fields of a value by name; without it they are the value's attributes. Raises ValueError if a field is not at its natural
    alignment or if two fields have the same name.
    """

    def __init__(
        self,
        title: str,
        build: Callable[..., Any],
        fields: Sequence[tuple[str, Kind, str]],
        *,
        split: Callable[[Any], Mapping[str, Any]] | None = None,
    ) -> None:
        parts, offset = [], 0
        for name, kind, note in fields:
            if offset % kind.alignment:
                message = f"{title}.{name} would start at byte {offset}, which needs alignment {kind.alignment}; pad before it"
                raise ValueError(message)

            parts.append(Part(name, offset, kind, note))
            offset += kind.size

        alignment = max(part.kind.alignment for part in parts)
        if offset % alignment or len({part.name for part in parts}) < len(parts):
            message = f"{title} has {offset} bytes, which needs a multiple of {alignment}, and names of its own for all fields"
            raise ValueError(message)

        super().__init__(size=offset, alignment=alignment, title=title, parts=tuple(parts))
        self._build = build
        self._split = split

    def write(self, value: Any) -> bytes:
        """Return the bytes of a value that has all fields. Raises FieldError."""
        values = self._split(value) if self._split is not None else None
        written = []
        for part in self.parts:
            item = None
            if not part.kind.without_value:
                item = getattr(value, part.name) if values is None else values[part.name]
            try:
                written.append(part.kind.write(item))
            except FieldError as error:
                error.path = (part.name, *error.path)
                raise

        return b"".join(written)

    def read(self, image: bytes, at: int) -> Any:
        """Return the value that `build` makes from the fields. Raises FieldError."""
        return self._built({part.name: _read_part(part, image, at) for part in self.parts})

    def _read_changed(self, image: bytes, at: int, *, earlier: bytes, value: Any) -> Any:
        if self._split is not None:
            return self.read(image, at)

        found = {}
        for part in self.parts:
            if part.kind.without_value:
                found[part.name] = _read_part(part, image, at)
                continue
            try:
                before = getattr(value, part.name)
                found[part.name] = part.kind.read_again(image, at + part.offset, earlier=earlier, value=before)
            except FieldError as error:
                error.path = (part.name, *error.path)
                raise
        return self._built(found)

    def _built(self, found: Mapping[str, Any]) -> Any:
        values = {part.name: found[part.name] for part in self.parts if not part.kind.without_value}
        try:
            return self._build(**values)
        except FieldError:
            raise
        except ValueError as error:
            raise FieldError(str(error)) from error


def _read_part(part: Part, image: bytes, at: int) -> Any:
    """Read a field of the value that starts at `at`. Adds the field's name to the path of a FieldError."""
    try:
        return part.kind.read(image, at + part.offset)
    except FieldError as error:
        error.path = (part.name, *error.path)
        raise
