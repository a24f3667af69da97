"""A Solana chain in this process: LiteSVM behind a real validator's JSON-RPC and websockets, for tests, testnets and learning."""

from __future__ import annotations

from psyche_backend_solana.localnet.chain import LocalChain
from psyche_backend_solana.localnet.ledger.clock import Instant
from psyche_backend_solana.localnet.rpc.faults import Faults, FaultSwitch
from psyche_backend_solana.localnet.serving.provider import RpcProvider
from psyche_backend_solana.localnet.settings import LAMPORTS_PER_SOL, ChainSettings, Limits

__all__ = ["LAMPORTS_PER_SOL", "ChainSettings", "FaultSwitch", "Faults", "Instant", "Limits", "LocalChain", "RpcProvider"]
