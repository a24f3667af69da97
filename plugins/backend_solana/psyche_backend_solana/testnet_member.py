"""What a member of a testnet needs on its local chain: a wallet with lamports in it.

Decided: the wallet's secret is the member's identity key, written beside it in Solana's form, so that a member that is started
again is the same one. The local chain gives lamports for the asking; no other chain does, and this is for no other.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import httpx2
from solders.keypair import Keypair

from psyche_backend_solana.localnet.settings import LAMPORTS_PER_SOL
from psyche_core.errors import BackendError
from psyche_core.hookspecs import MemberContext
from psyche_core.wire.signing import SecretKey

LAMPORTS = 10 * LAMPORTS_PER_SOL
CALL_SECONDS = 30.0


def member_options(member: MemberContext) -> list[str]:
    """Write the wallet, fill it, and return the options that lead to both. Blocking. Raises BackendError."""
    keypair = Keypair.from_seed(SecretKey.load(member.key_path).seed)
    path = member.key_path.with_suffix(".wallet.json")
    save_wallet(path, keypair)
    request = {"jsonrpc": "2.0", "id": 1, "method": "requestAirdrop", "params": [str(keypair.pubkey()), LAMPORTS]}
    try:
        answer = httpx2.post(member.address, json=request, timeout=CALL_SECONDS).raise_for_status().json()
    except (httpx2.HTTPError, ValueError) as error:
        message = f"the local chain at {member.address} gives no lamports: {error}"
        raise BackendError(message) from error
    if "result" not in answer:
        message = f"the local chain at {member.address} gives no lamports: {answer.get('error')}"
        raise BackendError(message)

    return ["--rpc", member.address, "--wallet-private-key-path", str(path)]


def save_wallet(path: Path, keypair: Keypair) -> None:
    """A wallet file as solana-keygen writes it, readable by its owner only; an old one is replaced."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(list(bytes(keypair)), file)
