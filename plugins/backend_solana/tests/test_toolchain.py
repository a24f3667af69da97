"""The programs' toolchain: what it refuses and why, and that it builds exactly what is shipped."""

from __future__ import annotations

import hashlib
import importlib
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.pubkey import Pubkey

from psyche_backend_solana import programs
from psyche_backend_solana.layouts import authorizer, bond, mining_pool, treasurer
from psyche_backend_solana.programs.addresses import PROGRAMS
from psyche_core.errors import UserError

SOURCES = Path(__file__).parents[1] / "programs"
SHIPPED = Path(programs.__file__).parent
PRELUDE = """#![no_std]
#![allow(warnings)]
#[panic_handler] fn panicked(_: &core::panic::PanicInfo) -> ! { unsafe { abort() } }
extern "C" {
    fn abort() -> !;
    fn sol_nonsense(a: u64) -> u64;
    fn sol_memcpy_(a: *mut u8, b: *const u8, c: u64);
    fn sol_memset_(a: *mut u8, b: u8, c: u64);
}
#[no_mangle] unsafe extern "C" fn memcpy(d: *mut u8, s: *const u8, n: usize) -> *mut u8 { sol_memcpy_(d, s, n as u64); d }
#[no_mangle] unsafe extern "C" fn memset(d: *mut u8, s: i32, n: usize) -> *mut u8 { sol_memset_(d, s as u8, n as u64); d }
"""
ENTRY = '#[no_mangle] pub unsafe extern "C" fn entrypoint(p: *mut u64) -> u64 '
FRAME = "#[inline(never)] fn g(a: &mut [u64; %d]) { unsafe { core::ptr::write_volatile(&mut a[7], 3) } } "
FRAME_ENTRY = ENTRY + "{ let mut a = [*p; %d]; g(&mut a); a[*p as usize] }"

REFUSED = {
    "a mutable static": ("static mut C: u64 = 0; " + ENTRY + "{ C += *p; C }", "has no mutable statics"),
    "a mutable static with a value": ("static mut C: u64 = 5; " + ENTRY + "{ C += *p; C }", "has no mutable statics"),
    "an atomic static": (
        "use core::sync::atomic::*; static A: AtomicU64 = AtomicU64::new(0); "
        + ENTRY
        + "{ let v = A.load(Ordering::Relaxed); A.store(v ^ *p, Ordering::Relaxed); v }",
        "Cannot select",
    ),
    "an unknown syscall": (ENTRY + "{ sol_nonsense(*p) }", "undefined symbol `sol_nonsense`"),
    "a frame of 5000 bytes": (FRAME % 625 + FRAME_ENTRY % 625, "stack"),
    "six arguments and recursion": (
        "#[inline(never)] fn g(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> u64 "
        "{ if a == 0 { b } else { g(a - 1, b ^ c, d, e, f, b) + g(a / 2, c, b, e, d, f) } } "
        + ENTRY
        + "{ g(*p, *p.add(1), *p.add(2), 3, 4, 5) }",
        "too many arguments",
    ),
    "six arguments through a pointer": (
        ENTRY + "{ let f: fn(u64, u64, u64, u64, u64, u64) -> u64 = core::mem::transmute(*p); f(1, 2, 3, 4, 5, 6) }",
        "too many arguments",
    ),
    "128-bit division": (ENTRY + "{ (*(p as *const u128) / (*p as u128 | 1)) as u64 }", "128-bit division"),
    "signed 128-bit remainder": (ENTRY + "{ (*(p as *const i128) % (*p as i128 | 1)) as u64 }", "128-bit division"),
    "floating point": (ENTRY + "{ (*p as f64 * 0.5) as u64 }", "undefined symbol"),
    "no entry point": ('#[no_mangle] pub extern "C" fn elsewhere() -> u64 { 1 }', "no function `entrypoint`"),
}
ACCEPTED = {
    "a frame of 4000 bytes": FRAME % 500 + FRAME_ENTRY % 500,
    "six arguments, inlined": "#[inline(never)] fn g(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> u64 "
    "{ a ^ b / (c | 1) + d * e - f } "
    + ENTRY
    + "{ g(*p, *p.add(1), *p.add(2), 3, 4, 5) + g(*p.add(3), *p.add(1), *p.add(2), 3, 4, 5) }",
    "formatted text": "use core::fmt::Write; struct W([u8; 64], usize); "
    "impl Write for W { fn write_str(&mut self, s: &str) -> core::fmt::Result "
    "{ for b in s.bytes() { if self.1 < 64 { self.0[self.1] = b; self.1 += 1 } } Ok(()) } } "
    + ENTRY
    + '{ let mut w = W([0; 64], 0); let _ = write!(w, "{} {:x}", *p, *p); w.1 as u64 }',
    "trait objects": "trait T { fn f(&self, x: u64) -> u64; } struct A(u64); struct B(u64); "
    "impl T for A { fn f(&self, x: u64) -> u64 { self.0 + x } } impl T for B { fn f(&self, x: u64) -> u64 { self.0 * x } } "
    + ENTRY
    + "{ let (a, b) = (A(*p), B(3)); let v: [&dyn T; 2] = [&a, &b]; v[(*p & 1) as usize].f(7) }",
    "signed division": ENTRY + "{ (*p as i64).wrapping_div(*p.add(1) as i64 | 1) as u64 }",
    "checked 128-bit multiplication": ENTRY + "{ (p as *mut u128).read().checked_mul(*p as u128).unwrap_or(1) as u64 }",
}


def test_another_rustc_is_refused_with_the_way_to_the_right_one(build_module: ModuleType, tmp_path: Path) -> None:
    newer = tmp_path / "rustc"
    newer.write_text("#!/bin/sh\necho 'release: 1.96.0'\necho 'LLVM version: 22.1.8'\n")
    newer.chmod(0o755)
    with pytest.raises(build_module.BuildError, match=r"version 1\.96\.0, .*'?rustc-web=1\.85\.\*"):
        build_module.Toolchain(str(newer))


def build(toolchain: Any, folder: Path, source: str) -> bytes:
    (folder / "lib.rs").write_text(PRELUDE + source)
    built: Path = toolchain.link("example", folder / "lib.rs", folder / "example.so")
    return built.read_bytes()


@pytest.mark.parametrize("what", REFUSED)
def test_refused_with_a_reason(toolchain: Any, tmp_path: Path, what: str) -> None:
    source, reason = REFUSED[what]
    with pytest.raises(Exception, match="rustc refused") as refused:
        build(toolchain, tmp_path, source)
    assert reason in str(refused.value)
    assert not list(tmp_path.glob("example.so*")), "nothing is written"


@pytest.mark.parametrize(
    ("instruction", "reason"),
    [
        ((0x04, 1, 0, 5), "32-bit addition"),
        ((0x2C, 0x21, 0, 0), "32-bit addition"),
        ((0x3F, 0x21, 1, 0), "signed division"),
        ((0xBF, 0x21, 8, 0), "sign-extending move"),
        ((0xB7, 10, 0, 0), "writes the stack register"),
        ((0x7B, 0x1A, -4104, 0), "stack frame over 4096"),
        ((0x79, 0xA1, -4104, 0), "stack frame over 4096"),
        ((0xDB, 0x21, 0, 0), "opcode 0xdb is not in sBPF"),
        ((0x06, 0, 0, 0), "opcode 0x06 is not in sBPF"),
    ],
)
def test_instructions_that_sbpf_has_not_are_refused(
    monkeypatch: pytest.MonkeyPatch, instruction: tuple[int, int, int, int], reason: str
) -> None:
    monkeypatch.syspath_prepend(str(SOURCES / "toolchain"))
    link = importlib.import_module("shared_object").link
    address = struct.pack("<BBhiBBhi", 0x18, 1, 0, 4, 0, 0, 0, 0)  # its second half is no instruction
    last = struct.pack("<BBhi", 0x95, 0, 0, 0)

    def program(*code: bytes) -> SimpleNamespace:
        text = b"".join(code)
        functions = {"entrypoint": (0, len(text))}
        return SimpleNamespace(
            text=text, data=b"", relocations=[], functions=functions, undefined=list, where=lambda offset: f"at {offset}"
        )

    LiteSVM().add_program(Pubkey.new_unique(), link(program(address, last), 0))
    for version in (0, 3):
        with pytest.raises(Exception, match=f"at 16: .*{reason}"):
            link(program(address, struct.pack("<BBhi", *instruction), last), version)


@pytest.mark.parametrize("what", ACCEPTED)
def test_accepted_and_loaded(toolchain: Any, tmp_path: Path, what: str) -> None:
    LiteSVM().add_program(Pubkey.new_unique(), build(toolchain, tmp_path, ACCEPTED[what]))


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_shipped_is_what_the_sources_build(toolchain: Any, tmp_path: Path, name: str) -> None:
    """Built anew from a copy of the sources in another folder: the bytes must not depend on where they are built."""
    if not (SHIPPED / f"{name}.so").exists():
        pytest.fail(f"{name}.so is not shipped; run programs/toolchain/build.py")
    copy = tmp_path / "elsewhere"
    shutil.copytree(SOURCES, copy, ignore=shutil.ignore_patterns("toolchain"))
    built = type(toolchain)(sources=copy).build(name, tmp_path / "out").read_bytes()
    same = built == (SHIPPED / f"{name}.so").read_bytes()
    assert same, f"rustc {toolchain.version} builds another {name}.so than is shipped; run programs/toolchain/build.py and commit"


def test_the_sums_are_those_of_what_is_shipped() -> None:
    shipped = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in SHIPPED.glob("*.so")}
    assert programs.sums() == shipped


def rustc() -> str:
    found = shutil.which("rustc") or "/usr/bin/rustc"
    if not Path(found).exists():
        pytest.skip("no rustc for the unit tests of the programs; install one, such as Debian's rustc-web")
    return found


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("host") / "libpsyche_common.rlib"
    source = SOURCES / "common/src/lib.rs"
    command = [rustc(), "--edition", "2021", "--crate-type", "rlib", "--crate-name", "psyche_common", source, "-o", made]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    return made


@pytest.mark.parametrize("crate", ["common", *PROGRAMS])
def test_the_unit_tests_of_the_sources_pass(common: Path, tmp_path: Path, crate: str) -> None:
    binary = tmp_path / crate
    command = [rustc(), "--edition", "2021", "--test", SOURCES / crate / "src/lib.rs", "-o", binary]
    extern = [] if crate == "common" else ["--extern", f"psyche_common={common}"]
    compiled = subprocess.run(list(map(str, [*command, *extern])), capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    ran = subprocess.run([str(binary)], capture_output=True, text=True, check=False)
    sys.stdout.write(ran.stdout)
    assert ran.returncode == 0


def test_loading_a_program_that_is_not_there() -> None:
    with pytest.raises(UserError, match="there is no program 'nonsense'; there are coordinator, authorizer"):
        programs.load("nonsense")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / "authorizer.so").write_bytes(b"x"), "authorizer.so is damaged"),
        (lambda folder: (folder / "authorizer.so").unlink(), "authorizer.so of psyche_backend_solana is missing"),
        (lambda folder: (folder / "SHA256SUMS").unlink(), "SHA256SUMS of psyche_backend_solana is missing"),
        (lambda folder: (folder / "SHA256SUMS").write_text("nonsense\n"), "SHA256SUMS of psyche_backend_solana is damaged"),
        (lambda folder: (folder / "SHA256SUMS").write_text(""), "names no authorizer.so"),
    ],
)
def test_damaged_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object], said: str
) -> None:
    folder = tmp_path / "programs"
    shutil.copytree(SHIPPED, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(programs, "_FOLDER", folder)
    assert programs.load("authorizer")[:4] == b"\x7fELF"
    change(folder)
    with pytest.raises(UserError, match=said):
        programs.load("authorizer")


def test_addresses_are_those_compiled_in() -> None:
    source = (SOURCES / "common/src/ids.rs").read_text()
    for name, address in PROGRAMS.items():
        assert f"pub const {name.upper()}: Pubkey = {list(bytes(address))};" in source
        seed = hashlib.sha256(f"psyche/{name}/local chains".encode()).digest()
        assert Keypair.from_seed(seed).pubkey() == address


@pytest.mark.parametrize(
    "layout", [authorizer, treasurer, mining_pool, bond], ids=lambda layout: layout.__name__.rsplit(".", 1)[1]
)
def test_the_page_of_the_programs_names_their_own_errors(layout: ModuleType) -> None:
    page = " ".join((SOURCES.parents[2] / "docs/reference/solana-programs.md").read_text().split())
    assert "Own errors: " + ", ".join(f"{code} {name}" for code, (name, _) in layout.ERRORS.items()) + "." in page


@pytest.mark.parametrize(
    "layout", [authorizer, treasurer, mining_pool, bond], ids=lambda layout: layout.__name__.rsplit(".", 1)[1]
)
def test_errors_have_the_numbers_of_the_sources(layout: ModuleType) -> None:
    folder = SOURCES / layout.__name__.rsplit(".", 1)[1] / "src"
    text = "".join(path.read_text() for path in sorted(folder.glob("*.rs")))
    found = {int(code): name for name, code in re.findall(r"pub const (\w+): Error = Error\((\d+)\);", text)}
    assert {code: name.replace("_", "").lower() for code, name in found.items()} == {
        code: name.lower() for code, (name, _) in layout.ERRORS.items()
    }
