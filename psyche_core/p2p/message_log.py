"""The small messages of a run that one member knows: which are live, which peer sent them, and which the client has read.

Every transport has one such log. The id of a message is the SHA-256 of its bytes. A message is live until its tag expires; until
then it can be sent to a peer that does not have it. Tags from peers that are far above ours are lowered. A message that expired
unread is forgotten completely, so it may be received again. The caller interprets the messages; there is no I/O here.

`peer_shares` decides how much a peer may send and whose messages are passed on.

A peer that forwards a message chooses the tag that it sends with it. If messages are checked, the tag is limited to the range
that the signed content allows. Otherwise a dishonest peer could send an honest member's old messages with new tags, and use up
that member's share with them, or let its new messages expire early. Remembering the ids of past messages does not prevent this: a
new process knows none, and a flood of messages displaces them.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from dataclasses import replace

from psyche_core.errors import WireError
from psyche_core.interfaces.transport import MAX_MESSAGE_BYTES, Opened
from psyche_core.p2p.peer_shares import LogEntry as LogEntry
from psyche_core.p2p.peer_shares import LogLimits as LogLimits
from psyche_core.p2p.peer_shares import PeerShares
from psyche_core.p2p.peer_shares import Verdict as Verdict

PREFIX_BYTES = 16
"""Number of bytes of a message id that members send when they compare their messages."""

_MIN_SOURCES = 3
"""Number of members from which the same message may be requested in a small run. In a larger run it is more than a third of the
members. A member may report a message and then not send it. As long as no more than a third of the members do so, as the quorum
assumes, at least one of the members asked is honest."""

_MAX_TRACKED_REQUESTS = 8192
"""Maximum number of messages for which it is stored from whom they were requested. The oldest entry is removed first."""

_RECEIVED = 8192
"""Maximum number of newest messages of others that `take_received` returns. Not every transport calls it."""


class MessageLog:
    """Live messages by id, and which of them are unread. own: our p2p key.

    generation: grows whenever messages are dropped, so that code that stores ids knows when to remove some.
    """

    def __init__(self, *, own: bytes = b"", limits: LogLimits | None = None) -> None:
        self.generation: int = 0
        self._own = own
        self._check: Callable[[bytes], Opened] | None = None
        self._limits = limits or LogLimits()
        self._shares = PeerShares(self._limits, own=own)
        self._live: dict[bytes, LogEntry] = {}
        self._unread: deque[bytes] = deque()
        self._past: OrderedDict[bytes, None] = OrderedDict()
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

    @property
    def offence(self) -> str:
        """The reason for the last Verdict.OFFENCE."""
        return self._shares.offence

    def check_with(self, check: Callable[[bytes], Opened]) -> None:
        """Check messages of others from now on. check: opens a message, or raises WireError."""
        self._check = check

    def set_members(self, members: Collection[bytes]) -> None:
        """Replace the members, whose messages may be passed on. Our own key always counts as a member."""
        self._shares.set_members(members, newest=self._newest)
        self._pass_on_what_waits()

    def add_own(self, message: bytes, *, tag: int) -> LogEntry | None:
        """Add a message of our own client. Returns None if it is already live or its tag has expired.

        Raises ValueError for one of more than MAX_MESSAGE_BYTES.
        """
        if len(message) > MAX_MESSAGE_BYTES:
            error = f"a message has at most {MAX_MESSAGE_BYTES} bytes, got {len(message)}; publish a blob instead"
            raise ValueError(error)

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

        refusal = self._shares.refusal(peer, len(message), relayed=relayed)
        if refusal is not None:
            return refusal, message_id

        opened = None
        passable, unknown = True, False
        if self._check is not None:
            try:
                opened = self._check(message)
            except WireError as error:
                return self._shares.note_false(peer, str(error)), message_id

            if not relayed and opened.origin != peer:
                return self._shares.note_false(peer, "it sent as its own a message that another key signed"), message_id

            relayed = opened.origin != peer
            refusal = self._shares.refusal(peer, len(message), relayed=relayed)
            if refusal is not None:
                return refusal, message_id

            if opened.tags is not None:
                lowest, highest = opened.tags
                tag = max(lowest, min(tag, highest))
            if self._is_expired(tag):
                return self._shares.note_outdated(peer, relayed=relayed), message_id

            unknown = relayed and not self._shares.is_member(opened.origin)
            passable = self._shares.may_pass(opened.origin)

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
        if prefix in self._by_prefix or peer in asked or len(asked) >= max(_MIN_SOURCES, self._shares.members // 3 + 1):
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

        self._expired_before = before
        self._advance(before)
        self._shares.expire(before)
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
            compared = [
                entry.id
                for entry in self._live.values()
                if entry.passable and (entry.opened is None or self._shares.may_pass_more(entry.opened.origin))
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

    def _pass_on_what_waits(self) -> None:
        """Forward messages that could not be forwarded before: their author became a member, or older messages expired."""
        for entry in [entry for entry in self._live.values() if not entry.passable]:
            if entry.opened is not None and self._shares.may_pass(entry.opened.origin):
                self._shares.count(entry, -1)
                self._live[entry.id] = passed = replace(entry, passable=True, unknown=False)
                self._shares.count(passed, +1)
                self._received.append(entry.id)
                self._digest = None

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
        self._shares.count(entry, +1)
        self._digest = None

    def _remove(self, entry: LogEntry) -> None:
        del self._live[entry.id]
        self._by_prefix.pop(entry.id[:PREFIX_BYTES], None)
        self._shares.count(entry, -1)
        self._digest = None
