"""The server's record of a key: its connection's number, address, recent answers, and when it was lost.

A lost member is kept until its grace period is over. A key that is not a member is forgotten with its connection, so memory is
bounded by connections and members. Answers are kept for a while, so that a request repeated after a lost connection is not
executed twice. The caller decides which keys are members.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from psyche_backend_tcp.limits import Limits
from psyche_backend_tcp.protocol import Answer
from psyche_core.rate_limit import TokenBucket

REMEMBERED_ANSWERS = 32


@dataclass(slots=True)
class KeyRecord:
    """The data of one key. connection: number of its newest one, None when lost; lost_at: when, in monotonic seconds.

    restored: whether it has had no connection since this server continued the run.
    """

    requests: TokenBucket
    connection: int | None = None
    address: bytes | None = None
    lost_at: float | None = None
    restored: bool = False
    _answers: OrderedDict[int, Answer] = field(default_factory=OrderedDict)

    def answered(self, number: int) -> Answer | None:
        """Return the answer to the request with this number, while it is kept."""
        return self._answers.get(number)

    def remember(self, answer: Answer) -> None:
        """Keep an answer in case the request is repeated."""
        self._answers[answer.number] = answer
        if len(self._answers) > REMEMBERED_ANSWERS:
            self._answers.popitem(last=False)


class KeyRecords:
    """The keys that are connected, are members, or recently were."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._entries: dict[bytes, KeyRecord] = {}

    def __getitem__(self, signer: bytes) -> KeyRecord:
        """The record of a known key."""
        return self._entries[signer]

    def get(self, signer: bytes) -> KeyRecord | None:
        """Return the record of a key, None if there is none."""
        return self._entries.get(signer)

    def known(self, signer: bytes) -> KeyRecord:
        """Return the record of a key; make it if there is none."""
        entry = self._entries.get(signer)
        if entry is None:
            bucket = TokenBucket(self._limits.requests_per_second, burst=self._limits.burst)
            entry = self._entries[signer] = KeyRecord(bucket)
        return entry

    def restore(self, addresses: Mapping[bytes, bytes], members: Collection[bytes], now: float) -> None:
        """Note, after a restart, that all members are lost since `now`, with the addresses that they had published."""
        for signer in members:
            entry = self.known(signer)
            entry.lost_at = now
            entry.restored = True
            entry.address = addresses.get(signer)

    def connected(self, signer: bytes) -> bool:
        """Return whether a key has a connection."""
        entry = self._entries.get(signer)
        return entry is not None and entry.connection is not None

    def addresses(self, members: Collection[bytes]) -> dict[bytes, bytes]:
        """Return the published transport addresses of members."""
        known = ((signer, self._entries.get(signer)) for signer in members)
        return {signer: entry.address for signer, entry in known if entry is not None and entry.address is not None}

    def overdue(self, members: Collection[bytes], now: float) -> Iterator[bytes]:
        """Yield members that were lost and did not return in time. Also forget keys that are neither connected nor members."""
        for signer, entry in list(self._entries.items()):
            if entry.connection is not None:
                continue

            if signer not in members:
                del self._entries[signer]
            elif entry.lost_at is not None and now - entry.lost_at >= self._limits.reconnect_seconds:
                yield signer

    def forget(self, signer: bytes) -> None:
        """Drop the record of a key that is not connected, otherwise only its address; idempotent."""
        entry = self._entries.get(signer)
        if entry is not None and entry.connection is None:
            del self._entries[signer]
        elif entry is not None:
            entry.address = None
