"""Compiles all kernels ahead of time: `python -m psyche_optim_distro.backends.numba`.

Otherwise the first client on a machine compiles them, which takes about ten seconds.
"""

from __future__ import annotations

import sys
import time

from psyche_optim_distro.backends.numba import numba_available
from psyche_optim_distro.chunks.layout import build_layout


def main() -> int:
    """Compile, and return the exit code: 0, or 2 if numba cannot be used."""
    if not numba_available():
        sys.stderr.write("Error: this needs numba, and NUMBA_DISABLE_JIT must not be set; pip install 'psyche-core[fast]'\n")
        return 2

    from psyche_optim_distro.backends.numba.compress import NumbaCompressor
    from psyche_optim_distro.backends.numba.update import NumbaUpdater

    began = time.monotonic()
    for side in (1, 192):  # positions in 16 bits, and in 32
        layout = build_layout({"w": (side, side)}, chunk=side, topk=1)
        NumbaUpdater(layout)
        NumbaCompressor(layout)
    sys.stdout.write(f"DisTrO's kernels are compiled for this processor ({time.monotonic() - began:.1f} s)\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
