#!/usr/bin/env python3
"""Builds the on-chain programs without Solana's platform-tools: Debian's rustc-web, its sources of `core`, and `sbf_ld.py`.

    python build.py [PROGRAM ...] [--out FOLDER] [--check FOLDER]

Needs rustc 1.85 and its sources; README.md has the line that installs them. The first build compiles `core` (about 10 s) into a
cache; later builds take a second or two. The same sources and the same rustc give the same bytes in any folder.

Only `core` is linked, without compiler_builtins. So a program can use neither floating-point numbers nor 128-bit division
(sbf_ld.py lowers multiplication, shifts and addition of 128 bits). A program that needs a missing function does not link.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
SOURCES = TOOLS.parent
SHIPPED = SOURCES.parent / "psyche_backend_solana/programs"
CACHE = TOOLS / ".cache"
RUSTC = "/usr/bin/rustc"
RUST = "1.85"
"""The version that built the shipped programs. Debian's security updates bring newer ones, which build other bytes or nothing."""

INSTALL = "apt-get install --no-install-recommends --allow-downgrades " + " ".join(
    f"'{package}={RUST}.*'" for package in ("rustc-web", "rust-web-src", "libstd-rust-web-dev")
)
PROGRAMS = ("coordinator", "authorizer", "treasurer", "mining_pool", "bond")
TARGET = (
    "--target",
    "bpfel-unknown-none",
    "-C",
    "target-cpu=v2",
    "-C",
    "opt-level=3",
    "-C",
    "panic=abort",
    "-C",
    "codegen-units=1",
)
BUILTINS = "#![feature(compiler_builtins)]\n#![compiler_builtins]\n#![no_std]\n#![allow(internal_features)]\n"
"""Source of the crate compiler_builtins, which rustc wants beside `core`; ours is empty."""


class BuildError(Exception):
    """A tool or a source is missing, or rustc or the linker rejected a program. The message is its output."""


class Toolchain:
    """One rustc with the libraries that are built for it.

    rustc: Debian's. cache: folder for libraries, by rustc's version. sources: folder of the programs' crates. Raises BuildError
    if rustc or its sources are missing, or if rustc has another version than RUST; the message says how to install it.
    """

    def __init__(self, rustc: str = RUSTC, *, cache: Path = CACHE, sources: Path = SOURCES) -> None:
        if not Path(rustc).exists():
            message = f"{rustc} is missing; install it with: {INSTALL}"
            raise BuildError(message)
        said = _run([rustc, "-Vv"])
        version = re.search(r"^release: (\S+)", said, re.MULTILINE)
        llvm = re.search(r"^LLVM version: (\d+)\.(\d+)", said, re.MULTILINE)
        if version is None or llvm is None:
            message = f"{rustc} -Vv tells no version: {said}"
            raise BuildError(message)
        if not version[1].startswith(f"{RUST}."):
            message = f"{rustc} is version {version[1]}, the programs are built with {RUST}; install that with: {INSTALL}"
            raise BuildError(message)
        self.version = version[1]
        self._rustc = rustc
        self._sources = sources
        self._libllvm = f"libLLVM.so.{llvm[1]}.{llvm[2]}"
        self._library = Path(f"/usr/src/rustc-{self.version}/library")
        self._cache = cache / self.version
        if not (self._library / "core/src/lib.rs").exists():
            message = f"{self._library} is missing; install it with: {INSTALL}"
            raise BuildError(message)

    def build(self, name: str, out: Path, *, assembly: Path | None = None) -> Path:
        """Build one of our programs and return its shared object in the folder `out`. assembly: file for its assembly code."""
        more = () if assembly is None else ("-C", f"link-arg=--assembly={assembly}")
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            extern = ("--extern", f"psyche_common={self.common(Path(folder))}")
            return self.link(name, self._sources / name / "src/lib.rs", out / f"{name}.so", more=(*more, *extern))

    def common(self, out: Path) -> Path:
        """Build the crate that all our programs share, as a library in the folder `out`."""
        self._libraries()
        made = out / "libpsyche_common.rlib"
        self._compile("psyche_common", self._sources / "common/src/lib.rs", made, "rlib", "-C", "linker-plugin-lto")
        return made

    def link(self, name: str, source: Path, out: Path, *, sbpf: int = 0, more: Sequence[str] = ()) -> Path:
        """Build a shared object from any crate. sbpf: version of sBPF, 0 or 3. more: arguments for rustc. Raises BuildError."""
        self._libraries()
        linker = ("-C", "lto=fat", "-C", f"linker={TOOLS / 'sbf_ld.py'}")
        own = ("-C", f"link-arg=--libllvm={self._libllvm}", "-C", f"link-arg=--sbpf={sbpf}")
        self._compile(name, source, out, "cdylib", *linker, *own, *more)
        return out

    def _libraries(self) -> None:
        self._cache.mkdir(parents=True, exist_ok=True)
        with (self._cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a second process waits here and then finds the libraries built
            builtins = self._cache / "builtins.rs"
            builtins.write_text(BUILTINS)
            for crate, source in (("core", self._library / "core/src/lib.rs"), ("compiler_builtins", builtins)):
                made = self._cache / f"lib{crate}.rlib"
                if not made.exists():
                    part = made.with_name(f"{made.name}.{os.getpid()}")
                    self._run("--crate-name", crate, "--edition", "2021", "--crate-type", "rlib", source, "-o", part,
                              "-C", "linker-plugin-lto", "--cap-lints", "allow")  # fmt: skip
                    part.rename(made)

    def _compile(self, name: str, source: Path, out: Path, kind: str, *more: str | Path) -> None:
        part = out.with_name(f"{out.name}.{os.getpid()}")
        remap = f"--remap-path-prefix={self._sources}=programs"
        self._run("--crate-name", name, "--edition", "2021", "--crate-type", kind, source, "-o", part, "-C", "overflow-checks=on",
                  "-D", "warnings", remap, f"--remap-path-prefix={self._library}=library", *more)  # fmt: skip
        part.rename(out)

    def _run(self, *arguments: str | Path) -> None:
        command = [self._rustc, *TARGET, "-L", str(self._cache), *map(str, arguments)]
        try:
            _run(command)
        except BuildError as error:
            message = f"{error}\nrustc refused {arguments[1]}"
            raise BuildError(message) from error


def _run(command: list[str]) -> str:
    environment = {**os.environ, "RUSTC_BOOTSTRAP": "1"}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if finished.returncode != 0:
        raise BuildError(finished.stderr)
    return finished.stdout


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS of all programs in a folder, in the format of `sha256sum -c`, including those of earlier builds."""
    lines = [f"{hashlib.sha256(made.read_bytes()).hexdigest()}  {made.name}\n" for made in sorted(folder.glob("*.so"))]
    (folder / "SHA256SUMS").write_text("".join(lines))


def build_all(toolchain: Toolchain, options: argparse.Namespace) -> None:
    """Build the requested programs and, if requested, compare them. Raises BuildError if one is rejected or differs."""
    differing = []
    for name in options.programs:
        assembly = options.assembly / f"{name}.s" if options.assembly else None
        made = toolchain.build(name, options.out, assembly=assembly)
        content = made.read_bytes()
        sys.stdout.write(f"{hashlib.sha256(content).hexdigest()}  {made.name}  {len(content)} bytes\n")
        if options.check is not None and (options.check / made.name).read_bytes() != content:
            differing.append(name)
    write_sums(options.out)
    if differing:
        message = (
            f"rustc {toolchain.version} builds other bytes than those shipped for {', '.join(differing)}; run build.py and commit"
        )
        raise BuildError(message)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Build the on-chain programs.")
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS), metavar="PROGRAM", help=", ".join(PROGRAMS))
    parser.add_argument("--out", type=Path, default=SHIPPED, help="folder for the .so files")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for compiled libraries")
    parser.add_argument("--check", type=Path, help="compare with the .so files of this folder; a difference is an error")
    parser.add_argument("--assembly", type=Path, help="folder for the programs' assembly")
    options = parser.parse_args()
    try:
        build_all(Toolchain(cache=options.cache), options)
    except BuildError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
