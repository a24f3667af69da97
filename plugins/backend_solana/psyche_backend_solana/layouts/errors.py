"""Names of the programs' errors, by the number in a transaction's `Custom(n)`.

1 to 20 mean the same in all programs (programs/common/src/error.rs). The coordinator's own numbers follow the order of
`psyche_core.coordinator.errors`, so an error has the same name on a chain as anywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from psyche_core.coordinator.errors import MEANINGS

FIRST_OWN = 100
"""First number of a program's own errors."""

COMMON: Mapping[int, str] = MappingProxyType(
    dict(
        enumerate(
            (
                "BadInstruction",
                "NotEnoughAccounts",
                "MissingSigner",
                "NotWritable",
                "WrongOwner",
                "WrongSize",
                "WrongAddress",
                "WrongKind",
                "WrongVersion",
                "AlreadyExists",
                "Overflow",
                "NotAuthority",
                "WrongMint",
                "WrongTokenOwner",
                "TooLong",
                "CallFailed",
                "TooManyAccounts",
                "DelegatedTokens",
                "SameAccount",
                "LimitReached",
            ),
            start=1,
        )
    )
)
"""Errors that all programs share, by number."""

COORDINATOR: Mapping[int, str] = MappingProxyType(dict(enumerate(MEANINGS, start=FIRST_OWN)))
"""The coordinator's errors by number."""
