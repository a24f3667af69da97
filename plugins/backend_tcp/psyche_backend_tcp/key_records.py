"""What the server keeps about a key beyond its connection: its connection's number, its address, its answers, its patience.

Decided here: a lost member is kept until its grace is over; a key that is no member is forgotten with its connection, so what is
kept is bounded by connections and members. An answer is remembered for a while, so that a request repeated after a lost
connection is not carried out twice. Knows no coordinator: who is a member it is told.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from psyche_backend_tcp.limits import Limits, TokenBucket
from psyche_backend_tcp.protocol import Answer

REMEMBERED_ANSWERS = 32


@dataclass(slots=True)
class KeyRecord:
    """One key. connection: number of its newest one, None when lost; lost_at: monotonic seconds at which it was."""

    requests: TokenBucket
    connection: int | None = None
    address: bytes | None = None
    lost_at: float | None = None
    _answers: OrderedDict[int, Answer] = field(default_factory=OrderedDict)

    def answered(self, number: int) -> Answer | None:
        """What a request with this number was answered, while that is remembered."""
        return self._answers.get(number)

    def remember(self, answer: Answer) -> None:
        """Keep an answer in case the request is repeated."""
        self._answers[answer.number] = answer
        if len(self._answers) > REMEMBERED_ANSWERS:
            self._answers.popitem(last=False)


class KeyRecords:
    """The keys that are connected, or members, or lately were."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._entries: dict[bytes, KeyRecord] = {}

    def __getitem__(self, signer: bytes) -> KeyRecord:
        """The entry of a key that is known."""
        return self._entries[signer]

    def known(self, signer: bytes, now: float) -> KeyRecord:
        """The entry of a key, made if need be."""
        entry = self._entries.get(signer)
        if entry is None:
            bucket = TokenBucket(rate=self._limits.requests_per_second, burst=self._limits.burst, now=now)
            entry = self._entries[signer] = KeyRecord(bucket)
        return entry

    def restore(self, addresses: Mapping[bytes, bytes], members: Collection[bytes], now: float) -> None:
        """After a restart: all members are lost since `now`, at the addresses they had published."""
        for signer in members:
            entry = self.known(signer, now)
            entry.lost_at = now
            entry.address = addresses.get(signer)

    def connected(self, signer: bytes) -> bool:
        """Whether a key has a connection."""
        entry = self._entries.get(signer)
        return entry is not None and entry.connection is not None

    def addresses(self, members: Collection[bytes]) -> dict[bytes, bytes]:
        """The published transport addresses of members."""
        known = ((signer, self._entries.get(signer)) for signer in members)
        return {signer: entry.address for signer, entry in known if entry is not None and entry.address is not None}

    def overdue(self, members: Collection[bytes], now: float) -> Iterator[bytes]:
        """Members that were lost and did not come back in time. Keys that are neither connected nor members are forgotten."""
        for signer, entry in list(self._entries.items()):
            if entry.connection is not None:
                continue

            if signer not in members:
                del self._entries[signer]
            elif entry.lost_at is not None and now - entry.lost_at >= self._limits.reconnect_seconds:
                yield signer

    def forget(self, signer: bytes) -> None:
        """Drop the entry of a key that is not connected; idempotent."""
        entry = self._entries.get(signer)
        if entry is not None and entry.connection is None:
            del self._entries[signer]
        elif entry is not None:
            entry.address = None
