"""Names and addresses of the on-chain programs: the only place in Python that has them (in Rust: programs/common/src/ids.rs).

The addresses of our programs are for local chains. Their key pairs follow from public seeds (the SHA-256 of `psyche/NAME/local
chains`), so anybody can deploy there. On a chain that others use, too, use addresses of your own, and build the programs with
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from solders.pubkey import Pubkey

COORDINATOR: Final = Pubkey.from_string("4t6nXm8shbyAsZTLvdCPi11MxKDXktwSoxcTz38NcqAd")
AUTHORIZER: Final = Pubkey.from_string("5CYB3VexRVB2HAJzmy5gF8fG61VPAZv6dZDHrFndTJVk")
TREASURER: Final = Pubkey.from_string("5ZFQNB2VADQm8TPiLVoCsqUEAFXFBtkB5aeQmkq2whaF")
MINING_POOL: Final = Pubkey.from_string("4ssexxnaGG8Tm3bBW3Aqx65RQTx4xeAjQiKvoihd6wEY")
BOND: Final = Pubkey.from_string("AYQUQT9cP41xsGDxFGgz3rUtu3tkkyV7SYoEDN47yxRe")
PROGRAMS: Final[Mapping[str, Pubkey]] = MappingProxyType(
    {"coordinator": COORDINATOR, "authorizer": AUTHORIZER, "treasurer": TREASURER, "mining_pool": MINING_POOL, "bond": BOND}
)

SYSTEM: Final = Pubkey.from_string("11111111111111111111111111111111")
TOKEN: Final = Pubkey.from_string("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA")
ASSOCIATED_TOKEN: Final = Pubkey.from_string("ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL")
INSTRUCTIONS_SYSVAR: Final = Pubkey.from_string("Sysvar1nstructions1111111111111111111111111")
