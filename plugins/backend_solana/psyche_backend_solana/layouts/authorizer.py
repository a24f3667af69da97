"""The authorizer: its accounts as values, its instructions as bytes. Docs: docs/reference/solana-programs.md, Authorizer."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from solders.account import Account
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from psyche_backend_solana.layouts import header
from psyche_backend_solana.programs.addresses import AUTHORIZER, SYSTEM
from psyche_core.errors import WireError

MAGIC: Final = b"PsycheAu"
VERSION: Final = 1
BYTES: Final = 192
MAX_DELEGATES: Final = 256
MAX_SCOPE: Final = 32
JOIN_SCOPE: Final = "CoordinatorJoinRun"
EVERYBODY: Final = Pubkey.default()

ERRORS: Final[Mapping[int, tuple[str, str]]] = MappingProxyType(
    {
        100: ("StillActive", "an authorization is closed only after it was switched off"),
        101: ("BadScope", "a scope is a text of 1 to 32 bytes without NUL"),
        102: ("TooManyDelegates", "an authorization names at most 256 delegates"),
    }
)
"""The program's errors by number, as in Custom(n): name and sentence."""


@dataclass(frozen=True, slots=True)
class Authorization:
    """A right that a grantor gives. grantee: EVERYBODY for anyone. delegates: wallets to which the grantee extends the right.

    limit: maximum number of its users that may be pending at the same time, 0 for no limit. With EVERYBODY: a member may join by
    this authorization only while fewer than this many members in total are pending.
    """

    bump: int
    active: bool
    grantor: Pubkey
    grantee: Pubkey
    scope: str
    delegates: tuple[Pubkey, ...] = ()
    limit: int = 0

    def allows(self, user: Pubkey) -> bool:
        """Whether it is active and for this user."""
        return self.active and (self.grantee in (EVERYBODY, user) or user in self.delegates)


def address(grantor: Pubkey, grantee: Pubkey, scope: str = JOIN_SCOPE, *, program: Pubkey = AUTHORIZER) -> Pubkey:
    """The authorization's account. Raises ValueError if the scope is empty or over 32 bytes."""
    _scope(scope)
    return Pubkey.find_program_address([b"authorization", bytes(grantor), bytes(grantee), scope.encode()], program)[0]


def parse(account: Account, *, program: Pubkey = AUTHORIZER) -> Authorization:
    """Parse the account. Raises WireError if it is not an account of the authorizer, or has another version."""
    data = header.content(account, program, magic=MAGIC, version=VERSION, size=BYTES, what="authorization")
    bump, active, scope_length = data[12:15]
    (count,) = struct.unpack_from("<I", data, 112)
    if len(data) != BYTES + 32 * count or scope_length > MAX_SCOPE:
        message = f"this authorization names {count} delegates in {len(data)} bytes, expected {BYTES + 32 * count}"
        raise WireError(message)
    return Authorization(
        bump=bump,
        active=active == 1,
        grantor=header.key(data, 16),
        grantee=header.key(data, 48),
        scope=data[80 : 80 + scope_length].decode("utf-8", errors="replace"),
        delegates=tuple(header.key(data, BYTES + 32 * slot) for slot in range(count)),
        limit=int.from_bytes(data[120:122], "little"),
    )


def create(
    payer: Pubkey, grantor: Pubkey, *, grantee: Pubkey, scope: str = JOIN_SCOPE, program: Pubkey = AUTHORIZER
) -> Instruction:
    """Creates an authorization, not active yet. Signers: payer, grantor."""
    accounts = [
        AccountMeta(payer, True, True),
        AccountMeta(grantor, True, False),
        AccountMeta(address(grantor, grantee, scope, program=program), False, True),
        AccountMeta(SYSTEM, False, False),
    ]
    return Instruction(program, b"\0" + bytes(grantee) + bytes([len(scope.encode())]) + _scope(scope), accounts)


def grantor_update(
    grantor: Pubkey, authorization: Pubkey, *, active: bool, limit: int | None = None, program: Pubkey = AUTHORIZER
) -> Instruction:
    """Switches an authorization on or off. Signer: grantor.

    limit: maximum number of members that may be pending by it, 0 for no limit, None keeps the old one. Raises ValueError above
    65,535.
    """
    if limit is not None and not 0 <= limit < 2**16:
        message = f"expected a limit of 0 to 65,535 members, got {limit}"
        raise ValueError(message)
    more = b"" if limit is None else limit.to_bytes(2, "little")
    accounts = [AccountMeta(grantor, True, False), AccountMeta(authorization, False, True)]
    return Instruction(program, bytes([1, active]) + more, accounts)


def grantee_update(
    payer: Pubkey,
    grantee: Pubkey,
    *,
    authorization: Pubkey,
    add: Sequence[Pubkey] = (),
    clear: bool = False,
    program: Pubkey = AUTHORIZER,
) -> Instruction:
    """Adds delegates; removes all old ones first if `clear` is True. Signers: payer, grantee.

    About 30 fit into one transaction.
    """
    if len(add) > 255:
        message = f"{len(add)} delegates in one instruction; at most 255"
        raise ValueError(message)
    accounts = [
        AccountMeta(payer, True, True),
        AccountMeta(grantee, True, False),
        AccountMeta(authorization, False, True),
        AccountMeta(SYSTEM, False, False),
    ]
    return Instruction(program, bytes([2, clear, len(add)]) + b"".join(map(bytes, add)), accounts)


def close(grantor: Pubkey, spill: Pubkey, *, authorization: Pubkey, program: Pubkey = AUTHORIZER) -> Instruction:
    """Closes an inactive authorization; its rent goes to `spill`. Signer: grantor."""
    accounts = [AccountMeta(grantor, True, False), AccountMeta(spill, False, True), AccountMeta(authorization, False, True)]
    return Instruction(program, b"\3", accounts)


def _scope(scope: str) -> bytes:
    if not scope:
        message = "a scope is empty; expected a text of 1 to 32 bytes"
        raise ValueError(message)
    return header.text(scope, MAX_SCOPE, "scope")
