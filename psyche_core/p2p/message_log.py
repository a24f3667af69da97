"""The small messages of a run that one member knows: which are live, which peer sent them, and which the client has read.

Every transport has one such log. The id of a message is the SHA-256 of its bytes. A message is live until its tag expires; until
then it can be sent to a peer that does not have it. A peer's own messages and those that it forwards for others are counted
separately, so an honest member that forwards the flood of another one does not lose its connection. Tags from peers that are far
above ours are lowered. A message that expired unread is forgotten completely, so it may be received again. The caller interprets
the messages; there is no I/O here.

A peer that forwards a message chooses the tag it sends with it. With a check, the tag is brought between those that the signed
content allows. Otherwise a liar could send an honest member's old messages with new tags, and use up that member's share with
them, or let its new ones expire early. The ids of past messages do not prevent this: a new process knows none, and a flood
displaces them.

With a check, only messages signed by members are passed on (told, sent or compared). Anybody can make keys and sign with them, so
a right signature alone is not enough. Other members may know a new member before us: a message of an unknown key is read, and
passed on once the key is a member's; a peer may send us few of these. A member that has left counts as a member until the
messages of its time have expired. Only a limited number of an author's messages is passed on, so that a member cannot have its
signed junk multiplied either; further ones are only read. An author that has used up this share is left out of digests, because
it could send each of us other messages and keep us comparing.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import Enum

from psyche_core.errors import WireError
from psyche_core.interfaces.transport import Opened

PREFIX_BYTES = 16
"""Number of bytes of a message id that members send when they compare their messages."""

_MIN_SOURCES = 3
"""Number of members from which the same message may be requested in a small run. In a larger one it is more than a third of the
members. A member may report a message and then not send it. As long as no more than a third of the members do so, as the quorum
assumes, at least one of those asked is honest."""

_MAX_TRACKED_REQUESTS = 8192
"""Maximum number of messages for which it is stored from whom they were requested. The oldest entry is removed first."""

_RECEIVED = 8192
"""Maximum number of newest messages of others that `take_received` returns. Not every transport calls it."""


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


class MessageLog:
    """Live messages by id, and which of them are unread. own: our p2p key.

    generation: grows whenever messages are dropped, so that code that stores ids knows when to remove some. offence: the reason
    for the last Verdict.OFFENCE.
    """

    def __init__(self, *, own: bytes = b"", limits: LogLimits | None = None) -> None:
        self.generation: int = 0
        self.offence: str = ""
        self._own = own
        self._check: Callable[[bytes], Opened] | None = None
        self._members = frozenset((own,))
        self._former: dict[bytes, int] = {}  # members that left, and the newest tag at that time
        self._false: Counter[bytes] = Counter()
        self._unknown: Counter[bytes] = Counter()  # by the peer that sent them
        self._outdated: Counter[bytes] = Counter()  # by the peer that sent them, since the last expiry
        self._passed: Counter[bytes] = Counter()  # by author
        self._limits = limits or LogLimits()
        self._live: dict[bytes, LogEntry] = {}
        self._unread: deque[bytes] = deque()
        self._past: OrderedDict[bytes, None] = OrderedDict()
        self._messages: Counter[tuple[bytes | None, bool]] = Counter()
        self._bytes: Counter[tuple[bytes | None, bool]] = Counter()
        self._expired_before: int | None = None
        self._newest: int | None = None
        self._digest: bytes | None = None
        self._by_prefix: dict[bytes, bytes] = {}
        self._requested: OrderedDict[bytes, tuple[bytes, ...]] = OrderedDict()  # the members asked; a tuple is small
        self._received: deque[bytes] = deque(maxlen=_RECEIVED)

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._live

    def check_with(self, check: Callable[[bytes], Opened]) -> None:
        """Check messages of others from now on. check: opens a message, or raises WireError."""
        self._check = check

    def set_members(self, members: Collection[bytes]) -> None:
        """Replace the members, whose messages may be passed on. Our own key always counts as a member."""
        named = frozenset((*members, self._own))
        for gone in self._members - named:
            self._former[gone] = -1 if self._newest is None else self._newest
        self._members = named
        self._former = {key: tag for key, tag in self._former.items() if key not in named}
        self._false = Counter({peer: count for peer, count in self._false.items() if peer in named})
        self._pass_on_what_waits()

    def add_own(self, message: bytes, *, tag: int) -> LogEntry | None:
        """Add a message of our own client. Returns None if it is already live or its tag has expired."""
        message_id = hashlib.sha256(message).digest()
        if message_id in self._live or self._is_expired(tag):
            return None

        self._advance(tag)
        entry = LogEntry(message_id, tag, message, None, opened=None if self._check is None else Opened(self._own))
        self._insert(entry)
        return entry

    def add_from(self, peer: bytes, message: bytes, *, tag: int, relayed: bool) -> tuple[Verdict, bytes]:
        """Add a message that `peer` sent, and return the verdict and the message's id.

        relayed: whether the peer forwards it for others.
        """
        message_id = hashlib.sha256(message).digest()
        if message_id in self._live or message_id in self._past:
            return Verdict.KNOWN, message_id

        if self._is_expired(tag):
            return Verdict.EXPIRED, message_id

        refusal = self._over_share(peer, message, relayed=relayed)
        if refusal is not None:
            return refusal, message_id

        opened = None
        passable, unknown = True, False
        if self._check is not None:
            try:
                opened = self._check(message)
            except WireError as error:
                return self._note_false(peer, str(error)), message_id

            if not relayed and opened.origin != peer:
                return self._note_false(peer, "it sent as its own a message that another key signed"), message_id

            relayed = opened.origin != peer
            refusal = self._over_share(peer, message, relayed=relayed)
            if refusal is not None:
                return refusal, message_id

            if opened.tags is not None:
                lowest, highest = opened.tags
                tag = max(lowest, min(tag, highest))
            if self._is_expired(tag):
                return self._note_outdated(peer, relayed=relayed), message_id

            unknown = relayed and not self._is_member(opened.origin)
            passable = self._may_pass(opened.origin)

        entry = LogEntry(message_id, self._believable(tag), message, peer, relayed, opened, passable, unknown)
        self._insert(entry)
        self._unread.append(message_id)
        if entry.passable:
            self._received.append(message_id)
        return Verdict.NEW, message_id

    def take_received(self) -> list[LogEntry]:
        """Return the live messages received from peers since the last call that may be passed on."""
        received = tuple(self._received)
        self._received.clear()
        return [entry for message_id in received if (entry := self._live.get(message_id)) is not None]

    def find(self, prefix: bytes) -> LogEntry | None:
        """Return the live message with this shortened id (PREFIX_BYTES bytes), or None if there is none."""
        message_id = self._by_prefix.get(prefix)
        return None if message_id is None else self._live[message_id]

    def may_pass_on(self, message_id: bytes) -> bool:
        """Whether other members may get this message from us."""
        entry = self._live.get(message_id)
        return entry is not None and entry.passable

    def claim_request(self, prefix: bytes, peer: bytes) -> bool:
        """Decide whether to request a message from a member that reports to have it; if so, record the request.

        True only for the first members that report the same message, as many as may be asked for it (more than a third of all,
        at least _MIN_SOURCES), once for each. False for a live message.
        """
        asked = self._requested.get(prefix, ())
        if prefix in self._by_prefix or peer in asked or len(asked) >= max(_MIN_SOURCES, len(self._members) // 3 + 1):
            return False

        self._requested[prefix] = (*asked, peer)
        if len(self._requested) > _MAX_TRACKED_REQUESTS:
            self._requested.popitem(last=False)
        return True

    def read(self) -> LogEntry | None:
        """Return the oldest unread live message and mark it as read, or None if there is none."""
        while self._unread:
            entry = self._live.get(self._unread.popleft())
            if entry is not None:
                return entry

        return None

    @property
    def has_unread(self) -> bool:
        """Whether `read` would return a message."""
        while self._unread and self._unread[0] not in self._live:
            self._unread.popleft()

        return bool(self._unread)

    def expire(self, before: int) -> None:
        """Drop messages with a tag lower than `before`, and ignore such messages from now on.

        A call with a lower value than an earlier one does nothing.
        """
        if self._is_expired(before):
            return

        if before != self._expired_before:
            self._outdated.clear()
        self._expired_before = before
        self._advance(before)
        self._former = {key: tag for key, tag in self._former.items() if tag >= before}
        dropped = [entry for entry in self._live.values() if entry.tag < before]
        if not dropped:
            return

        unread = set(self._unread)
        for entry in dropped:
            self._remove(entry)
            if entry.id not in unread:
                self._past[entry.id] = None

        while len(self._past) > self._limits.remembered:
            self._past.popitem(last=False)

        self._unread = deque(message_id for message_id in self._unread if message_id in self._live)
        self._pass_on_what_waits()
        self.generation += 1

    def digest(self) -> bytes:
        """Return 32 bytes that are equal for logs with the same live messages that may be passed on."""
        if self._digest is None:
            most = self._limits.passed_messages
            compared = [
                entry.id
                for entry in self._live.values()
                if entry.passable and (entry.opened is None or self._passed[entry.opened.origin] < most)
            ]
            self._digest = hashlib.sha256(b"".join(sorted(compared))).digest()

        return self._digest

    def prefixes(self, most: int) -> list[bytes]:
        """Return the shortened ids of live messages; if there are more than `most`, those with the highest tags.

        A peer that compares with us need not send us these.
        """
        entries: Collection[LogEntry] = self._live.values()
        if len(entries) > most:
            entries = sorted(entries, key=lambda entry: entry.tag, reverse=True)[:most]

        return [entry.id[:PREFIX_BYTES] for entry in entries]

    def lacking(self, prefixes: Collection[bytes]) -> list[LogEntry]:
        """Return the messages to pass on whose shortened id is not among `prefixes`, lowest tag first."""
        held = frozenset(prefixes)
        return sorted(
            (entry for entry in self._live.values() if entry.passable and entry.id[:PREFIX_BYTES] not in held),
            key=lambda entry: entry.tag,
        )

    def _over_share(self, peer: bytes, message: bytes, *, relayed: bool) -> Verdict | None:
        """The verdict if a peer's share has no room for a message."""
        limits, account = self._limits, (peer, relayed)
        if relayed and self._unknown[peer] + self._outdated[peer] >= limits.unknown_messages:
            return Verdict.IGNORED

        most_messages = limits.relayed_messages if relayed else limits.own_messages
        most_bytes = limits.relayed_bytes if relayed else limits.own_bytes
        if self._messages[account] < most_messages and self._bytes[account] + len(message) <= most_bytes:
            return None

        if relayed:
            return Verdict.IGNORED

        self.offence = "the peer sent more live messages of its own than its share"
        return Verdict.OFFENCE

    def _note_false(self, peer: bytes, reason: str) -> Verdict:
        """Count a message that no honest member sends."""
        self._false[peer] += 1
        if self._false[peer] < self._limits.false_messages:
            return Verdict.FALSE

        del self._false[peer]
        self.offence = f"it sent {self._limits.false_messages} false messages; the last: {reason}"
        return Verdict.OFFENCE

    def _note_outdated(self, peer: bytes, *, relayed: bool) -> Verdict:
        """Count an expired message that came with a higher tag, because each of these costs a check."""
        if not relayed:
            return self._note_false(peer, "it sent an expired message of its own with a higher tag")

        self._outdated[peer] += 1
        return Verdict.EXPIRED

    def _is_member(self, origin: bytes) -> bool:
        return origin in self._members or origin in self._former

    def _may_pass(self, origin: bytes) -> bool:
        return self._is_member(origin) and self._passed[origin] < self._limits.passed_messages

    def _pass_on_what_waits(self) -> None:
        """Forward waiting messages that may be forwarded now, after members became known or some of their messages expired."""
        for entry in [entry for entry in self._live.values() if not entry.passable]:
            if entry.opened is not None and self._may_pass(entry.opened.origin):
                self._count_passing(entry, -1)
                self._live[entry.id] = passed = replace(entry, passable=True, unknown=False)
                self._count_passing(passed, +1)
                self._received.append(entry.id)
                self._digest = None

    def _count_passing(self, entry: LogEntry, by: int) -> None:
        """Add a live message to its author's count, or to that of the peer that sent an unknown key's message; or remove it."""
        if entry.passable and entry.opened is not None:
            self._passed[entry.opened.origin] += by
            if not self._passed[entry.opened.origin]:
                del self._passed[entry.opened.origin]
        if entry.unknown and entry.via is not None:
            self._unknown[entry.via] += by
            if not self._unknown[entry.via]:
                del self._unknown[entry.via]

    def _is_expired(self, tag: int) -> bool:
        return self._expired_before is not None and tag < self._expired_before

    def _believable(self, tag: int) -> int:
        return tag if self._newest is None else min(tag, self._newest + self._limits.tag_ahead)

    def _advance(self, tag: int) -> None:
        """Record a tag of our own. The first one also lowers tags of peers that could not be compared with ours until now."""
        first = self._newest is None
        if self._newest is None or tag > self._newest:
            self._newest = tag
        if first:
            self._live = {entry.id: replace(entry, tag=self._believable(entry.tag)) for entry in self._live.values()}

    def _insert(self, entry: LogEntry) -> None:
        self._live[entry.id] = entry
        self._by_prefix[entry.id[:PREFIX_BYTES]] = entry.id
        self._requested.pop(entry.id[:PREFIX_BYTES], None)
        self._past.pop(entry.id, None)
        self._messages[entry.via, entry.relayed] += 1
        self._bytes[entry.via, entry.relayed] += len(entry.message)
        self._count_passing(entry, +1)
        self._digest = None

    def _remove(self, entry: LogEntry) -> None:
        del self._live[entry.id]
        self._by_prefix.pop(entry.id[:PREFIX_BYTES], None)
        account = (entry.via, entry.relayed)
        self._messages[account] -= 1
        self._bytes[account] -= len(entry.message)
        self._count_passing(entry, -1)
        if not self._messages[account]:
            del self._messages[account], self._bytes[account]
        self._digest = None
