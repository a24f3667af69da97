"""AdamW beside DisTrO with its settings, on the local testnet's model and Shakespeare: `psyche bench convergence` for it.

python -m benchmarks.convergence [--seeds 3] [--steps 200] [--json] [any other option of `psyche bench convergence`]
"""

from __future__ import annotations

import sys

from benchmarks import llama
from psyche_core.cli import main as psyche


def main() -> None:
    """Call the command with the example's model and data, which is made when it is not there."""
    llama.tokens("training")
    base = ["--state", str(llama.EXAMPLE / "state.toml"), "--data", str(llama.EXAMPLE / "data")]
    psyche(["bench", "convergence", *base, *sys.argv[1:]])


if __name__ == "__main__":
    main()
