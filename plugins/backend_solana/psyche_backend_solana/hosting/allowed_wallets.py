"""The wallets that may join a run on a local chain: a file of `psyche server run --allow-list`."""

from __future__ import annotations

from pathlib import Path

from solders.pubkey import Pubkey

from psyche_backend_solana.settings import parse_address
from psyche_core.errors import UserError
from psyche_core.regular_files import read_entries


def read_wallets(path: Path) -> tuple[Pubkey, ...]:
    """Read a file with a wallet's address on each line, # for comments. Raises UserError. Blocking."""
    wallets: dict[Pubkey, None] = {}
    for number, word in read_entries(path, "the allow-list"):
        try:
            wallet = parse_address(word)
        except ValueError:
            expected = "the address of a wallet (`psyche solana address wallet.json`)"
            message = f"{path}, line {number}: expected {expected}, got {word[:80]!r}"
            raise UserError(message) from None
        if wallet == Pubkey.default():
            message = f"{path}, line {number}: this address means everybody; leave out --allow-list"
            raise UserError(message)
        wallets[wallet] = None
    return tuple(wallets)
