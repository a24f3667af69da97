"""What one member knows of the small messages of a run: which are live, who handed them over, which the client has read.

Every transport keeps one. A message is named by the SHA-256 of its bytes and lives until its tag expires; while it lives it can
be given to a peer that lacks it. A peer's own messages and those it passes on for others are counted apart, so that a flood from
one member, passed on by an honest one, never costs the honest one its connection. Tags from peers are not believed when they run
far ahead of ours. A message that expired unread is forgotten completely, so that it may come again. What a message means is up to
the caller; there is no I/O here.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict, deque
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum

PREFIX_BYTES = 16
"""Bytes of a message id that members tell each other when they compare what they hold."""

_ASKED = 3
"""Members that are asked for the same message. More than one, since who says to have it may keep it to itself."""

_WANTED = 8192
"""Messages that were asked for and did not come yet, of which is remembered how often. The oldest is forgotten first."""

_RECEIVED = 8192
"""Newest messages of others that `take_received` gives. Not every transport asks for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """How much is kept for others.

    own_messages, own_bytes: most live messages a peer may hand us as its own; exceeding them is an offence.
    relayed_messages, relayed_bytes: most it may pass on for others; what exceeds them is ignored.
    tag_ahead: how far a peer's tag may lie above the newest tag we used or expired ourselves; higher ones are lowered to that.
    remembered: ids kept of messages that expired, so that they are not read twice.
    """

    own_messages: int = 1024
    own_bytes: int = 8 * 2**20
    relayed_messages: int = 8192
    relayed_bytes: int = 32 * 2**20
    tag_ahead: int = 64
    remembered: int = 65_536


class Verdict(Enum):
    """What became of a message handed to us."""

    NEW = "kept, and waiting to be read"
    KNOWN = "had it already"
    EXPIRED = "its tag has expired"
    IGNORED = "the peer's share for passing on is full"
    OFFENCE = "the peer's share for its own messages is exceeded"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A live message. via: the peer that handed it over, None for our own. relayed: `via` says that others wrote it."""

    id: bytes
    tag: int
    message: bytes
    via: bytes | None
    relayed: bool = False


class MessageLog:
    """Messages by id, with what is unread.

    `generation` grows whenever messages were dropped, so that who remembers ids knows when to forget some.
    """

    def __init__(self, *, limits: LogLimits | None = None) -> None:
        self.generation = 0
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
        self._wanted: OrderedDict[bytes, int] = OrderedDict()
        self._received: deque[bytes] = deque(maxlen=_RECEIVED)

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._live

    def add_own(self, message: bytes, *, tag: int) -> LogEntry | None:
        """Take in a message of our client; None when it is live already or its tag has expired."""
        message_id = hashlib.sha256(message).digest()
        if message_id in self._live or self._is_expired(tag):
            return None

        self._advance(tag)
        entry = LogEntry(message_id, tag, message, None)
        self._insert(entry)
        return entry

    def add_from(self, peer: bytes, message: bytes, *, tag: int, relayed: bool) -> tuple[Verdict, bytes]:
        """Take in a message that `peer` handed over, and name it by its id."""
        message_id = hashlib.sha256(message).digest()
        if message_id in self._live or message_id in self._past:
            return Verdict.KNOWN, message_id

        if self._is_expired(tag):
            return Verdict.EXPIRED, message_id

        limits, account = self._limits, (peer, relayed)
        most_messages = limits.relayed_messages if relayed else limits.own_messages
        most_bytes = limits.relayed_bytes if relayed else limits.own_bytes
        if self._messages[account] >= most_messages or self._bytes[account] + len(message) > most_bytes:
            return (Verdict.IGNORED if relayed else Verdict.OFFENCE), message_id

        self._insert(LogEntry(message_id, self._believable(tag), message, peer, relayed))
        self._unread.append(message_id)
        self._received.append(message_id)
        return Verdict.NEW, message_id

    def take_received(self) -> list[LogEntry]:
        """Live messages that others handed over since the last call."""
        received = tuple(self._received)
        self._received.clear()
        return [entry for message_id in received if (entry := self._live.get(message_id)) is not None]

    def find(self, prefix: bytes) -> LogEntry | None:
        """The live message with that shortened id, None when there is none."""
        message_id = self._by_prefix.get(prefix)
        return None if message_id is None else self._live[message_id]

    def wants(self, prefix: bytes) -> bool:
        """Note that a member says to have a message. Returns whether to ask it: the first few who say so are asked."""
        if prefix in self._by_prefix:
            return False

        times = self._wanted.get(prefix, 0) + 1
        if times <= _ASKED:
            self._wanted[prefix] = times
            if len(self._wanted) > _WANTED:
                self._wanted.popitem(last=False)
        return times <= _ASKED

    def read(self) -> LogEntry | None:
        """The oldest unread live message, None when there is none."""
        while self._unread:
            entry = self._live.get(self._unread.popleft())
            if entry is not None:
                return entry

        return None

    @property
    def has_unread(self) -> bool:
        """Whether `read` would return one."""
        while self._unread and self._unread[0] not in self._live:
            self._unread.popleft()

        return bool(self._unread)

    def expire(self, before: int) -> None:
        """Drop messages with a tag lower than `before`, and ignore such ones from now on. Never goes backwards."""
        if self._is_expired(before):
            return

        self._expired_before = before
        self._advance(before)
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
        self.generation += 1

    def digest(self) -> bytes:
        """32 bytes that are equal where the same messages are live."""
        if self._digest is None:
            self._digest = hashlib.sha256(b"".join(sorted(self._live))).digest()

        return self._digest

    def prefixes(self, most: int) -> list[bytes]:
        """Shortened ids of live messages, the `most` with the highest tags when there are more."""
        entries: Collection[LogEntry] = self._live.values()
        if len(entries) > most:
            entries = sorted(entries, key=lambda entry: entry.tag, reverse=True)[:most]

        return [entry.id[:PREFIX_BYTES] for entry in entries]

    def lacking(self, prefixes: Collection[bytes]) -> list[LogEntry]:
        """Live messages whose shortened id is not among `prefixes`, oldest tag first."""
        held = frozenset(prefixes)
        return sorted(
            (entry for entry in self._live.values() if entry.id[:PREFIX_BYTES] not in held), key=lambda entry: entry.tag
        )

    def _is_expired(self, tag: int) -> bool:
        return self._expired_before is not None and tag < self._expired_before

    def _believable(self, tag: int) -> int:
        return tag if self._newest is None else min(tag, self._newest + self._limits.tag_ahead)

    def _advance(self, tag: int) -> None:
        """Note a tag of our own. The first one also lowers the tags believed while there was nothing to compare them with."""
        first = self._newest is None
        if self._newest is None or tag > self._newest:
            self._newest = tag
        if first:
            self._live = {entry.id: replace(entry, tag=self._believable(entry.tag)) for entry in self._live.values()}

    def _insert(self, entry: LogEntry) -> None:
        self._live[entry.id] = entry
        self._by_prefix[entry.id[:PREFIX_BYTES]] = entry.id
        self._wanted.pop(entry.id[:PREFIX_BYTES], None)
        self._past.pop(entry.id, None)
        self._messages[entry.via, entry.relayed] += 1
        self._bytes[entry.via, entry.relayed] += len(entry.message)
        self._digest = None

    def _remove(self, entry: LogEntry) -> None:
        del self._live[entry.id]
        self._by_prefix.pop(entry.id[:PREFIX_BYTES], None)
        account = (entry.via, entry.relayed)
        self._messages[account] -= 1
        self._bytes[account] -= len(entry.message)
        if not self._messages[account]:
            del self._messages[account], self._bytes[account]
        self._digest = None
