"""How many messages of each peer a message log keeps, and whose messages are passed on to others.

A peer's own messages and those that it forwards for others are counted separately, so an honest member that forwards another
member's flood does not lose its connection.

If messages are checked, only those signed by members are passed on (announced, sent or compared). Anybody can make keys and sign
with them, so a valid signature alone is not enough. Other members may know a new member before us: a message of an unknown key is
read, and is passed on once the key belongs to a member; a peer may send us only few of these. A member that has left counts as a
member until the messages of its time have expired. Only a limited number of an author's messages is passed on, so that a member
cannot make others multiply its signed junk; further messages are only read. An author that has used up this share is left out of
digests, because it could send each of us different messages and so make us compare again and again.

The messages themselves are in `message_log`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from psyche_core.interfaces.transport import Opened


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """Limits for the messages kept of each peer.

    Attributes:
        own_messages: live messages that a peer may send as its own; more is an offence.
        own_bytes: total size of these messages; more is an offence.
        relayed_messages: live messages that a peer may forward for others; more are ignored.
        relayed_bytes: total size of these messages; more are ignored.
        unknown_messages: relayed messages that keys of non-members signed, and expired ones that the peer relayed with a higher
            tag since we last expired messages, together; once there are so many, all that the peer relays is ignored, unchecked.
        passed_messages: one author's live messages that are passed on. An honest author has a few for each live round.
        false_messages: the peer's false messages that are an offence. A message is false if it cannot be opened, or if the peer
            sent it as its own although another key signed it, or although it is an expired one with a higher tag.
        tag_ahead: how far a peer's tag may be above the newest tag that we used or expired; a higher one is lowered to that.
        remembered: number of ids kept of expired messages, so that these are not read twice.
    """

    own_messages: int = 1024
    own_bytes: int = 8 * 2**20
    relayed_messages: int = 8192
    relayed_bytes: int = 32 * 2**20
    unknown_messages: int = 256
    passed_messages: int = 256
    false_messages: int = 3
    tag_ahead: int = 64
    remembered: int = 65_536


class Verdict(Enum):
    """Result of adding a message from a peer."""

    NEW = "kept, and waiting to be read"
    KNOWN = "had it already"
    EXPIRED = "its tag has expired"
    IGNORED = "the peer's share for passing on is full"
    FALSE = "cannot be opened, or its signer is not the peer that sent it as its own"
    OFFENCE = "the peer's share for its own messages is exceeded, or it sent several false ones"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A live message.

    id: SHA-256 of the message. via: the peer that sent it to us, None for our own. relayed: whether `via` only forwarded it.
    opened: the result of the check, None without one. passable: whether we may pass it on. unknown: forwarded to us from a key
    that was not a member's; it becomes passable if the key becomes a member's.
    """

    id: bytes
    tag: int
    message: bytes
    via: bytes | None
    relayed: bool = False
    opened: Opened | None = None
    passable: bool = True
    unknown: bool = False


class PeerShares:
    """Counts the live messages of each peer and author. own: our p2p key, which always counts as a member's.

    offence: the reason for the last Verdict.OFFENCE.
    """

    def __init__(self, limits: LogLimits, *, own: bytes) -> None:
        self.offence: str = ""
        self._limits = limits
        self._own = own
        self._members = frozenset((own,))
        self._former: dict[bytes, int] = {}  # members that left, and the newest tag at that time
        self._false: Counter[bytes] = Counter()
        self._unknown: Counter[bytes] = Counter()  # by the peer that sent them
        self._outdated: Counter[bytes] = Counter()  # by the peer that sent them, since the last expiry
        self._passed: Counter[bytes] = Counter()  # by author
        self._messages: Counter[tuple[bytes | None, bool]] = Counter()
        self._bytes: Counter[tuple[bytes | None, bool]] = Counter()
        self._expired_before: int | None = None

    @property
    def members(self) -> int:
        """Number of members, ourselves included."""
        return len(self._members)

    def set_members(self, members: Collection[bytes], *, newest: int | None) -> None:
        """Replace the members. newest: newest tag so far, None without any."""
        named = frozenset((*members, self._own))
        for gone in self._members - named:
            self._former[gone] = -1 if newest is None else newest
        self._members = named
        self._former = {key: tag for key, tag in self._former.items() if key not in named}
        self._false = Counter({peer: count for peer, count in self._false.items() if peer in named})

    def is_member(self, origin: bytes) -> bool:
        """Return whether this key is a member, or was one and messages of its time are still live."""
        return origin in self._members or origin in self._former

    def may_pass(self, origin: bytes) -> bool:
        """Return whether another message of this author may be passed on."""
        return self.is_member(origin) and self.may_pass_more(origin)

    def may_pass_more(self, origin: bytes) -> bool:
        """Return whether the author's share of messages that are passed on has room."""
        return self._passed[origin] < self._limits.passed_messages

    def refusal(self, peer: bytes, size: int, *, relayed: bool) -> Verdict | None:
        """Return the verdict if a peer's share has no room for a message of `size` bytes; None if it has."""
        limits, account = self._limits, (peer, relayed)
        if relayed and self._unknown[peer] + self._outdated[peer] >= limits.unknown_messages:
            return Verdict.IGNORED

        most_messages = limits.relayed_messages if relayed else limits.own_messages
        most_bytes = limits.relayed_bytes if relayed else limits.own_bytes
        if self._messages[account] < most_messages and self._bytes[account] + size <= most_bytes:
            return None

        if relayed:
            return Verdict.IGNORED

        self.offence = "the peer sent more live messages of its own than its share"
        return Verdict.OFFENCE

    def note_false(self, peer: bytes, reason: str) -> Verdict:
        """Count a message that no honest member sends."""
        self._false[peer] += 1
        if self._false[peer] < self._limits.false_messages:
            return Verdict.FALSE

        del self._false[peer]
        self.offence = f"it sent {self._limits.false_messages} false messages; the last: {reason}"
        return Verdict.OFFENCE

    def note_outdated(self, peer: bytes, *, relayed: bool) -> Verdict:
        """Count an expired message that came with a higher tag, because each of these costs a check."""
        if not relayed:
            return self.note_false(peer, "it sent an expired message of its own with a higher tag")

        self._outdated[peer] += 1
        return Verdict.EXPIRED

    def count(self, entry: LogEntry, by: int) -> None:
        """Add a live message (+1) to what its sender and its author have used of their shares, or remove it (-1)."""
        account = (entry.via, entry.relayed)
        self._messages[account] += by
        self._bytes[account] += by * len(entry.message)
        if not self._messages[account]:
            del self._messages[account], self._bytes[account]
        if entry.passable and entry.opened is not None:
            self._passed[entry.opened.origin] += by
            if not self._passed[entry.opened.origin]:
                del self._passed[entry.opened.origin]
        if entry.unknown and entry.via is not None:
            self._unknown[entry.via] += by
            if not self._unknown[entry.via]:
                del self._unknown[entry.via]

    def expire(self, before: int) -> None:
        """Note that messages with tags lower than `before` are gone. Forget members that left by then, and old offences."""
        if before != self._expired_before:
            self._outdated.clear()
        self._expired_before = before
        self._former = {key: tag for key, tag in self._former.items() if tag >= before}
