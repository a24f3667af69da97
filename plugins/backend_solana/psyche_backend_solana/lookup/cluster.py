"""Decides whether the shipped addresses of the programs may be used at an endpoint's cluster.

The keys of these addresses follow from public seeds, so on a chain that others use, too, anybody can deploy another program
there. The addresses are used only on a private chain: every endpoint is on this machine or in a private network, or the user gave
`--own-chain`, and the genesis hash is not one of a public cluster. Otherwise the error says which options to give.
"""

from __future__ import annotations

import ipaddress
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from psyche_backend_solana.programs.addresses import PROGRAMS
from psyche_backend_solana.programs.in_use import Programs
from psyche_backend_solana.rpc import methods
from psyche_backend_solana.rpc.client import Rpc
from psyche_backend_solana.rpc.endpoints import Endpoint
from psyche_core.errors import ConfigError

PUBLIC_CLUSTERS: Final = MappingProxyType(
    {
        "5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp": "mainnet-beta",
        "EtWTRABZaYq6iMfeYKouRu166VU2xqa1": "devnet",
        "4uhcVJyU9pJkvQyUS88uRDiswHScSCkQ": "testnet",
    }
)
"""Cluster names by the first 32 characters of the genesis hash, as in CAIP-2."""
_CAIP_LETTERS = 32


async def refuse_shared_ids(rpc: Rpc, programs: Programs, *names: str, timeout: float) -> None:
    """Raise ConfigError if one of these programs is at its shipped address and the chain is not private. Also raises RpcError.

    names: names in PROGRAMS.
    """
    shipped = [name for name in names if getattr(programs, name) == PROGRAMS[name]]
    if not shipped:
        return

    cluster = PUBLIC_CLUSTERS.get((await methods.genesis_hash(rpc, timeout=timeout))[:_CAIP_LETTERS])
    if cluster is None and (programs.own_chain or all(is_near(endpoint) for endpoint in rpc.endpoints)):
        return

    options = ", ".join(f"--{name.replace('_', '-')}-program-id" for name in shipped)
    where = f"the public cluster {cluster}" if cluster is not None else "a chain that is not on this machine or a private network"
    otherwise = "" if cluster is not None else "; if nobody else can deploy programs on that chain, give --own-chain"
    message = (
        f"the shipped address of the program {shipped[0]} was used on {where}, where anybody can deploy to it; give {options} "
        f"(`psyche solana programs --keypairs` makes addresses of your own){otherwise}"
    )
    raise ConfigError(message)


def is_near(endpoint: Endpoint) -> bool:
    """Whether an endpoint is on this machine or in a private network, by its address; a name counts only as `localhost`."""
    host = urlsplit(endpoint.http).hostname or ""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False

    return address.is_loopback or address.is_private or address.is_link_local
