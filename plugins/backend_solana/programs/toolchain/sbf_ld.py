#!/usr/bin/env python3
"""Final code generation and link of a Solana program, for machines without Solana's platform-tools.

rustc calls this as its linker (`-C linker=sbf_ld.py`) for target bpfel-unknown-none.  It gets the program
as one LLVM bitcode module (core already merged in by `-C lto=fat`) and the compiler_builtins rlib, and
  1. turns operations that LLVM's BPF backend has no instruction for into calls of compiler_builtins,
  2. lets the installed libLLVM (the one rustc-web itself uses) emit one BPF object,
  3. writes it out as the ELF shared object that the Solana loader accepts (sBPF v0, or v3 with SBPF_VERSION=3).
Anything it does not understand is an error: no output is written.
"""
import ctypes as C, os, struct, sys

SYSCALLS = """abort sol_panic_ sol_log_ sol_log_64_ sol_log_pubkey sol_log_compute_units_ sol_log_data
sol_create_program_address sol_try_find_program_address sol_sha256 sol_keccak256 sol_blake3 sol_secp256k1_recover
sol_get_clock_sysvar sol_get_rent_sysvar sol_get_epoch_schedule_sysvar sol_get_last_restart_slot sol_get_sysvar
sol_memcpy_ sol_memmove_ sol_memset_ sol_memcmp_ sol_invoke_signed_c sol_invoke_signed_rust
sol_set_return_data sol_get_return_data sol_get_processed_sibling_instruction sol_get_stack_height
sol_remaining_compute_units sol_curve_validate_point sol_curve_group_op sol_curve_multiscalar_mul
sol_alt_bn128_group_op sol_alt_bn128_compression sol_poseidon sol_big_mod_exp""".split()
STACK = 4096


def die(msg):
    sys.exit("sbf_ld: error: " + msg)


# ---------------------------------------------------------------- code generation through libLLVM
P, S, I, U = C.c_void_p, C.c_char_p, C.c_int, C.c_uint
LIB = C.CDLL(os.environ.get("SBF_LIBLLVM", "libLLVM.so.19.1"))


def llvm(name, res, *args):
    f = getattr(LIB, "LLVM" + name)
    f.restype, f.argtypes = res, args
    return f


HANDLER = C.CFUNCTYPE(None, P, P)
MUL, UDIV, SDIV, UREM, SREM, SHL, LSHR, ASHR, CALL = 12, 14, 15, 17, 18, 20, 21, 22, 45
HELPER = {(UDIV, 128): "__udivti3", (SDIV, 128): "__divti3", (UREM, 128): "__umodti3",
          (SREM, 128): "__modti3", (SDIV, 64): "__divdi3", (SREM, 64): "__moddi3",
          (SDIV, 32): "__divsi3", (SREM, 32): "__modsi3"}


OVERFLOW = ("llvm.umul.with.overflow.i64", "llvm.smul.with.overflow.i64", "llvm.umul.with.overflow.i128")


class Codegen:
    def __init__(self, cpu, features):
        for s in ("TargetInfo", "Target", "TargetMC", "AsmPrinter"):
            llvm("InitializeBPF" + s, None)()
        args = [b"sbf_ld", b"-bpf-stack-size=%d" % STACK]
        llvm("ParseCommandLineOptions", None, I, C.POINTER(S), S)(len(args), (S * len(args))(*args), b"")
        self.ctx = llvm("ContextCreate", P)()
        self.errors = []
        self.handler = HANDLER(self.diagnostic)
        llvm("ContextSetDiagnosticHandler", None, P, HANDLER, P)(self.ctx, self.handler, None)
        tgt, msg = P(), S()
        if llvm("GetTargetFromTriple", I, S, C.POINTER(P), C.POINTER(S))(b"bpfel", C.byref(tgt), C.byref(msg)):
            die(msg.value.decode())
        self.tm = llvm("CreateTargetMachine", P, P, S, S, S, I, I, I)(
            tgt, b"bpfel", cpu.encode(), features.encode(), 3, 2, 0)  # O3, PIC, default code model
        self.types = {w: llvm("IntTypeInContext", P, P, U)(self.ctx, w) for w in (1, 32, 64, 128)}

    def diagnostic(self, info, _):
        text = C.cast(llvm("GetDiagInfoDescription", P, P)(info), S).value.decode().strip()
        # LLVM emits these calls correctly and only then complains that the Linux kernel has no such function;
        # here the function exists (compiler_builtins), and the link below fails if it does not.
        if llvm("GetDiagInfoSeverity", I, P)(info) == 0 and "A call to built-in function '" not in text:
            self.errors.append(text.replace("<unknown>:0:0: ", ""))

    def parse(self, data):
        buf, mod, msg = P(), P(), S()
        buf = llvm("CreateMemoryBufferWithMemoryRangeCopy", P, S, C.c_size_t, S)(data, len(data), b"in")
        if llvm("ParseIRInContext", I, P, P, C.POINTER(P), C.POINTER(S))(self.ctx, buf, C.byref(mod), C.byref(msg)):
            die(msg.value.decode())
        return mod

    def lower(self, mod):
        """Rewrite what the BPF backend cannot select, until nothing of it is left."""
        total = 0
        sret = llvm("GetEnumAttributeKindForName", U, S, C.c_size_t)(b"sret", 4)
        for f in self.functions(mod):  # the result pointer is an ordinary first argument on BPF
            llvm("RemoveEnumAttributeAtIndex", None, P, U, U)(f, 1, sret)
            for ins in self.instructions(f):
                if llvm("GetInstructionOpcode", I, P)(ins) == CALL:
                    llvm("RemoveCallSiteEnumAttribute", None, P, U, U)(ins, 1, sret)
        while True:
            spill = sum(self.force_inline(f) for f in self.functions(mod))
            if spill:  # sBPF passes at most 5 arguments in registers
                self.run(mod, "always-inline,globaldce")
            n = sum(self.lower_function(mod, f) for f in self.functions(mod))
            total += n
            if not n and not spill:
                return total
            self.run(mod, "function(instcombine,early-cse,dce)")

    def functions(self, mod):
        f = llvm("GetFirstFunction", P, P)(mod)
        while f:
            following = llvm("GetNextFunction", P, P)(f)
            if llvm("GetFirstBasicBlock", P, P)(f):
                yield f
            f = following

    def instructions(self, f):
        bb = llvm("GetFirstBasicBlock", P, P)(f)
        while bb:
            ins = llvm("GetFirstInstruction", P, P)(bb)
            while ins:
                following = llvm("GetNextInstruction", P, P)(ins)
                yield ins
                ins = following
            bb = llvm("GetNextBasicBlock", P, P)(bb)

    def force_inline(self, f):
        kind = lambda name: llvm("GetEnumAttributeKindForName", U, S, C.c_size_t)(name, len(name))
        kind_of, returned = llvm("GetTypeKind", I, P), llvm("GetReturnType", P, P)(llvm("GlobalGetValueType", P, P)(f))
        small = kind_of(returned) in (0, 12) or (kind_of(returned) == 8 and llvm("GetIntTypeWidth", U, P)(returned) <= 64)
        if (llvm("CountParams", U, P)(f) <= 5 and small) or llvm("GetLinkage", I, P)(f) not in (8, 9):  # internal, private
            return 0
        if llvm("GetEnumAttributeAtIndex", P, P, U, U)(f, 0xffffffff, kind(b"alwaysinline")):
            return 0
        llvm("RemoveEnumAttributeAtIndex", None, P, U, U)(f, 0xffffffff, kind(b"noinline"))
        use = llvm("GetFirstUse", P, P)(f)
        while use:
            user, use = llvm("GetUser", P, P)(use), llvm("GetNextUse", P, P)(use)
            if llvm("IsACallInst", P, P)(user):
                llvm("RemoveCallSiteEnumAttribute", None, P, U, U)(user, 0xffffffff, kind(b"noinline"))
        attr = llvm("CreateEnumAttribute", P, P, U, C.c_uint64)(self.ctx, kind(b"alwaysinline"), 0)
        llvm("AddAttributeAtIndex", None, P, U, P)(f, 0xffffffff, attr)
        return 1

    def lower_function(self, mod, f):
        count, slots, size = 0, [], C.c_size_t()
        name_of = lambda v: llvm("GetValueName2", S, P, C.POINTER(C.c_size_t))(v, C.byref(size)).decode()
        build = llvm("CreateBuilderInContext", P, P)(self.ctx)
        i64, i128 = self.types[64], self.types[128]
        ptr, void = llvm("PointerTypeInContext", P, P, U)(self.ctx, 0), llvm("VoidTypeInContext", P, P)(self.ctx)
        bi = lambda k: lambda x, y: llvm("Build" + k, P, P, P, P, S)(build, x, y, b"")
        add, mul, and_, shr, shl, or_ = (bi(k) for k in ("Add", "Mul", "And", "LShr", "Shl", "Or"))
        cast = lambda k, v, t: llvm("Build" + k, P, P, P, P, S)(build, v, t, b"")
        const = lambda t, v: llvm("ConstInt", P, P, C.c_ulonglong, I)(t, v, 0)

        def call(name, ret, kinds, args):
            n = len(args)
            ft = llvm("FunctionType", P, P, C.POINTER(P), U, I)(ret, (P * n)(*kinds), n, 0)
            fn = llvm("GetNamedFunction", P, P, S)(mod, name.encode()) or \
                llvm("AddFunction", P, P, S, P)(mod, name.encode(), ft)
            return llvm("BuildCall2", P, P, P, P, C.POINTER(P), U, S)(build, ft, fn, (P * n)(*args), n, b"")

        def mulhi(x, y):  # upper 64 bits of the product, by 32-bit limbs
            m, s = const(i64, 0xffffffff), const(i64, 32)
            x0, x1, y0, y1 = and_(x, m), shr(x, s), and_(y, m), shr(y, s)
            p, q = mul(x0, y1), mul(x1, y0)
            mid = add(add(shr(mul(x0, y0), s), and_(p, m)), and_(q, m))
            return add(add(mul(x1, y1), shr(p, s)), add(shr(q, s), shr(mid, s)))

        def wide(lo, hi):
            return or_(shl(cast("ZExt", hi, i128), const(i128, 64)), cast("ZExt", lo, i128))

        def halves(v):
            return cast("Trunc", v, i64), cast("Trunc", shr(v, const(i128, 64)), i64)

        def shift(v, amount):  # i128 by a variable amount, from 64-bit shifts
            (lo, hi), n = halves(v), cast("Trunc", amount, i64)
            m = and_(n, const(i64, 63))
            inv, one, zero = bi("Xor")(m, const(i64, 63)), const(i64, 1), const(i64, 0)
            big = llvm("BuildICmp", P, P, I, P, P, S)(build, 33, and_(n, const(i64, 64)), zero, b"")
            pick = lambda a, b: llvm("BuildSelect", P, P, P, P, P, S)(build, big, a, b, b"")
            if code == SHL:
                a = shl(lo, m)
                return wide(pick(zero, a), pick(a, or_(shl(hi, m), shr(shr(lo, one), inv))))
            sra = bi("AShr")
            a = shr(hi, m) if code == LSHR else sra(hi, m)
            top = zero if code == LSHR else sra(hi, const(i64, 63))
            return wide(pick(a, or_(shr(lo, m), shl(shl(hi, one), inv))), pick(top, a))

        def by_memory(helper, x, y):  # rustc's C ABI for i128 on BPF: result and operands through pointers
            if not slots:
                llvm("PositionBuilderBefore", None, P, P)(
                    build, llvm("GetFirstInstruction", P, P)(llvm("GetFirstBasicBlock", P, P)(f)))
                slots.extend(llvm("BuildAlloca", P, P, P, S)(build, i128, b"") for _ in range(3))
                llvm("PositionBuilderBefore", None, P, P)(build, cur)
            for v, slot in ((x, slots[1]), (y, slots[2])):
                llvm("BuildStore", P, P, P, P)(build, v, slot)
            call(helper, void, (ptr,) * 3, slots)
            return llvm("BuildLoad2", P, P, P, P, S)(build, i128, slots[0], b"")

        me = name_of(f)
        for cur in self.instructions(f):
            code, ty, new = llvm("GetInstructionOpcode", I, P)(cur), llvm("TypeOf", P, P)(cur), None
            arith = code in (MUL, UDIV, SDIV, UREM, SREM, SHL, LSHR, ASHR) and llvm("GetTypeKind", I, P)(ty) == 8
            called = name_of(llvm("GetCalledValue", P, P)(cur)) if code == CALL else ""
            if not arith and called not in OVERFLOW:
                continue
            llvm("PositionBuilderBefore", None, P, P)(build, cur)
            x, y = (llvm("GetOperand", P, P, U)(cur, k) for k in (0, 1))
            if arith:
                width = llvm("GetIntTypeWidth", U, P)(ty)
                helper = HELPER.get((code, width))
                if (code, width) == (MUL, 128):
                    (xl, xh), (yl, yh) = halves(x), halves(y)
                    new = wide(mul(xl, yl), add(mulhi(xl, yl), add(mul(xl, yh), mul(xh, yl))))
                elif width == 128 and code in (SHL, LSHR, ASHR):
                    if not llvm("IsAConstantInt", P, P)(y):
                        new = shift(x, y)
                elif helper and helper != me:
                    new = by_memory(helper, x, y) if width == 128 else call(helper, ty, (ty, ty), (x, y))
            else:
                differ = lambda v, w: llvm("BuildICmp", P, P, I, P, P, S)(build, 33, v, w, b"")
                zero, sign = const(i64, 0), lambda v: bi("AShr")(v, const(i64, 63))
                if called.endswith("i128"):
                    (xl, xh), (yl, yh) = halves(x), halves(y)
                    cross, low_hi = add(mul(xl, yh), mul(xh, yl)), mulhi(xl, yl)
                    top = add(low_hi, cross)
                    both = and_(differ(xh, zero), differ(yh, zero))
                    carry = llvm("BuildICmp", P, P, I, P, P, S)(build, 36, top, cross, b"")  # 36: u<
                    over = or_(or_(both, carry), differ(or_(mulhi(xl, yh), mulhi(xh, yl)), zero))
                    value = wide(mul(xl, yl), top)
                else:
                    value, high = mul(x, y), mulhi(x, y)
                    if called.startswith("llvm.smul"):
                        high = bi("Sub")(bi("Sub")(high, and_(sign(x), y)), and_(sign(y), x))
                        over = differ(high, sign(value))
                    else:
                        over = differ(high, zero)
                put = llvm("BuildInsertValue", P, P, P, P, U, S)
                new = put(build, put(build, llvm("GetUndef", P, P)(ty), value, 0, b""), over, 1, b"")
            if new:
                llvm("ReplaceAllUsesWith", None, P, P)(cur, new)
                llvm("InstructionEraseFromParent", None, P)(cur)
                count += 1
        return count

    def run(self, mod, passes):
        opts = llvm("CreatePassBuilderOptions", P)()
        err = llvm("RunPasses", P, P, S, P, P)(mod, passes.encode(), self.tm, opts)
        if err:
            die(C.cast(llvm("GetErrorMessage", P, P)(err), S).value.decode())

    def emit(self, mod, kind=1):  # 1: object, 0: assembly
        mod = llvm("CloneModule", P, P)(mod)
        out, msg = P(), S()
        if llvm("TargetMachineEmitToMemoryBuffer", I, P, P, I, C.POINTER(S), C.POINTER(P))(
                self.tm, mod, kind, C.byref(msg), C.byref(out)):
            die(msg.value.decode())
        return C.string_at(llvm("GetBufferStart", P, P)(out), llvm("GetBufferSize", C.c_size_t, P)(out))


def ar_members(data):
    if data[:8] != b"!<arch>\n":
        die("not an archive")
    at, names = 8, b""
    while at < len(data):
        name, size = data[at:at + 16].strip(), int(data[at + 48:at + 58])
        body = data[at + 60:at + 60 + size]
        if name == b"//":
            names = body
        elif name[:1] == b"/" and name[1:].isdigit():
            name = names[int(name[1:]):].split(b"/\n")[0]
        yield name.rstrip(b"/").decode(), body
        at += 60 + size + (size & 1)


# ---------------------------------------------------------------- the relocatable object
class Obj:
    """One little-endian 64-bit BPF relocatable: merged .text*, merged read-only data, relocations on both."""

    def __init__(self, b):
        if b[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<HH", b, 16) != (1, 247):
            die("not an EM_BPF relocatable object")
        shoff, shnum, shstr = struct.unpack_from("<Q", b, 40)[0], *struct.unpack_from("<HH", b, 60)
        sh = [struct.unpack_from("<IIQQQQIIQQ", b, shoff + 64 * i) for i in range(shnum)]
        cstr = lambda off: b[off:b.index(b"\0", off)].decode()
        name = [cstr(sh[shstr][4] + s[0]) for s in sh]
        self.text, self.data, self.place = bytearray(), bytearray(), {}
        for i, s in enumerate(sh):
            flags, size, align = s[2], s[5], max(s[8], 1)
            if not flags & 2 or not size:  # SHF_ALLOC
                continue
            body = b[s[4]:s[4] + size]
            if s[1] == 1 and flags & 4:
                buf, kind = self.text, "text"
            elif s[1] == 1 and (not flags & 1 or name[i].startswith(".data.rel.ro")):
                buf, kind = self.data, "data"
            else:
                die(f"section {name[i]} ({size} bytes) is writable: an on-chain program has no mutable statics")
            buf += bytes(-len(buf) % max(align, 8))
            self.place[i] = (kind, len(buf))
            buf += body
        self.data += bytes(-len(self.data) % 8)
        self.funcs, self.syms = {}, []
        symtab = next(s for s in sh if s[1] == 2)
        for at in range(symtab[4], symtab[4] + symtab[5], 24):
            n, info, _, ndx, value, size = struct.unpack_from("<IBBHQQ", b, at)
            nm = cstr(sh[symtab[6]][4] + n)
            kind, base = self.place.get(ndx, (None, 0))
            self.syms.append((nm, kind, base + value, ndx))
            if info & 15 == 2 and kind == "text":
                self.funcs[nm] = (base + value, size)
        self.relocs = []
        for s in sh:
            if s[1] == 4 and s[7] in self.place:
                die("RELA relocations are not expected from the BPF backend")
            if s[1] == 9 and s[7] in self.place:
                kind, base = self.place[s[7]]
                for at in range(s[4], s[4] + s[5], 16):
                    off, info = struct.unpack_from("<QQ", b, at)
                    self.relocs.append((kind, base + off, info & 0xffffffff, self.syms[info >> 32]))
        self.relocs.sort(key=lambda r: (r[0], r[1]))

    def undefined(self):
        return sorted({s[0] for _, _, _, s in self.relocs if s[3] == 0})

    def where(self, off):
        for n, (a, size) in self.funcs.items():
            if a <= off < a + size:
                return f"{n}+{off - a:#x}"
        return f".text+{off:#x}"


ALU = {c | k for c in (0x04, 0x07) for k in (0x00, 0x08, 0x10, 0x18, 0x20, 0x28, 0x30, 0x38, 0x40, 0x48, 0x50, 0x58, 0x60,
       0x68, 0x70, 0x78, 0x80, 0x90, 0x98, 0xa0, 0xa8, 0xb0, 0xb8, 0xc0, 0xc8)} | {0xd4, 0xdc}
MEM = {0x61, 0x69, 0x71, 0x79, 0x62, 0x6a, 0x72, 0x7a, 0x63, 0x6b, 0x73, 0x7b}
JMP = {0x05} | {0x05 | o | x for o in range(0x10, 0xe0, 0x10) for x in (0, 8) if o not in (0x80, 0x90)}


def check(o):
    """Reject what the sBPF verifier would reject, and what sBPF executes differently from Linux BPF."""
    at = 0
    while at < len(o.text):
        op, regs, off, imm = struct.unpack_from("<BBhi", o.text, at)
        dst, src = regs & 15, regs >> 4
        if op == 0x18:
            at += 8
        elif op in (0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c):
            die(f"{o.where(at)}: 32-bit add/sub/mul (sBPF sign-extends the result, Linux BPF does not)")
        elif op in ALU:
            if off:
                die(f"{o.where(at)}: signed divide or sign-extending move (opcode {op:#x}, off {off})")
            if dst == 10:
                die(f"{o.where(at)}: writes r10")
        elif op in MEM:
            base = src if op in (0x61, 0x69, 0x71, 0x79) else dst
            if base == 10 and off < -STACK:
                die(f"{o.where(at)}: stack frame over {STACK} bytes")
        elif op not in JMP and op not in (0x85, 0x8d, 0x95):
            die(f"{o.where(at)}: opcode {op:#04x} is not in sBPF")
        at += 8


def murmur3(name):
    h = 0
    rot = lambda x, r: ((x << r) | (x >> (32 - r))) & 0xffffffff
    d = name.encode()
    for i in range(0, len(d) & ~3, 4):
        k = int.from_bytes(d[i:i + 4], "little") * 0xcc9e2d51 & 0xffffffff
        h = (rot(h ^ (rot(k, 15) * 0x1b873593 & 0xffffffff), 13) * 5 + 0xe6546b64) & 0xffffffff
    k = int.from_bytes(d[len(d) & ~3:], "little")
    if k:
        h ^= rot(k * 0xcc9e2d51 & 0xffffffff, 15) * 0x1b873593 & 0xffffffff
    h ^= len(d)
    h = (h ^ h >> 16) * 0x85ebca6b & 0xffffffff
    h = (h ^ h >> 13) * 0xc2b2ae35 & 0xffffffff
    return h ^ h >> 16


# ---------------------------------------------------------------- the Solana shared object
def link(o, version, entry="entrypoint"):
    if entry not in o.funcs:
        die(f"no function `{entry}`")
    for name in o.undefined():
        if name not in SYSCALLS and name != "__bpf_trap":
            die(f"undefined symbol `{name}`: neither in the program nor a Solana syscall")
    check(o)
    text, data = bytearray(o.text), bytearray(o.data)
    if version == 0:
        text_at = 64 + 56 * 3
        data_at = text_at + len(text)
    else:
        pad = 16 if data else 0            # keep Rust references off address 0
        data[:0] = bytes(pad)
        data_at, text_at = pad, 1 << 32
    dyn_rel, dyn_names = [], []            # (file offset, type, symbol index)
    for kind, off, typ, (name, skind, svalue, ndx) in o.relocs:
        buf = text if kind == "text" else data
        pos = off if kind == "text" or version == 0 else off + (16 if o.data else 0)
        base = {"text": text_at, "data": data_at, None: 0}[skind]
        if kind == "text" and typ == 10 and text[pos] == 0x85:      # call
            if ndx == 0:
                name = "abort" if name == "__bpf_trap" else name
                if version == 0:
                    if name not in dyn_names:
                        dyn_names.append(name)
                    text[pos:pos + 8] = struct.pack("<BBhi", 0x85, 0x10, 0, -1)
                    dyn_rel.append((text_at + pos, 10, dyn_names.index(name) + 1))
                else:
                    text[pos:pos + 8] = struct.pack("<BBhI", 0x85, 0, 0, murmur3(name))
            elif skind == "text":
                target = svalue + (struct.unpack_from("<i", text, pos + 4)[0] + 1) * 8
                text[pos:pos + 8] = struct.pack("<BBhi", 0x85, 0x10, 0, (target - pos) // 8 - 1)
            else:
                die(f"{o.where(off)}: call of data symbol {name}")
        elif kind == "text" and typ == 1 and text[pos] == 0x18 and skind:   # lddw
            value = base + svalue + struct.unpack_from("<i", text, pos + 4)[0]
            struct.pack_into("<I", text, pos + 4, value & 0xffffffff)
            struct.pack_into("<I", text, pos + 12, value >> 32)
            text[pos + 1] &= 15
            if version == 0:
                dyn_rel.append((text_at + pos, 8, 0))
        elif kind == "data" and typ in (1, 2) and skind:                     # 64-bit pointer in data
            value = base + svalue + struct.unpack_from("<q", data, pos)[0]
            if version == 0:   # the loader reads the upper half and adds 1 << 32
                struct.pack_into("<II", data, pos, 0, value)
                dyn_rel.append((data_at + pos, 8, 0))
            else:
                struct.pack_into("<Q", data, pos, value)
        else:
            die(f"{kind}+{off:#x}: relocation type {typ} against `{name}` is not supported")
    at = 0
    while at < len(text):                                                   # callx register
        if text[at] == 0x8d and version == 0:
            reg = text[at + 1] & 15
            text[at:at + 8] = struct.pack("<BBhi", 0x8d, 0, 0, reg)
        at += 16 if text[at] == 0x18 else 8
    if version == 0:
        return write_v0(text, data, text_at, data_at, o.funcs[entry][0], dyn_rel, dyn_names)
    ph = []
    at = 64 + 56 * (2 if data else 1)
    if data:
        ph.append(struct.pack("<IIQQQQQQ", 1, 4, at, 0, 0, len(data), len(data), 8))
        at += len(data)
    ph.append(struct.pack("<IIQQQQQQ", 1, 1, at, 1 << 32, 1 << 32, len(text), len(text), 8))
    eh = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 247, 1, (1 << 32) + o.funcs[entry][0], 64, 0,
                     version, 64, 56, len(ph), 64, 0, 0)
    return eh + b"".join(ph) + bytes(data) + bytes(text)


def write_v0(text, data, text_at, data_at, entry, dyn_rel, dyn_names):
    dynstr, sym = b"\0", [bytes(24)]
    for n in dyn_names:
        sym.append(struct.pack("<IBBHQQ", len(dynstr), 0x10, 0, 0, 0, 0))
        dynstr += n.encode() + b"\0"
    dynstr += bytes(-len(dynstr) % 8)
    rel = b"".join(struct.pack("<QQ", off, si << 32 | typ) for off, typ, si in sorted(dyn_rel))
    dynamic_at = data_at + len(data)
    dynsym_at = dynamic_at + 16 * 9
    dynstr_at = dynsym_at + 24 * len(sym)
    rel_at = dynstr_at + len(dynstr)
    end = rel_at + len(rel)
    relative = sum(t == 8 for _, t, _ in dyn_rel)
    tags = [(30, 4), (17, rel_at), (18, len(rel)), (19, 16), (0x6ffffffa, relative), (6, dynsym_at), (11, 24),
            (5, dynstr_at), (10, len(dynstr)), (0, 0)]  # FLAGS=TEXTREL REL RELSZ RELENT RELCOUNT SYMTAB ... STRTAB
    if not rel:
        tags = [t for t in tags if t[0] not in (17, 18, 19, 0x6ffffffa)]
    tags = [t for t in tags if t[0] != 0x6ffffffa]  # entries are sorted by address, so RELCOUNT does not apply
    dynamic = b"".join(struct.pack("<QQ", *t) for t in tags).ljust(16 * 9, b"\0")
    sections = [("", 0, 0, 0, b"", 0, 0, 0, 0), (".text", 1, 6, text_at, bytes(text), 0, 0, 8, 0)]
    if data:
        sections.append((".rodata", 1, 2, data_at, bytes(data), 0, 0, 8, 0))
    n = len(sections)
    sections += [(".dynamic", 6, 3, dynamic_at, dynamic, n + 2, 0, 8, 16), (".dynsym", 11, 2, dynsym_at, b"".join(sym), n + 2, 1, 8, 24),
                 (".dynstr", 3, 2, dynstr_at, dynstr, 0, 0, 1, 0), (".rel.dyn", 9, 2, rel_at, rel, n + 1, 0, 8, 16)]
    names = b""
    shdr = []
    off = end
    for nm, typ, flags, addr, body, lnk, info, align, ent in sections:
        shdr.append(struct.pack("<IIQQQQIIQQ", len(names), typ, flags, addr, addr, len(body), lnk, info, align, ent))
        names += nm.encode() + b"\0"
    shdr.append(struct.pack("<IIQQQQIIQQ", len(names), 3, 0, 0, end, len(names) + 10, 0, 0, 1, 0))
    names += b".shstrtab\0"
    shoff = (end + len(names) + 7) & ~7
    load = lambda fl, at, size: struct.pack("<IIQQQQQQ", 1, fl, at, at, at, size, size, 8)
    ph = load(5, text_at, len(text) + len(data)) + load(6, dynamic_at, end - dynamic_at) + \
        struct.pack("<IIQQQQQQ", 2, 6, dynamic_at, dynamic_at, dynamic_at, len(dynamic), len(dynamic), 8)
    eh = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 247, 1, text_at + entry, 64, shoff, 0, 64, 56, 3, 64,
                     len(shdr), len(shdr) - 1)
    out = eh + ph + b"".join(s[4] for s in sections) + names
    return out + bytes(shoff - len(out)) + b"".join(shdr)


def main(argv):
    out = objs = None
    objs, rlibs, cpu, feats = [], [], "v2", ""
    it = iter(argv)
    for a in it:
        if a == "-o": out = next(it)
        elif a == "--cpu": cpu = next(it)
        elif a == "--cpu-features": feats = next(it)
        elif a in ("--export-symbols", "-L"): next(it)
        elif a.endswith(".rlib"): rlibs.append(a)
        elif a.endswith("symbols.o"): pass  # rustc's list of exports, present when there is a second crate type
        elif a.endswith(".o"): objs.append(a)
        elif a.startswith("-"): pass
        else: die(f"unexpected argument {a}")
    if len(objs) != 1:
        die(f"expected one LTO module, got {objs} (compile with -C lto=fat -C codegen-units=1)")
    cg = Codegen(cpu, feats)
    mod = cg.parse(open(objs[0], "rb").read())
    lowered = cg.lower(mod)
    builtins = os.environ.get("SBF_BUILTINS")
    keep, obj = {"entrypoint"}, None
    for _ in range(8):
        cg.errors.clear()
        obj = Obj(cg.emit(mod))
        if cg.errors:
            die("\n  ".join(["LLVM rejects the program:"] + sorted(set(cg.errors))))
        need = [s for s in obj.undefined() if s not in SYSCALLS and s != "__bpf_trap"]
        if not need:
            break
        if set(need) <= keep:
            die(f"undefined symbols {need}: neither in the program, nor in compiler_builtins, nor Solana syscalls")
        keep |= set(need)
        # (re)link compiler_builtins and keep only what is called so far; code generation may ask for more
        if not builtins:
            die(f"undefined symbols {need}")
        mod2 = cg.parse(open(objs[0], "rb").read())
        cg.lower(mod2)
        for nm, body in ar_members(open(builtins, "rb").read()):
            if body[:4] == b"BC\xc0\xde":
                if llvm("LinkModules2", I, P, P)(mod2, cg.parse(body)):
                    die("cannot link compiler_builtins")
        cg.run(mod2, "internalize<" + ";".join("preserve-gv=" + k for k in sorted(keep)) + ">,globaldce")
        cg.lower(mod2)
        mod = mod2
    else:
        die("compiler_builtins keeps asking for more symbols")
    if os.environ.get("SBF_ASM"):
        open(os.environ["SBF_ASM"], "wb").write(cg.emit(mod, 0))
    version = int(os.environ.get("SBPF_VERSION", "0"))
    elf = link(obj, version)
    open(out, "wb").write(elf)
    if os.environ.get("SBF_REPORT"):
        print(f"sbf_ld: {out}: {len(elf)} bytes, sBPF v{version}, {len(obj.text) // 8} instructions, {len(obj.data)} bytes of data, "
              f"{len(obj.funcs)} functions, {lowered} operations lowered to helpers, "
              f"builtins {sorted(keep - {'entrypoint'})}, syscalls {obj.undefined()}", file=open(os.environ["SBF_REPORT"], "w"))


if __name__ == "__main__":
    main(sys.argv[1:])
