"""What a built program computes, in a real SVM, equals what Python computes: above all what the linker rewrites."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from plugins.backend_solana.tests.svm.program_chain import ProgramChain

RUST = Path(__file__).parent / "rust"
U64, U128, NONE = 2**64 - 1, 2**128 - 1, 1 << 100
OPERATIONS = 21
PAIRS, BATCHES = 28, 12
SPECIAL = [
    (0x5555555555555555_FFFFFFFFFFFFFFFF, 3),  # the middle sum of the 128-bit product wraps, and nothing else does
    (3, 0x5555555555555555_FFFFFFFFFFFFFFFF),
    (1 << 63, U64),  # the smallest number divided by -1
    (1 << 64 | 1 << 63, 1 << 64 | U64),
]
CORNERS = [
    0,
    1,
    2,
    3,
    U64,
    U64 + 1,
    U128,
    1 << 127,
    1 << 63,
    (1 << 127) - 1,
    U128 - 1,
    0xFFFFFFFF,
    1 << 32,
    10**18,
    0x80,
    0x80000000,
]


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def quotient(left: int, right: int) -> int:
    """Towards zero."""
    found = abs(left) // abs(right)
    return -found if (left < 0) != (right < 0) else found


def divided(left: int, right: int, bits: int) -> tuple[int, int]:
    """Quotient and remainder of the lower bits as signed numbers, as unsigned numbers of so many bits."""
    left, right = signed(left, bits), signed(right, bits)
    found, mask = quotient(left, right), (1 << bits) - 1
    return found & mask, left - right * found & mask


def both(left: int, right: int, bits: int) -> int:
    found, rest = divided(left, right, bits)
    return found << 64 | rest


def expected(a: int, b: int) -> Iterator[int]:
    """The results in the order of arithmetic.rs."""
    x, y, z, shift = a & U64, b & U64, a >> 64, b & 127
    yield a * b & U128
    yield a + b & U128
    yield a - b & U128
    yield a << shift & U128
    yield a >> shift
    yield signed(a, 128) >> shift & U128
    yield a * b if a * b <= U128 else NONE
    yield a + b if a + b <= U128 else NONE
    yield x * y if x * y <= U64 else NONE
    yield x + y if x + y <= U64 else NONE
    product = signed(x, 64) * signed(y, 64)
    yield product & U64 if -(2**63) <= product < 2**63 else NONE
    yield divided(x, y, 64)[0] if y else NONE
    yield divided(x, y, 64)[1] if y else NONE
    yield both(x, y, 32) if y & 0xFFFFFFFF else NONE
    yield both(x, y, 8) if y & 0xFF else NONE
    yield x // y | x % y << 64 if y else NONE
    yield math.isqrt(x) << 64 | 64 - x.bit_length()
    turn = shift & 63
    yield ((x << turn | x >> (64 - turn)) & U64) << 64 | ((x & 0xFFFFFFFF) * (y & 0xFFFFFFFF) - 7) & 0xFFFFFFFF
    low, turn = x & 0xFFFFFFFF, shift & 31
    yield ((low >> turn | low << (32 - turn)) & 0xFFFFFFFF) << 64 | x.bit_count() << 32 | (signed(x, 8) >> 2) & 0xFFFFFFFF
    yield x * y // z if z and x * y // z <= U64 else NONE
    factor = Fraction((y & ((1 << 52) - 1)) | 1 << 52, 1 << 52) * Fraction(2) ** (z % 140 - 70)
    yield min(int(x * factor), U64)


def operand(source: random.Random) -> int:
    kind = source.randrange(8)
    if kind == 0:
        return source.choice(CORNERS)
    value = source.getrandbits(source.randrange(1, 129))
    return -value & U128 if kind == 1 else value


@pytest.mark.parametrize("sbpf", [0, 3])
def test_results_equal_those_of_python(toolchain: Any, tmp_path: Path, sbpf: int) -> None:
    more = ("--extern", f"psyche_common={toolchain.common(tmp_path)}")
    built = toolchain.link("arithmetic", RUST / "arithmetic.rs", tmp_path / "arithmetic.so", sbpf=sbpf, more=more)
    chain, program, account = ProgramChain([]), Pubkey.new_unique(), Pubkey.new_unique()
    chain.svm.add_program(program, built.read_bytes())
    source = random.Random(20261122 + sbpf)
    batches = [[(operand(source), operand(source)) for _ in range(PAIRS)] for _ in range(BATCHES)]
    for pairs in (SPECIAL * (PAIRS // len(SPECIAL)), *batches):
        operands = b"".join(value.to_bytes(16, "little") for pair in pairs for value in pair)
        chain.put(account, operands + bytes(16 * OPERATIONS * PAIRS), program)
        chain.send(Instruction(program, b"", [AccountMeta(account, False, True)]))
        results = bytes(chain.account(account).data)[len(operands) :]
        for place, (a, b) in enumerate(pairs):
            at = 16 * OPERATIONS * place
            words = struct.unpack_from(f"<{2 * OPERATIONS}Q", results, at)
            found = [low | high << 64 for low, high in zip(words[::2], words[1::2], strict=True)]
            assert found == list(expected(a, b)), (hex(a), hex(b))
