"""Rewrites operations for which LLVM's BPF backend has no instructions, until none of them is left.

- A function that has more than five arguments, or returns more than one register, is inlined into its callers, because sBPF
  passes five registers and returns one. If it cannot be inlined (recursion, function pointers), the backend rejects it.
- 128-bit multiplication and shifts, checked multiplication, and signed division of 64 bits or fewer become plain instructions.
- 128-bit division is rejected, because none of our programs contains its helper function.
"""

from __future__ import annotations

from ctypes import c_char_p, c_int, c_uint, c_ulonglong, c_void_p

from llvm import ASHR, CALL, LSHR, MUL, SDIV, SHL, SREM, UDIV, UREM, LinkError, Llvm

MAX_ARGUMENTS = 5
DIVISIONS = (UDIV, SDIV, UREM, SREM)
OVERFLOW = ("llvm.umul.with.overflow.i64", "llvm.smul.with.overflow.i64", "llvm.umul.with.overflow.i128")
_NOT_EQUAL, _LESS = 33, 36


def lower(llvm: Llvm, module: int) -> int:
    """Rewrite a module in place; return the number of replaced operations."""
    _drop_struct_returns(llvm, module)
    total = 0
    while True:
        inlined = sum(_force_inline(llvm, function) for function in llvm.functions(module))
        if inlined:
            llvm.run(module, "always-inline,globaldce")
        replaced = sum(_lower_function(llvm, function) for function in llvm.functions(module))
        total += replaced
        if not replaced and not inlined:
            return total
        llvm.run(module, "function(instcombine,early-cse,dce)")


def _drop_struct_returns(llvm: Llvm, module: int) -> None:
    """Remove the attribute sret: on BPF a pointer to the result is an ordinary first argument."""
    for function in llvm.functions(module):
        llvm.remove_attribute(function, "sret", index=1)
        for instruction in llvm.instructions(function):
            if llvm.opcode(instruction) == CALL:
                llvm.remove_call_attribute(instruction, "sret", index=1)


def _force_inline(llvm: Llvm, function: int) -> bool:
    fits = llvm.parameters(function) <= MAX_ARGUMENTS and llvm.returns_one_register(function)
    if fits or not llvm.is_local(function) or llvm.has_attribute(function, "alwaysinline"):
        return False
    llvm.remove_attribute(function, "noinline")
    for user in llvm.users(function):
        if llvm.call("IsACallInst", c_void_p, c_void_p)(user):
            llvm.remove_call_attribute(user, "noinline")
    llvm.add_attribute(function, "alwaysinline")
    return True


def _lower_function(llvm: Llvm, function: int) -> int:
    count = 0
    for instruction in llvm.instructions(function):
        value = _replacement(llvm, instruction)
        if value is not None:
            llvm.replace(instruction, value)
            count += 1
    return count


def _replacement(llvm: Llvm, instruction: int) -> int | None:
    """Insert instructions before `instruction` that compute the same, and return their value; None if it can stay."""
    code = llvm.opcode(instruction)
    build = Builder(llvm, instruction)
    if code == CALL:
        called = llvm.called(instruction)
        return build.checked_product(called) if called in OVERFLOW else None
    width = llvm.width(llvm.type_of(instruction))
    if code in DIVISIONS and width == 128:
        message = "128-bit division is not in sBPF; see psyche_common::arithmetic::mul_div"
        raise LinkError(message)
    if code == MUL and width == 128:
        return build.product_128(build.left, build.right)
    if code in (SHL, LSHR, ASHR) and width == 128 and not llvm.is_constant(build.right):
        return build.shift_128(code, build.left, build.right)
    if code in (SDIV, SREM) and width in (8, 16, 32, 64):
        return build.signed_division(code, width)
    return None


class Builder:
    """Inserts instructions before a given one. left, right: its first two operands."""

    def __init__(self, llvm: Llvm, instruction: int) -> None:
        self._llvm = llvm
        self._instruction = instruction
        self._builder = llvm.call("CreateBuilderInContext", c_void_p, c_void_p)(llvm.context)
        llvm.call("PositionBuilderBefore", None, c_void_p, c_void_p)(self._builder, instruction)
        self._i64, self._i128 = llvm.integer(64), llvm.integer(128)

    @property
    def left(self) -> int:
        """The first operand."""
        return self._llvm.operand(self._instruction, 0)

    @property
    def right(self) -> int:
        """The second operand."""
        return self._llvm.operand(self._instruction, 1)

    def product_128(self, left: int, right: int) -> int:
        """Return the lower 128 bits of a product."""
        (low, high), (other_low, other_high) = self._halves(left), self._halves(right)
        cross = self._add(self._mul(low, other_high), self._mul(high, other_low))
        return self._join(self._mul(low, other_low), self._add(self._high_product(low, other_low), cross))

    def shift_128(self, code: int, value: int, amount: int) -> int:
        """Return a 128-bit shift, made of 64-bit shifts. amount: may be unknown at compile time."""
        (low, high), bits = self._halves(value), self._cast("Trunc", amount, self._i64)
        within = self._and(bits, self._number(63))
        rest = self._binary("Xor", within, self._number(63))
        far = self._compare(_NOT_EQUAL, self._and(bits, self._number(64)), self._number(0))
        one, zero = self._number(1), self._number(0)
        if code == SHL:
            shifted = self._shl(low, within)
            carried = self._or(self._shl(high, within), self._shr(self._shr(low, one), rest))
            return self._join(self._select(far, zero, shifted), self._select(far, shifted, carried))
        shifted = self._shr(high, within) if code == LSHR else self._sar(high, within)
        top = zero if code == LSHR else self._sar(high, self._number(63))
        carried = self._or(self._shr(low, within), self._shl(self._shl(high, one), rest))
        return self._join(self._select(far, shifted, carried), self._select(far, top, shifted))

    def signed_division(self, code: int, width: int) -> int:
        """Return a signed quotient (rounded to zero) or remainder (with the dividend's sign), by dividing the magnitudes."""
        operands = (self.left, self.right)
        left, right = operands if width == 64 else (self._cast("SExt", operand, self._i64) for operand in operands)
        sign_left, sign_right = self._sar(left, self._number(63)), self._sar(right, self._number(63))
        quotient = self._binary("UDiv", self._negate_if(left, sign_left), self._negate_if(right, sign_right))
        result = self._negate_if(quotient, self._binary("Xor", sign_left, sign_right))
        if code == SREM:
            result = self._binary("Sub", left, self._mul(result, right))
        return result if width == 64 else self._cast("Trunc", result, self._llvm.integer(width))

    def checked_product(self, called: str) -> int:
        """Return the result of the intrinsic function `called`: the product, and whether it overflowed."""
        if called.endswith("i128"):
            value, over = self._checked_product_128()
        else:
            value, high = self._mul(self.left, self.right), self._high_product(self.left, self.right)
            expected = self._number(0)
            if called.startswith("llvm.smul"):
                high = self._binary("Sub", high, self._and(self._sar(self.left, self._number(63)), self.right))
                high = self._binary("Sub", high, self._and(self._sar(self.right, self._number(63)), self.left))
                expected = self._sar(value, self._number(63))
            over = self._compare(_NOT_EQUAL, high, expected)
        insert = self._llvm.call("BuildInsertValue", c_void_p, c_void_p, c_void_p, c_void_p, c_uint, c_char_p)
        pair = self._llvm.call("GetUndef", c_void_p, c_void_p)(self._llvm.type_of(self._instruction))
        return int(insert(self._builder, insert(self._builder, pair, value, 0, b""), over, 1, b""))

    def _checked_product_128(self) -> tuple[int, int]:
        (low, high), (other_low, other_high) = self._halves(self.left), self._halves(self.right)
        cross = self._add(self._mul(low, other_high), self._mul(high, other_low))
        top = self._add(self._high_product(low, other_low), cross)
        zero = self._number(0)
        both = self._and(self._compare(_NOT_EQUAL, high, zero), self._compare(_NOT_EQUAL, other_high, zero))
        carry = self._compare(_LESS, top, cross)
        beyond = self._or(self._high_product(low, other_high), self._high_product(high, other_low))
        over = self._or(self._or(both, carry), self._compare(_NOT_EQUAL, beyond, zero))
        return self._join(self._mul(low, other_low), top), over

    def _high_product(self, left: int, right: int) -> int:
        """Return the upper 64 bits of a product of 64-bit numbers, computed from 32-bit limbs."""
        mask, half = self._number(0xFFFFFFFF), self._number(32)
        low, high = self._and(left, mask), self._shr(left, half)
        other_low, other_high = self._and(right, mask), self._shr(right, half)
        first, second = self._mul(low, other_high), self._mul(high, other_low)
        carried = self._add(self._shr(self._mul(low, other_low), half), self._and(first, mask))
        middle = self._add(carried, self._and(second, mask))
        upper = self._add(self._mul(high, other_high), self._shr(first, half))
        return self._add(upper, self._add(self._shr(second, half), self._shr(middle, half)))

    def _negate_if(self, value: int, sign: int) -> int:
        """Return -value where sign is all ones, value where it is zero."""
        return self._binary("Sub", self._binary("Xor", value, sign), sign)

    def _halves(self, value: int) -> tuple[int, int]:
        upper = self._shr(value, self._constant(self._i128, 64))
        return self._cast("Trunc", value, self._i64), self._cast("Trunc", upper, self._i64)

    def _join(self, low: int, high: int) -> int:
        upper = self._shl(self._cast("ZExt", high, self._i128), self._constant(self._i128, 64))
        return self._or(upper, self._cast("ZExt", low, self._i128))

    def _add(self, left: int, right: int) -> int:
        return self._binary("Add", left, right)

    def _mul(self, left: int, right: int) -> int:
        return self._binary("Mul", left, right)

    def _and(self, left: int, right: int) -> int:
        return self._binary("And", left, right)

    def _or(self, left: int, right: int) -> int:
        return self._binary("Or", left, right)

    def _shl(self, left: int, right: int) -> int:
        return self._binary("Shl", left, right)

    def _shr(self, left: int, right: int) -> int:
        return self._binary("LShr", left, right)

    def _sar(self, left: int, right: int) -> int:
        return self._binary("AShr", left, right)

    def _binary(self, name: str, left: int, right: int) -> int:
        build = self._llvm.call(f"Build{name}", c_void_p, c_void_p, c_void_p, c_void_p, c_char_p)
        return int(build(self._builder, left, right, b""))

    def _cast(self, name: str, value: int, kind: int) -> int:
        return self._binary(name, value, kind)

    def _compare(self, predicate: int, left: int, right: int) -> int:
        build = self._llvm.call("BuildICmp", c_void_p, c_void_p, c_int, c_void_p, c_void_p, c_char_p)
        return int(build(self._builder, predicate, left, right, b""))

    def _select(self, condition: int, yes: int, no: int) -> int:
        build = self._llvm.call("BuildSelect", c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_char_p)
        return int(build(self._builder, condition, yes, no, b""))

    def _number(self, value: int) -> int:
        return self._constant(self._i64, value)

    def _constant(self, kind: int, value: int) -> int:
        return int(self._llvm.call("ConstInt", c_void_p, c_void_p, c_ulonglong, c_int)(kind, value, 0))
