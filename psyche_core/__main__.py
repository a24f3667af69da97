"""`python -m psyche_core` is the `psyche` command; the local testnet starts its processes this way."""

from __future__ import annotations

from psyche_core.cli import main

if __name__ == "__main__":
    main()
