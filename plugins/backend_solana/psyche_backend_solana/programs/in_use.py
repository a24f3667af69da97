"""The addresses of the programs on the chain in use."""

from __future__ import annotations

from dataclasses import dataclass

from solders.pubkey import Pubkey

from psyche_backend_solana.programs.addresses import AUTHORIZER, BOND, COORDINATOR, MINING_POOL, TREASURER


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Addresses of the programs; by default those of local chains. own_chain: nobody else can deploy programs on the chain."""

    coordinator: Pubkey = COORDINATOR
    authorizer: Pubkey = AUTHORIZER
    treasurer: Pubkey = TREASURER
    mining_pool: Pubkey = MINING_POOL
    bond: Pubkey = BOND
    own_chain: bool = False
