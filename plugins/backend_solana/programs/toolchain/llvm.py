"""The part of libLLVM's C interface that the linker needs: modules, their functions and instructions, passes, code for BPF.

The library is the one against which Debian's rustc was built, so that it can read rustc's output. Values and types are opaque
pointers. Every error that LLVM reports ends the link.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

STACK_BYTES = 4096
MUL, UDIV, SDIV, UREM, SREM, SHL, LSHR, ASHR, CALL = 12, 14, 15, 17, 18, 20, 21, 22, 45
VOID_KIND, INTEGER_KIND, POINTER_KIND = 0, 8, 12
INTERNAL, PRIVATE = 8, 9
OBJECT, ASSEMBLY = 1, 0
_FUNCTION_INDEX = 0xFFFFFFFF
_OPTIMIZE_MOST, _POSITION_INDEPENDENT, _DEFAULT_CODE_MODEL = 3, 2, 0
_HANDLER = ctypes.CFUNCTYPE(None, c_void_p, c_void_p)


class LinkError(Exception):
    """The program cannot be linked; the message says why."""


class Llvm:
    """One context of libLLVM, with a target machine for BPF.

    library: file name of libLLVM. cpu, features: of the BPF backend, with rustc's names.
    """

    def __init__(self, library: str, *, cpu: str, features: str) -> None:
        self._library = ctypes.CDLL(library)
        self.errors: list[str] = []
        for part in ("TargetInfo", "Target", "TargetMC", "AsmPrinter"):
            self.call(f"InitializeBPF{part}", None)()
        options = [b"sbf_ld", b"-bpf-stack-size=%d" % STACK_BYTES]
        self.call("ParseCommandLineOptions", None, c_int, POINTER(c_char_p), c_char_p)(
            len(options), (c_char_p * len(options))(*options), b""
        )
        self.context = self.call("ContextCreate", c_void_p)()
        self._handler = _HANDLER(self._report)
        self.call("ContextSetDiagnosticHandler", None, c_void_p, _HANDLER, c_void_p)(self.context, self._handler, None)
        self._machine = self._target_machine(cpu, features)

    def call(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        """Return a function of the library with its types set. name: without the prefix LLVM."""
        function = self._library[f"LLVM{name}"]
        function.restype, function.argtypes = result, arguments
        return function

    def parse(self, content: bytes) -> int:
        """Return the module in the given bitcode."""
        module, message = c_void_p(), c_char_p()
        copy = self.call("CreateMemoryBufferWithMemoryRangeCopy", c_void_p, c_char_p, c_size_t, c_char_p)
        parse = self.call("ParseIRInContext", c_int, c_void_p, c_void_p, POINTER(c_void_p), POINTER(c_char_p))
        if parse(self.context, copy(content, len(content), b"in"), byref(module), byref(message)):
            raise LinkError(_text(message))
        return module.value or 0

    def run(self, module: int, passes: str) -> None:
        """Run optimisation passes, named as for `opt -passes`."""
        options = self.call("CreatePassBuilderOptions", c_void_p)()
        run = self.call("RunPasses", c_void_p, c_void_p, c_char_p, c_void_p, c_void_p)
        error = run(module, passes.encode(), self._machine, options)
        if error:
            raise LinkError(_text(c_char_p(self.call("GetErrorMessage", c_void_p, c_void_p)(error))))

    def emit(self, module: int, kind: int = OBJECT) -> bytes:
        """Return the module's code, as an object or as assembly. Raises LinkError with all errors of the backend."""
        self.errors.clear()
        copy = self.call("CloneModule", c_void_p, c_void_p)(module)
        made, message = c_void_p(), c_char_p()
        emit = self.call(
            "TargetMachineEmitToMemoryBuffer", c_int, c_void_p, c_void_p, c_int, POINTER(c_char_p), POINTER(c_void_p)
        )
        if emit(self._machine, copy, kind, byref(message), byref(made)):
            raise LinkError(_text(message))
        if self.errors:
            raise LinkError("\n  ".join(["LLVM refuses the program:", *sorted(set(self.errors))]))
        start = self.call("GetBufferStart", c_void_p, c_void_p)(made)
        return ctypes.string_at(start, self.call("GetBufferSize", c_size_t, c_void_p)(made))

    def functions(self, module: int) -> Iterator[int]:
        """Return the functions that have a body."""
        function = self.call("GetFirstFunction", c_void_p, c_void_p)(module)
        while function:
            following = self.call("GetNextFunction", c_void_p, c_void_p)(function)
            if self.call("GetFirstBasicBlock", c_void_p, c_void_p)(function):
                yield function
            function = following

    def instructions(self, function: int) -> Iterator[int]:
        """Return a function's instructions in order. The caller may erase an instruction after it was returned."""
        block = self.call("GetFirstBasicBlock", c_void_p, c_void_p)(function)
        while block:
            instruction = self.call("GetFirstInstruction", c_void_p, c_void_p)(block)
            while instruction:
                following = self.call("GetNextInstruction", c_void_p, c_void_p)(instruction)
                yield instruction
                instruction = following
            block = self.call("GetNextBasicBlock", c_void_p, c_void_p)(block)

    def users(self, value: int) -> Iterator[int]:
        """Return the instructions that use a value."""
        use = self.call("GetFirstUse", c_void_p, c_void_p)(value)
        while use:
            yield self.call("GetUser", c_void_p, c_void_p)(use)
            use = self.call("GetNextUse", c_void_p, c_void_p)(use)

    def name(self, value: int) -> str:
        """Return a function's name."""
        size = c_size_t()
        found: bytes = self.call("GetValueName2", c_char_p, c_void_p, POINTER(c_size_t))(value, byref(size))
        return found.decode()

    def opcode(self, instruction: int) -> int:
        """Return an instruction's opcode: MUL, CALL …"""
        return int(self.call("GetInstructionOpcode", c_int, c_void_p)(instruction))

    def called(self, instruction: int) -> str:
        """Return the name of the function that a call calls."""
        return self.name(self.call("GetCalledValue", c_void_p, c_void_p)(instruction))

    def operand(self, instruction: int, place: int) -> int:
        """Return an instruction's operand. place: its index, from 0."""
        return int(self.call("GetOperand", c_void_p, c_void_p, c_uint)(instruction, place))

    def is_constant(self, value: int) -> bool:
        """Return whether a value is a constant integer."""
        return bool(self.call("IsAConstantInt", c_void_p, c_void_p)(value))

    def type_of(self, value: int) -> int:
        """Return a value's type."""
        return int(self.call("TypeOf", c_void_p, c_void_p)(value))

    def integer(self, width: int) -> int:
        """Return the integer type of `width` bits."""
        return int(self.call("IntTypeInContext", c_void_p, c_void_p, c_uint)(self.context, width))

    def width(self, kind: int) -> int:
        """Return the number of bits of an integer type; 0 for any other type."""
        if self.call("GetTypeKind", c_int, c_void_p)(kind) != INTEGER_KIND:
            return 0
        return int(self.call("GetIntTypeWidth", c_uint, c_void_p)(kind))

    def returns_one_register(self, function: int) -> bool:
        """Return whether a function returns nothing, a pointer, or an integer of at most 64 bits."""
        signature = self.call("GlobalGetValueType", c_void_p, c_void_p)(function)
        returned = self.call("GetReturnType", c_void_p, c_void_p)(signature)
        kind = self.call("GetTypeKind", c_int, c_void_p)(returned)
        return kind in (VOID_KIND, POINTER_KIND) or (kind == INTEGER_KIND and self.width(returned) <= 64)

    def parameters(self, function: int) -> int:
        """Return a function's number of parameters."""
        return int(self.call("CountParams", c_uint, c_void_p)(function))

    def is_local(self, function: int) -> bool:
        """Return whether a function can be called only from its own module."""
        return self.call("GetLinkage", c_int, c_void_p)(function) in (INTERNAL, PRIVATE)

    def has_attribute(self, function: int, name: str) -> bool:
        """Return whether a function has an attribute."""
        get = self.call("GetEnumAttributeAtIndex", c_void_p, c_void_p, c_uint, c_uint)
        return bool(get(function, _FUNCTION_INDEX, self._attribute(name)))

    def add_attribute(self, function: int, name: str) -> None:
        """Add an attribute to a function."""
        create = self.call("CreateEnumAttribute", c_void_p, c_void_p, c_uint, c_uint64)
        add = self.call("AddAttributeAtIndex", None, c_void_p, c_uint, c_void_p)
        add(function, _FUNCTION_INDEX, create(self.context, self._attribute(name), 0))

    def remove_attribute(self, function: int, name: str, *, index: int = _FUNCTION_INDEX) -> None:
        """Remove an attribute from a function, or with index 1 from its first parameter."""
        self.call("RemoveEnumAttributeAtIndex", None, c_void_p, c_uint, c_uint)(function, index, self._attribute(name))

    def remove_call_attribute(self, call: int, name: str, *, index: int = _FUNCTION_INDEX) -> None:
        """Remove an attribute from a call, or with index 1 from its first argument."""
        self.call("RemoveCallSiteEnumAttribute", None, c_void_p, c_uint, c_uint)(call, index, self._attribute(name))

    def replace(self, instruction: int, value: int) -> None:
        """Replace all uses of the instruction's result by `value`, and erase the instruction."""
        self.call("ReplaceAllUsesWith", None, c_void_p, c_void_p)(instruction, value)
        self.call("InstructionEraseFromParent", None, c_void_p)(instruction)

    def _attribute(self, name: str) -> int:
        return int(self.call("GetEnumAttributeKindForName", c_uint, c_char_p, c_size_t)(name.encode(), len(name)))

    def _target_machine(self, cpu: str, features: str) -> int:
        target, message = c_void_p(), c_char_p()
        find = self.call("GetTargetFromTriple", c_int, c_char_p, POINTER(c_void_p), POINTER(c_char_p))
        if find(b"bpfel", byref(target), byref(message)):
            raise LinkError(_text(message))
        create = self.call("CreateTargetMachine", c_void_p, c_void_p, c_char_p, c_char_p, c_char_p, c_int, c_int, c_int)
        modes = (_OPTIMIZE_MOST, _POSITION_INDEPENDENT, _DEFAULT_CODE_MODEL)
        return int(create(target, b"bpfel", cpu.encode(), features.encode(), *modes))

    def _report(self, info: int, _: int) -> None:
        text = ctypes.cast(self.call("GetDiagInfoDescription", c_void_p, c_void_p)(info), c_char_p)
        said = _text(text).strip().replace("<unknown>:0:0: ", "")
        # LLVM compiles these calls correctly, but reports that the Linux kernel lacks the function; the linker checks that itself
        if self.call("GetDiagInfoSeverity", c_int, c_void_p)(info) == 0 and "A call to built-in function '" not in said:
            self.errors.append(said)


def _text(message: c_char_p) -> str:
    return (message.value or b"unknown error").decode(errors="replace")
