#!/usr/bin/env python3
"""Builds the on-chain programs without Solana's platform-tools: Debian's rustc-web, its sources of `core`, and `sbf_ld.py`.

    python build.py [PROGRAM ...] [--out FOLDER] [--check FOLDER]

Needs: apt-get install --no-install-recommends rustc-web rust-web-src. The first build compiles `core` (about 10 s) into a cache,
later ones take a second or two. The same sources and the same rustc give the same bytes.

Decided: only `core`; no compiler_builtins, so a program may use neither floating-point numbers nor 128-bit division (multiplying,
shifting and adding 128 bits are lowered by sbf_ld.py); whatever needs a missing function does not link.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
SOURCES = TOOLS.parent
PROGRAMS = ("coordinator", "authorizer", "treasurer", "mining_pool")
TARGET = ("--target", "bpfel-unknown-none", "-C", "target-cpu=v2", "-C", "opt-level=3", "-C", "panic=abort", "-C", "codegen-units=1")
BUILTINS = "#![feature(compiler_builtins)]\n#![compiler_builtins]\n#![no_std]\n#![allow(internal_features)]\n"
"""rustc wants a crate of this name beside `core`; ours is empty."""


class Toolchain:
    """One rustc with the libraries made for it. rustc: Debian's; cache: where libraries are kept, by rustc's version."""

    def __init__(self, rustc: str = "/usr/bin/rustc", *, cache: Path) -> None:
        said = subprocess.run([rustc, "-Vv"], capture_output=True, text=True, check=True).stdout
        version = re.search(r"^release: (\S+)", said, re.MULTILINE)
        llvm = re.search(r"^LLVM version: (\d+)\.(\d+)", said, re.MULTILINE)
        if version is None or llvm is None:
            message = f"{rustc} -Vv tells no version: {said}"
            raise SystemExit(message)

        self.version = version[1]
        self._rustc = rustc
        self._library = Path(f"/usr/src/rustc-{self.version}/library")
        self._cache = cache / self.version
        self._environment = {**os.environ, "RUSTC_BOOTSTRAP": "1", "SBF_LIBLLVM": f"libLLVM.so.{llvm[1]}.{llvm[2]}"}

    def build(self, name: str, out: Path) -> Path:
        """The shared object of one program, written to `out`."""
        self._libraries()
        common = self._cache / "libpsyche_common.rlib"
        self._compile("psyche_common", SOURCES / "common/src/lib.rs", common, "rlib", "-C", "linker-plugin-lto")
        found = out / f"{name}.so"
        out.mkdir(parents=True, exist_ok=True)
        linker = ("-C", "lto=fat", "-C", f"linker={TOOLS / 'sbf_ld.py'}", "--extern", f"psyche_common={common}")
        self._compile(name, SOURCES / name / "src/lib.rs", found, "cdylib", *linker)
        return found

    def _libraries(self) -> None:
        self._cache.mkdir(parents=True, exist_ok=True)
        builtins = self._cache / "builtins.rs"
        builtins.write_text(BUILTINS)
        for crate, source in (("core", self._library / "core/src/lib.rs"), ("compiler_builtins", builtins)):
            made = self._cache / f"lib{crate}.rlib"
            if not made.exists():
                if not source.exists():
                    message = f"{source} is missing; install it with: apt-get install --no-install-recommends rust-web-src"
                    raise SystemExit(message)
                part = made.with_name(f"{made.name}.{os.getpid()}")
                self._run("--crate-name", crate, "--edition", "2021", "--crate-type", "rlib", source, "-o", part,
                          "-C", "linker-plugin-lto", "--cap-lints", "allow")  # fmt: skip
                part.rename(made)

    def _compile(self, name: str, source: Path, out: Path, kind: str, *more: str | Path) -> None:
        part = out.with_name(f"{out.name}.{os.getpid()}")
        remap = f"--remap-path-prefix={SOURCES}=programs"
        self._run("--crate-name", name, "--edition", "2021", "--crate-type", kind, source, "-o", part, "-C", "overflow-checks=on",
                  "-D", "warnings", remap, f"--remap-path-prefix={self._library}=library", *more)  # fmt: skip
        part.rename(out)

    def _run(self, *arguments: str | Path) -> None:
        command = [self._rustc, *TARGET, "-L", str(self._cache), *map(str, arguments)]
        finished = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        if finished.returncode != 0:
            sys.stderr.write(finished.stderr)
            message = f"rustc refused {arguments[1]}"
            raise SystemExit(message)


def main() -> None:
    """Build, and compare where asked to."""
    parser = argparse.ArgumentParser(description="Build the on-chain programs.")
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS), metavar="PROGRAM", help=", ".join(PROGRAMS))
    parser.add_argument("--out", type=Path, default=SOURCES.parent / "psyche_backend_solana/programs", help="folder for the .so files")
    parser.add_argument("--cache", type=Path, default=TOOLS / ".cache", help="folder for compiled libraries")
    parser.add_argument("--check", type=Path, help="compare with the .so files of this folder; a difference is an error")
    arguments = parser.parse_args()
    toolchain = Toolchain(cache=arguments.cache)
    differing = []
    for name in arguments.programs:
        made = toolchain.build(name, arguments.out)
        content = made.read_bytes()
        sys.stdout.write(f"{hashlib.sha256(content).hexdigest()}  {made.name}  {len(content)} bytes\n")
        if arguments.check is not None and (arguments.check / made.name).read_bytes() != content:
            differing.append(name)
    if differing:
        message = f"rustc {toolchain.version} builds other bytes than those shipped for {', '.join(differing)}; run build.py and commit"
        raise SystemExit(message)


if __name__ == "__main__":
    main()
