"""Reads the one relocatable object that LLVM emits. Rejects what sBPF lacks or executes differently from Linux' BPF."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from llvm import STACK_BYTES, LinkError

LDDW, CALL, CALLX, EXIT = 0x18, 0x85, 0x8D, 0x95
_RELOCATABLE, _BPF = 1, 247
_PROGBITS, _SYMTAB, _RELA, _REL = 1, 2, 4, 9
_WRITE, _ALLOC, _EXECUTE = 1, 2, 4
_FUNCTION = 2
_STACK_REGISTER = 10

_ARITHMETIC = (
    {
        code | width
        for width in (0x04, 0x07)
        for code in (
            0x00,
            0x08,
            0x10,
            0x18,
            0x20,
            0x28,
            0x30,
            0x38,
            0x40,
            0x48,
            0x50,
            0x58,
            0x60,
            0x68,
            0x70,
            0x78,
            0x80,
            0x90,
            0x98,
        )
    }
    | {code | width for width in (0x04, 0x07) for code in (0xA0, 0xA8, 0xB0, 0xB8, 0xC0, 0xC8)}
    | {0xD4, 0xDC}
)
_SIGN_EXTENDED = (0x04, 0x0C, 0x14, 0x1C, 0x24, 0x2C)
_LOADS = {0x61, 0x69, 0x71, 0x79}
_STORES = {0x62, 0x6A, 0x72, 0x7A, 0x63, 0x6B, 0x73, 0x7B}
_JUMPS = {0x05} | {0x05 | code | source for code in range(0x10, 0xE0, 0x10) for source in (0, 8) if code not in (0x80, 0x90)}


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol. part: "text" or "data"; None if it is not in this object. value: offset in bytes in the part."""

    name: str
    part: str | None
    value: int
    section: int

    @property
    def is_undefined(self) -> bool:
        """Whether another file has to define it."""
        return self.section == 0


@dataclass(frozen=True, slots=True)
class Relocation:
    """An address to fill in. part and offset: its position. kind: the BPF backend's number of the relocation type."""

    part: str
    offset: int
    kind: int
    symbol: Symbol


class ObjectFile:
    """The merged code and read-only data of a little-endian 64-bit BPF object. functions: name to offset and size in `text`."""

    def __init__(self, content: bytes) -> None:
        if content[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<HH", content, 16) != (_RELOCATABLE, _BPF):
            message = "not a BPF object"
            raise LinkError(message)
        self._content = content
        self._sections = self._read_sections()
        self.text, self.data = bytearray(), bytearray()
        self.functions: dict[str, tuple[int, int]] = {}
        self._places: dict[int, tuple[str, int]] = {}
        for number, section in enumerate(self._sections):
            self._place(number, section)
        self.data += bytes(-len(self.data) % 8)
        self._symbols = self._read_symbols()
        self.relocations = sorted(self._read_relocations(), key=lambda found: (found.part, found.offset))

    def undefined(self) -> list[str]:
        """Return the names that another file has to define, sorted."""
        return sorted({found.symbol.name for found in self.relocations if found.symbol.is_undefined})

    def where(self, offset: int) -> str:
        """Return an offset in `text` in readable form: function and offset in it."""
        for name, (start, size) in self.functions.items():
            if start <= offset < start + size:
                return f"{name}+{offset - start:#x}"
        return f".text+{offset:#x}"

    def _read_sections(self) -> list[tuple[int, ...]]:
        (start,) = struct.unpack_from("<Q", self._content, 40)
        (count,) = struct.unpack_from("<H", self._content, 60)
        return [struct.unpack_from("<IIQQQQIIQQ", self._content, start + 64 * number) for number in range(count)]

    def _string(self, table: int, offset: int) -> str:
        start = self._sections[table][4] + offset
        return self._content[start : self._content.index(b"\0", start)].decode()

    def _place(self, number: int, section: tuple[int, ...]) -> None:
        (names,) = struct.unpack_from("<H", self._content, 62)
        kind, flags, start, size, alignment = section[1], section[2], section[4], section[5], max(section[8], 8)
        if not flags & _ALLOC or not size:
            return
        name = self._string(names, section[0])
        if kind == _PROGBITS and flags & _EXECUTE:
            part, buffer = "text", self.text
        elif kind == _PROGBITS and (not flags & _WRITE or name.startswith(".data.rel.ro")):
            part, buffer = "data", self.data
        else:
            message = f"section {name} ({size} bytes) is writable: an on-chain program has no mutable statics"
            raise LinkError(message)
        buffer += bytes(-len(buffer) % alignment)
        self._places[number] = (part, len(buffer))
        buffer += self._content[start : start + size]

    def _read_symbols(self) -> list[Symbol]:
        table = next(section for section in self._sections if section[1] == _SYMTAB)
        found = []
        for at in range(table[4], table[4] + table[5], 24):
            name, info, _, section, value, size = struct.unpack_from("<IBBHQQ", self._content, at)
            part, base = self._places.get(section, (None, 0))
            symbol = Symbol(self._string(table[6], name), part, base + value, section)
            found.append(symbol)
            if info & 15 == _FUNCTION and part == "text":
                self.functions[symbol.name] = (symbol.value, size)
        return found

    def _read_relocations(self) -> list[Relocation]:
        found = []
        for section in self._sections:
            if section[7] not in self._places:
                continue
            if section[1] == _RELA:
                message = "RELA relocations are not expected from the BPF backend"
                raise LinkError(message)
            if section[1] == _REL:
                part, base = self._places[section[7]]
                for at in range(section[4], section[4] + section[5], 16):
                    offset, info = struct.unpack_from("<QQ", self._content, at)
                    found.append(Relocation(part, base + offset, info & 0xFFFFFFFF, self._symbols[info >> 32]))
        return found


def verify(program: ObjectFile) -> None:
    """Raise LinkError for an instruction that the sBPF verifier rejects, or that sBPF executes differently from Linux' BPF."""
    at = 0
    while at < len(program.text):
        reason = _objection(*struct.unpack_from("<BBh", program.text, at))
        if reason:
            message = f"{program.where(at)}: {reason}"
            raise LinkError(message)
        at += 16 if program.text[at] == LDDW else 8


def _objection(code: int, registers: int, offset: int) -> str | None:
    target, source = registers & 15, registers >> 4
    if code in _SIGN_EXTENDED:
        return "32-bit addition, subtraction or multiplication (sBPF sign-extends the result, Linux' BPF does not)"
    if code in _ARITHMETIC:
        if offset:
            return f"signed division or sign-extending move (opcode {code:#x}, offset {offset})"
        return "writes the stack register" if target == _STACK_REGISTER else None
    if code in _LOADS | _STORES:
        base = source if code in _LOADS else target
        return f"stack frame over {STACK_BYTES} bytes" if base == _STACK_REGISTER and offset < -STACK_BYTES else None
    if code in _JUMPS or code in (LDDW, CALL, CALLX, EXIT):
        return None
    return f"opcode {code:#04x} is not in sBPF"
