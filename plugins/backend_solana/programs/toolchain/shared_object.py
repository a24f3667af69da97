"""Writes a program as the ELF shared object that Solana's loader accepts: sBPF v0 or v3.

A program may leave only the names of Solana's syscalls undefined. In v0 the loader resolves them by a relocation; in v3 the
program calls them by the hash of their name.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from llvm import LinkError
from object_file import CALL, CALLX, LDDW, ObjectFile, Relocation, verify

SYSCALLS = frozenset(
    {
        "abort", "sol_panic_", "sol_log_", "sol_log_64_", "sol_log_pubkey", "sol_log_compute_units_", "sol_log_data",
        "sol_create_program_address", "sol_try_find_program_address", "sol_sha256", "sol_keccak256", "sol_blake3",
        "sol_secp256k1_recover", "sol_get_clock_sysvar", "sol_get_rent_sysvar", "sol_get_epoch_schedule_sysvar",
        "sol_get_last_restart_slot", "sol_get_sysvar", "sol_memcpy_", "sol_memmove_", "sol_memset_", "sol_memcmp_",
        "sol_invoke_signed_c", "sol_invoke_signed_rust", "sol_set_return_data", "sol_get_return_data",
        "sol_get_processed_sibling_instruction", "sol_get_stack_height", "sol_remaining_compute_units",
    }
)  # fmt: skip
ENTRY = "entrypoint"
VERSIONS = (0, 3)
_TRAP = "__bpf_trap"
_TEXT_V3 = 1 << 32
_GAP_V3 = 16  # before the data of v3, which begins at address 0: a reference to its first byte would be a null pointer
_ABSOLUTE, _RELATIVE, _BPF_CALL = 1, 8, 10
_ADDRESS_64 = (1, 2)


def link(program: ObjectFile, version: int) -> bytes:
    """Return the finished file. version: of sBPF, 0 or 3. Raises LinkError with the reason if the program cannot be linked."""
    if version not in VERSIONS:
        message = f"sBPF version {version}; expected one of {VERSIONS}"
        raise LinkError(message)
    if ENTRY not in program.functions:
        message = f"no function `{ENTRY}`"
        raise LinkError(message)
    for name in program.undefined():
        if name not in SYSCALLS and name != _TRAP:
            message = f"undefined symbol `{name}`: neither in the program nor a Solana syscall"
            raise LinkError(message)
    verify(program)
    writer = (_Version0 if version == 0 else _Version3)(program)
    for relocation in program.relocations:
        writer.relocate(relocation)
    return writer.finish()


class _Layout:
    """Code and data at their addresses, with every relocation applied."""

    def __init__(self, program: ObjectFile, *, text_at: int, data_at: int, gap: int = 0) -> None:
        self.program = program
        self.text, self.data = bytearray(program.text), bytearray(gap) + program.data
        self.bases = {"text": text_at, "data": data_at}
        self._gap = gap

    def relocate(self, relocation: Relocation) -> None:
        """Fill in the address of one relocation."""
        symbol = relocation.symbol
        if relocation.part == "text":
            code = self.text[relocation.offset]
            if relocation.kind == _BPF_CALL and code == CALL:
                return self._call(relocation)
            if relocation.kind == _ABSOLUTE and code == LDDW and symbol.part:
                (addend,) = struct.unpack_from("<i", self.text, relocation.offset + 4)
                return self.load_address(relocation.offset, self.bases[symbol.part] + symbol.value + addend)
        elif relocation.kind in _ADDRESS_64 and symbol.part:
            at = relocation.offset + self._gap
            (addend,) = struct.unpack_from("<q", self.data, at)
            return self.store_address(at, self.bases[symbol.part] + symbol.value + addend)
        message = (
            f"{relocation.part}+{relocation.offset:#x}: relocation {relocation.kind} against `{symbol.name}` is not supported"
        )
        raise LinkError(message)

    def _call(self, relocation: Relocation) -> None:
        symbol, at = relocation.symbol, relocation.offset
        if symbol.is_undefined:
            return self.call_outside(at, "abort" if symbol.name == _TRAP else symbol.name)
        if symbol.part != "text":
            message = f"{self.program.where(at)}: call of data `{symbol.name}`"
            raise LinkError(message)
        target = symbol.value + (struct.unpack_from("<i", self.text, at + 4)[0] + 1) * 8
        self.text[at : at + 8] = struct.pack("<BBhi", CALL, 0x10, 0, (target - at) // 8 - 1)
        return None

    def load_address(self, at: int, value: int) -> None:
        """Write an address into the instruction at `at`, which has 16 bytes."""
        struct.pack_into("<I", self.text, at + 4, value & 0xFFFFFFFF)
        struct.pack_into("<I", self.text, at + 12, value >> 32)

    def store_address(self, at: int, value: int) -> None:
        """Write an address into the data at `at`."""
        raise NotImplementedError

    def call_outside(self, at: int, name: str) -> None:
        """Turn the instruction at `at` into a call of a syscall."""
        raise NotImplementedError

    def finish(self) -> bytes:
        """Return the file."""
        raise NotImplementedError

    @property
    def entry(self) -> int:
        """Address of the entry point."""
        return self.bases["text"] + self.program.functions[ENTRY][0]


class _Version3(_Layout):
    """Data at address 0, code at 1 << 32, no relocations."""

    def __init__(self, program: ObjectFile) -> None:
        gap = _GAP_V3 if program.data else 0
        super().__init__(program, text_at=_TEXT_V3, data_at=gap, gap=gap)

    def store_address(self, at: int, value: int) -> None:
        struct.pack_into("<Q", self.data, at, value)

    def call_outside(self, at: int, name: str) -> None:
        self.text[at : at + 8] = struct.pack("<BBhI", CALL, 0, 0, murmur3(name))

    def finish(self) -> bytes:
        parts = [(4, 0, bytes(self.data)), (1, _TEXT_V3, bytes(self.text))] if self.data else [(1, _TEXT_V3, bytes(self.text))]
        at = 64 + 56 * len(parts)
        headers = b""
        for flags, address, body in parts:
            headers += struct.pack("<IIQQQQQQ", 1, flags, at, address, address, len(body), len(body), 8)
            at += len(body)
        return _elf_header(self.entry, 0, version=3, segments=len(parts)) + headers + b"".join(body for *_, body in parts)


class _Version0(_Layout):
    """Code, then data, each at its offset in the file. The loader relocates addresses and names of syscalls."""

    def __init__(self, program: ObjectFile) -> None:
        text_at = 64 + 56 * 3
        super().__init__(program, text_at=text_at, data_at=text_at + len(program.text))
        self._relocations: list[tuple[int, int, int]] = []
        self._names: list[str] = []

    def load_address(self, at: int, value: int) -> None:
        super().load_address(at, value)
        self._relocations.append((self.bases["text"] + at, _RELATIVE, 0))

    def store_address(self, at: int, value: int) -> None:
        struct.pack_into("<II", self.data, at, 0, value)  # the loader reads the upper half and adds 1 << 32
        self._relocations.append((self.bases["data"] + at, _RELATIVE, 0))

    def call_outside(self, at: int, name: str) -> None:
        if name not in self._names:
            self._names.append(name)
        self.text[at : at + 8] = struct.pack("<BBhi", CALL, 0x10, 0, -1)
        self._relocations.append((self.bases["text"] + at, _BPF_CALL, self._names.index(name) + 1))

    def finish(self) -> bytes:
        self._set_call_registers()
        data_at = self.bases["data"]
        strings, symbols = self._symbol_table()
        relocations = b"".join(struct.pack("<QQ", at, symbol << 32 | kind) for at, kind, symbol in sorted(self._relocations))
        dynamic_at = data_at + len(self.data)
        symbols_at = dynamic_at + 16 * 9
        strings_at = symbols_at + len(symbols)
        relocations_at = strings_at + len(strings)
        tags = [(30, 4)]  # TEXTREL
        if relocations:
            tags += [(17, relocations_at), (18, len(relocations)), (19, 16)]
        tags += [(6, symbols_at), (11, 24), (5, strings_at), (10, len(strings)), (0, 0)]
        dynamic = b"".join(struct.pack("<QQ", *tag) for tag in tags).ljust(16 * 9, b"\0")

        sections = [(".text", 1, 6, self.bases["text"], bytes(self.text), 0, 0, 8, 0)]
        if self.data:
            sections.append((".rodata", 1, 2, data_at, bytes(self.data), 0, 0, 8, 0))
        strings_number = len(sections) + 3
        sections += [
            (".dynamic", 6, 3, dynamic_at, dynamic, strings_number, 0, 8, 16),
            (".dynsym", 11, 2, symbols_at, symbols, strings_number, 1, 8, 24),
            (".dynstr", 3, 2, strings_at, strings, 0, 0, 1, 0),
            (".rel.dyn", 9, 2, relocations_at, relocations, strings_number - 1, 0, 8, 16),
        ]
        return self._file(sections, dynamic_at, len(dynamic), relocations_at + len(relocations))

    def _set_call_registers(self) -> None:
        """Move the register of each indirect call into the immediate, where v0 expects it."""
        at = 0
        while at < len(self.text):
            if self.text[at] == CALLX:
                self.text[at : at + 8] = struct.pack("<BBhi", CALLX, 0, 0, self.text[at + 1] & 15)
            at += 16 if self.text[at] == LDDW else 8

    def _symbol_table(self) -> tuple[bytes, bytes]:
        strings, symbols = b"\0", bytes(24)
        for name in self._names:
            symbols += struct.pack("<IBBHQQ", len(strings), 0x10, 0, 0, 0, 0)
            strings += name.encode() + b"\0"
        return strings + bytes(-len(strings) % 8), symbols

    def _file(
        self, sections: Iterable[tuple[str, int, int, int, bytes, int, int, int, int]], dynamic_at: int, dynamic: int, end: int
    ) -> bytes:
        names, headers, body = b"\0", [bytes(64)], b""
        for name, kind, flags, address, content, linked, info, alignment, entry in sections:
            header = (len(names), kind, flags, address, address, len(content), linked, info, alignment, entry)
            headers.append(struct.pack("<IIQQQQIIQQ", *header))
            names += name.encode() + b"\0"
            body += content
        headers.append(struct.pack("<IIQQQQIIQQ", len(names), 3, 0, 0, end, len(names) + 10, 0, 0, 1, 0))
        names += b".shstrtab\0"
        sections_at = (end + len(names) + 7) & ~7
        segments = [
            (1, 5, self.bases["text"], len(self.text) + len(self.data)),
            (1, 6, dynamic_at, end - dynamic_at),
            (2, 6, dynamic_at, dynamic),
        ]
        program_headers = b"".join(
            struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, 8) for kind, flags, at, size in segments
        )
        start = (
            _elf_header(self.entry, sections_at, version=0, segments=3, sections=len(headers)) + program_headers + body + names
        )
        return start.ljust(sections_at, b"\0") + b"".join(headers)


def _elf_header(entry: int, sections_at: int, *, version: int, segments: int, sections: int = 0) -> bytes:
    identity = b"\x7fELF\x02\x01\x01"
    last = max(sections - 1, 0)
    return struct.pack(
        "<16sHHIQQQIHHHHHH", identity, 3, 247, 1, entry, 64, sections_at, version, 64, 56, segments, 64, sections, last
    )


def murmur3(name: str) -> int:
    """Return the 32-bit hash by which v3 calls a syscall."""
    content = name.encode()
    state = 0
    for at in range(0, len(content) & ~3, 4):
        block = int.from_bytes(content[at : at + 4], "little") * 0xCC9E2D51 & 0xFFFFFFFF
        state = (_rotated(state ^ (_rotated(block, 15) * 0x1B873593 & 0xFFFFFFFF), 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    tail = int.from_bytes(content[len(content) & ~3 :], "little")
    if tail:
        state ^= _rotated(tail * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
    state ^= len(content)
    state = (state ^ state >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    state = (state ^ state >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return state ^ state >> 16


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & 0xFFFFFFFF
