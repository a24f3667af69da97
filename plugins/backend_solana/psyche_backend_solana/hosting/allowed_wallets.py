"""The wallets that may join a run on a local chain: a file of `psyche server run --allow-list`."""

from __future__ import annotations

from pathlib import Path

from solders.pubkey import Pubkey

from psyche_backend_solana.settings import parse_address
from psyche_core.errors import UserError
from psyche_core.regular_files import regular

MAX_BYTES = 1 << 20


def read_wallets(path: Path) -> tuple[Pubkey, ...]:
    """Read a file with a wallet's address on each line, # for comments. Raises UserError. Blocking."""
    try:
        with open(path, "rb", opener=regular) as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        message = f"cannot read the allow-list {path}: {error.strerror}"
        raise UserError(message) from error

    if len(text) > MAX_BYTES:
        message = f"the allow-list {path} is over {MAX_BYTES} bytes; expected one wallet a line"
        raise UserError(message)
    wallets: dict[Pubkey, None] = {}
    for number, line in enumerate(text.decode("utf-8", errors="replace").splitlines(), start=1):
        word = line.partition("#")[0].strip()
        if not word:
            continue

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
