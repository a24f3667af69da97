#!/usr/bin/env python3
"""Final code generation and link of a Solana program, for machines without Solana's platform-tools. rustc calls it as its linker.

It gets the program as one LLVM module, into which `-C lto=fat` has merged `core`. It rewrites what the BPF backend cannot do
(lowering.py), lets rustc's libLLVM emit one object (llvm.py), checks it (object_file.py) and writes the file that Solana's loader
accepts (shared_object.py). Anything unknown is an error, and then no file is written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from llvm import ASSEMBLY, LinkError, Llvm
from lowering import lower
from object_file import ObjectFile
from shared_object import VERSIONS, link

IGNORED = ("--export-symbols", "-L")


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse rustc's arguments, and those that build.py adds with -C link-arg."""
    parser = argparse.ArgumentParser(prog="sbf_ld", allow_abbrev=False)
    parser.add_argument("-o", dest="out", type=Path, required=True)
    parser.add_argument("--cpu", default="v2")
    parser.add_argument("--cpu-features", default="")
    parser.add_argument("--libllvm", required=True, help="file name of the libLLVM that rustc uses")
    parser.add_argument("--sbpf", type=int, choices=VERSIONS, default=0, help="version of sBPF")
    parser.add_argument("--assembly", type=Path, help="write the program's assembly there")
    for option in IGNORED:
        parser.add_argument(option)
    known, others = parser.parse_known_args(arguments)
    # other arguments are options for other linkers, rlibs (LTO has merged them already) and rustc's list of exports
    known.modules = [Path(name) for name in others if not name.startswith("-") and not name.endswith((".rlib", "symbols.o"))]
    return known


def run(options: argparse.Namespace) -> None:
    """Link. Raises LinkError."""
    if len(options.modules) != 1:
        message = f"expected one module, got {[str(name) for name in options.modules]} (-C lto=fat -C codegen-units=1)"
        raise LinkError(message)
    llvm = Llvm(options.libllvm, cpu=options.cpu, features=options.cpu_features)
    module = llvm.parse(options.modules[0].read_bytes())
    lower(llvm, module)
    program = ObjectFile(llvm.emit(module))
    if options.assembly:
        options.assembly.write_bytes(llvm.emit(module, ASSEMBLY))
    options.out.write_bytes(link(program, options.sbpf))


def main() -> None:
    """Run the command line."""
    try:
        run(parse(sys.argv[1:]))
    except (LinkError, OSError) as error:  # OSError: a file or libLLVM is missing
        sys.exit(f"sbf_ld: error: {error}")


if __name__ == "__main__":
    main()
