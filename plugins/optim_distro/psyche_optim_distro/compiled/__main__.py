"""Compile everything now: `python -m psyche_optim_distro.compiled`; else a machine's first client does, in ten seconds or so."""

from __future__ import annotations

import sys
import time

from psyche_optim_distro.compiled import can_compile
from psyche_optim_distro.layout import build_layout


def main() -> int:
    """Exit code 2 where nothing can be compiled."""
    if not can_compile():
        sys.stderr.write("Error: this needs numba, and NUMBA_DISABLE_JIT not set; pip install 'psyche-core[fast]'\n")
        return 2

    from psyche_optim_distro.compiled.finder import CompiledFinder
    from psyche_optim_distro.compiled.mover import CompiledMover

    began = time.monotonic()
    for side in (1, 192):  # places in 16 bits, and in 32
        layout = build_layout({"w": (side, side)}, chunk=side, topk=1)
        CompiledMover(layout)
        CompiledFinder(layout)
    sys.stdout.write(f"DisTrO's work is compiled for this processor ({time.monotonic() - began:.1f} s)\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
