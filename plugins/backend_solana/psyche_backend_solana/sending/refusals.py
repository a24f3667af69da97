"""The meaning of a program's error number: its name and a sentence. No I/O.

The same number means different things to different programs, so the program that failed is needed. A program that calls another
one passes the other's number on; where only the outer one is known, an unknown number of the treasurer is looked up among the
coordinator's.
"""

from __future__ import annotations

from collections.abc import Mapping

from solders.pubkey import Pubkey

from psyche_backend_solana.layouts import authorizer, bond, mining_pool, tokens, treasurer
from psyche_backend_solana.layouts.errors import COMMON, COORDINATOR
from psyche_backend_solana.programs.addresses import TOKEN
from psyche_backend_solana.programs.in_use import Programs
from psyche_core.coordinator.errors import MEANINGS

_SENTENCES: Mapping[str, str] = {
    "LimitReached": "this authorization's limit of waiting members is reached; try again when one has left",
    "AlreadyExists": "it exists already",
    "NotAuthority": "only the owner may do that, and this wallet is not the owner",
    "WrongOwner": "an account belongs to the wrong program; is this the right run?",
    "WrongSize": "an account has the wrong size; is this the right run?",
    "WrongKind": "an account is of the wrong kind; is this the right run?",
    "WrongVersion": "an account has another version; update the older side",
}


def meaning(program: Pubkey | None, number: int, *, programs: Programs) -> tuple[str, str]:
    """Name and sentence of `Custom(number)` from an instruction of a program."""
    tables = {
        programs.authorizer: authorizer.ERRORS,
        programs.treasurer: treasurer.ERRORS,
        programs.mining_pool: mining_pool.ERRORS,
        programs.bond: bond.ERRORS,
    }
    own = tables.get(program) if program is not None else None
    if own is not None and number in own:
        return own[number]
    if program == TOKEN:
        return tokens.ERRORS.get(number, (f"Token{number}", f"the token program refused with number {number}"))
    if number in COMMON:
        name = COMMON[number]
        return name, _SENTENCES.get(name, "the program refused the accounts or data it was given")
    if program in (programs.coordinator, programs.treasurer) and number in COORDINATOR:
        name = COORDINATOR[number]
        return name, MEANINGS[name]

    return f"Custom({number})", f"the program {program} refused with number {number}"
