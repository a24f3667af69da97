"""Prepares a testnet member for its local chain: a wallet with lamports, and all of the chain's RPC providers.

The wallet's secret is the member's identity key, written beside it in Solana's format, so that a restarted member has the same
wallet. Only a local chain gives lamports to everybody and lets its providers be closed, so this module works with local chains
only.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx2
from solders.keypair import Keypair

from psyche_backend_solana.localnet.settings import LAMPORTS_PER_SOL
from psyche_core.errors import BackendError
from psyche_core.hookspecs import MemberContext
from psyche_core.wire.signing import SecretKey

LAMPORTS = 10 * LAMPORTS_PER_SOL
CALL_SECONDS = 30.0
_OTHERS = ("--rpc-2", "--rpc-3")


def member_options(member: MemberContext) -> list[str]:
    """Write the wallet, fund it, and return the client's options for wallet and chain. Blocking. Raises BackendError."""
    keypair = Keypair.from_seed(SecretKey.load(member.key_path).seed)
    path = member.key_path.with_suffix(".wallet.json")
    save_wallet(path, keypair)
    _ask(member.address, "requestAirdrop", str(keypair.pubkey()), LAMPORTS)
    providers = [f"http://{node['rpc']}" for node in _ask(member.address, "getClusterNodes")]
    others = [provider for provider in providers if provider != member.address][: len(_OTHERS)]
    more = [part for pair in zip(_OTHERS, others, strict=False) for part in pair]
    return ["--rpc", member.address, *more, "--own-chain", "--wallet-private-key-path", str(path)]


def lose_route(address: str) -> str:
    """Make the RPC provider at an address answer 503 and its websockets silent; return a sentence about it.

    Blocking. Raises BackendError.
    """
    _ask(address, "psyche_setFaults", {"http_status": 503, "websocket": "silent"})
    return f"the RPC provider at {address} answers 503 from now on, and its websockets are silent"


def _ask(address: str, method: str, *params: Any) -> Any:
    """The result of a request to the local chain. Raises BackendError."""
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    try:
        answer = httpx2.post(address, json=request, timeout=CALL_SECONDS).raise_for_status().json()
    except (httpx2.HTTPError, ValueError) as error:
        message = f"the local chain at {address} does not answer {method}: {error}"
        raise BackendError(message) from error
    if "result" not in answer:
        message = f"the local chain at {address} refuses {method}: {answer.get('error')}"
        raise BackendError(message)

    return answer["result"]


def save_wallet(path: Path, keypair: Keypair) -> None:
    """A wallet file as solana-keygen writes it, readable by its owner only; an old one is replaced."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(list(bytes(keypair)), file)
