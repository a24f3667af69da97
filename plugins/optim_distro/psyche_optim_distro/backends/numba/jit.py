"""Decorators that compile functions with numba: without the GIL, cached on disk, for the processor in use.

`jit_fma` allows fused multiply-add. It is for integers in float32, for which both ways give equal bits, and for results that are
private to a member. `jit` rounds every operation as written, since all replicas must agree. Array bounds are not checked at run
time; a test runs the kernels with `NUMBA_BOUNDSCHECK=1`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

TRANSPOSED = 8
"""Side of the square that `transpose_square` transposes, so that it fits into the registers of all processors."""

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile a function so that each operation is rounded on its own."""
    return _compiled(function, fastmath=False)


def jit_fma(function: F) -> F:
    """Like `jit`, but a product may be added without intermediate rounding (fused multiply-add)."""
    return _compiled(function, fastmath={"contract"})


def _compiled(function: F, *, fastmath: bool | set[str]) -> F:
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    try:
        return cast("F", numba.njit(cache=True, **options)(function))
    except RuntimeError:  # no cache folder is writable, neither next to this file nor in the user's cache
        return cast("F", numba.njit(**options)(function))


def _trailing_zeros(_context: Any, _value: Any) -> tuple[Any, Callable[..., Any]]:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


def _word_at(_context: Any, _number: Any) -> tuple[Any, Callable[..., Any]]:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        address = builder.shl(arguments[0], ir.Constant(ir.IntType(64), 3))
        return builder.load(builder.inttoptr(address, ir.IntType(64).as_pointer()), align=8)

    return types.uint64(types.uint64), generate


def _prefetch(_context: Any, _number: Any) -> tuple[Any, Callable[..., Any]]:
    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        place = builder.inttoptr(builder.shl(arguments[0], ir.Constant(ir.IntType(64), 3)), byte)
        call = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        )
        read, keep, data = (ir.Constant(number, value) for value in (0, 3, 1))
        builder.call(call, [place, read, keep, data])
        return context.get_dummy_value()

    return types.void(types.uint64), generate


def _transpose(_context: Any, source: Any, at: Any, step: Any, out: Any, to: Any, apart: Any) -> tuple[Any, Callable[..., Any]]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row = ir.VectorType(ir.FloatType(), TRANSPOSED)

        def place(array: int, number: Any) -> Any:
            begin = context.make_array(signature.args[array])(context, builder, arguments[array]).data
            return builder.bitcast(builder.gep(begin, [number]), row.as_pointer())

        rows, number = [], arguments[1]
        for _ in range(TRANSPOSED):
            rows.append(builder.load(place(0, number), align=4))
            number = builder.add(number, arguments[2])
        side = 1
        while side < TRANSPOSED:  # exchange the squares off the diagonal, of this side, within squares of twice the side
            for upper in range(TRANSPOSED):
                if not upper & side:
                    lower = upper + side
                    columns = range(TRANSPOSED)  # of the upper row, and from TRANSPOSED on of the lower one
                    left = [TRANSPOSED + column - side if column & side else column for column in columns]
                    right = [TRANSPOSED + column if column & side else column + side for column in columns]
                    masks = [ir.Constant(ir.VectorType(ir.IntType(32), TRANSPOSED), mask) for mask in (left, right)]
                    rows[upper], rows[lower] = (builder.shuffle_vector(rows[upper], rows[lower], mask) for mask in masks)
            side *= 2
        number = arguments[4]
        for own in rows:
            builder.store(own, place(3, number), align=4)
            number = builder.add(number, arguments[5])
        return context.get_dummy_value()

    return types.void(source, at, step, out, to, apart), generate


trailing_zeros: Callable[[np.uint64], np.uint64] = cast("Callable[[np.uint64], np.uint64]", intrinsic(_trailing_zeros))
"""Returns how many zero bits a uint64 ends with, 64 of 0. One or a few instructions. For compiled functions only."""

word_at: Callable[[np.uint64], np.uint64] = cast("Callable[[np.uint64], np.uint64]", intrinsic(_word_at))
"""Returns the 64 bits at the address 8 * its argument. One byte of them has to be memory of ours; then all can be read."""

prefetch: Callable[[np.uint64], None] = cast("Callable[[np.uint64], None]", intrinsic(_prefetch))
"""Has the processor load what is at the address 8 * its argument, which is needed later. Nothing happens if that is no memory."""

transpose_square: Callable[[NDArray[np.float32], np.uint64, np.uint64, NDArray[np.float32], np.uint64, np.uint64], None] = cast(
    "Callable[[NDArray[np.float32], np.uint64, np.uint64, NDArray[np.float32], np.uint64, np.uint64], None]",
    intrinsic(_transpose),
)
"""Transposes TRANSPOSED by TRANSPOSED elements from one flat array to another, in registers.

Arguments: source, the square's first element and the distance of its rows there; the same of the result. Indices are not checked.
"""
