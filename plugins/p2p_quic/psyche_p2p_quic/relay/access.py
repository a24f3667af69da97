"""Decides who may use a relay. A policy is asked when a client has proved its id, and again when the policy changes. Pure."""

from __future__ import annotations

import enum
import hmac
from collections.abc import Iterable
from typing import Protocol


class Verdict(enum.Enum):
    """The answer about one id."""

    ALLOW = "allow"
    WAIT = "wait"  # not now, but perhaps soon: ask again when the policy has changed
    DENY = "deny"


class Access(Protocol):
    """A policy.

    refusal: the reason sent to a refused client; at most 127 bytes. knows_owners: whether clients are admitted by key. Nobody can
    then have many admitted keys, so their number for each address need not be limited.
    """

    refusal: str
    knows_owners: bool

    def judge(self, key: bytes, token: str | None) -> Verdict:
        """Return whether the owner of the id `key` may use the relay now. token: sent by the client."""
        ...


class OpenAccess:
    """Admits everybody."""

    refusal = ""
    knows_owners = False

    def judge(self, key: bytes, token: str | None) -> Verdict:  # noqa: ARG002  # a policy's signature
        """Return ALLOW."""
        return Verdict.ALLOW


class TokenAccess:
    """Admits clients that know one of the tokens. Comparing takes equally long for every wrong token of equal length."""

    refusal = "this relay needs a token: not authorized"
    knows_owners = False

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = [token.encode() for token in tokens]

    def replace(self, tokens: Iterable[str]) -> None:
        """Accept only these tokens from now on."""
        self._tokens = [token.encode() for token in tokens]

    def judge(self, key: bytes, token: str | None) -> Verdict:  # noqa: ARG002  # a policy's signature
        """Return ALLOW for a known token, else DENY."""
        given = (token or "").encode()
        return Verdict.ALLOW if any(hmac.compare_digest(given, known) for known in self._tokens) else Verdict.DENY


class MemberAccess:
    """Admits members of runs. Nobody is a member before the first call of `replace`.

    Others get a request to wait, since a client often connects some moments before the coordinator lists it as a member.
    """

    refusal = "this relay serves the members of a run only: not authorized"
    knows_owners = True

    def __init__(self) -> None:
        self.members: frozenset[bytes] = frozenset()

    def replace(self, members: Iterable[bytes]) -> bool:
        """Accept only these members from now on; return whether that is a change."""
        before, self.members = self.members, frozenset(members)
        return before != self.members

    def judge(self, key: bytes, token: str | None) -> Verdict:  # noqa: ARG002  # a policy's signature
        """Return ALLOW for a member, else WAIT."""
        return Verdict.ALLOW if key in self.members else Verdict.WAIT
