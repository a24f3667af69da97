"""Buffers, bounded whatever peers send: payloads that were asked for, and messages that came too early.

A peer may be one state update ahead of us, so its messages about the next rounds wait here, a bounded number per sender. After a
start, all live messages of the last rounds may come before the first state.
"""

from __future__ import annotations

from collections import Counter

from psyche_core.wire.messages import Finished, Message, Opening, Result

MAX_EARLY_PER_SENDER = 24
MAX_EARLY_SENDERS = 512
"""Members whose early messages are kept, and as many other keys."""

MAX_EARLY_EPOCHS = 3
"""How many epochs ahead of our state a message may be to be kept."""

MAX_CHECKS = 3
"""How often the check of one payload may fail before we stop trying."""

ABOUT_A_ROUND = (Result, Finished, Opening)
"""Messages that belong to a round; the others belong to an epoch."""


class PayloadBuffer:
    """The payloads of one epoch.

    valid: payloads that passed the check and whose bytes are kept, with the newest tag they are kept under. invalid: those that
    did not; equal bytes never will.

    Equal bytes may be announced in several rounds and by several slots: two honest results of zeros are equal. Each
    announcement keeps them until its own round's tag expires, so bytes are kept as long as anything may still apply them.
    """

    def __init__(self) -> None:
        self.valid: dict[bytes, int] = {}
        self.invalid: set[bytes] = set()
        self._requested: dict[bytes, int] = {}
        self._check_failures: Counter[bytes] = Counter()
        self._expired_before = -1

    def __len__(self) -> int:
        return len(self.valid) + len(self.invalid) + len(self._requested) + len(self._check_failures)

    def live(self, tag: int) -> int:
        """The tag under which to keep something of `tag`: that one, or the lowest that has not expired."""
        return max(tag, self._expired_before)

    def holds(self, payload_hash: bytes, *, tag: int) -> bool:
        """Whether a valid payload is here and stays until `tag` expires."""
        return self.valid.get(payload_hash, -1) >= self.live(tag)

    def wants(self, payload_hash: bytes, *, tag: int) -> bool:
        """True once per payload and tag until that fetch fails; the caller then fetches it under that tag.

        Also for a payload that is here but expires before `tag`: fetching it again, from our own store, keeps it longer.
        """
        if (
            payload_hash in self.invalid
            or self._check_failures.get(payload_hash, 0) >= MAX_CHECKS
            or self.holds(payload_hash, tag=tag)
        ):
            return False
        if self._requested.get(payload_hash, -1) >= tag:
            return False

        self._requested[payload_hash] = tag
        return True

    def fetch_failed(self, payload_hash: bytes) -> None:
        """Allow the payload to be requested again."""
        self._requested.pop(payload_hash, None)

    def check_failed(self, payload_hash: bytes) -> None:
        """Our check of a payload failed without a result: it may be requested again, a few times."""
        self._requested.pop(payload_hash, None)
        self._check_failures[payload_hash] += 1

    def lost(self, payload_hash: bytes) -> None:
        """The bytes of a payload are missing after all; it may be requested again."""
        self._requested.pop(payload_hash, None)
        self.valid.pop(payload_hash, None)

    def checked(self, payload_hash: bytes, *, valid: bool, tag: int) -> None:
        """A payload arrived and was checked. tag: it is kept until that expires."""
        if self._requested.get(payload_hash, -1) <= tag:
            self._requested.pop(payload_hash, None)
        self._check_failures.pop(payload_hash, None)
        if not valid:
            self.invalid.add(payload_hash)
        elif tag >= self._expired_before:
            self.valid[payload_hash] = max(tag, self.valid.get(payload_hash, -1))

    def expire(self, before: int) -> None:
        """Forget payloads with older tags."""
        self._expired_before = max(self._expired_before, before)
        self.valid = {payload_hash: tag for payload_hash, tag in self.valid.items() if tag >= before}


class EarlyMessages:
    """Messages about rounds and epochs that we do not know yet, kept across epochs until they are needed.

    Each member of the run has its own share. Keys that are not members in our state may be newcomers, so the messages of the
    newest few of them are kept too: anybody can make up keys, and these must not take the place of members' messages. Of each
    sender the newest messages are kept: where states come late, the rounds of the oldest ones are over.
    """

    def __init__(self) -> None:
        self._members: dict[bytes, list[Message]] = {}
        self._unknown_senders: dict[bytes, list[Message]] = {}

    def add(self, origin: bytes, message: Message, *, member: bool) -> None:
        """Keep a message; the sender's oldest one makes room if need be. member: whether our state names the sender."""
        held = self._members if member or origin in self._members else self._unknown_senders
        if origin not in held:
            if len(held) >= MAX_EARLY_SENDERS:
                del held[next(iter(held))]
            held[origin] = self._unknown_senders.pop(origin, [])
        waiting = held[origin]
        if message not in waiting:
            waiting.append(message)
            del waiting[:-MAX_EARLY_PER_SENDER]

    def __len__(self) -> int:
        return sum(len(waiting) for held in (self._members, self._unknown_senders) for waiting in held.values())

    def take(self, epoch: int, height: int | None) -> list[tuple[bytes, Message]]:
        """Remove and return the messages for this round (height None: for this epoch as a whole), and drop older ones.

        Rounds are opened in order, so those about an earlier round of the epoch are not needed any more.
        """
        due: list[tuple[bytes, Message]] = []
        for held in (self._members, self._unknown_senders):
            for origin, waiting in list(held.items()):
                due.extend((origin, message) for message in waiting if _place(message) == (epoch, height))
                waiting[:] = [message for message in waiting if _is_later(message, epoch, height)]
                if not waiting:
                    del held[origin]
        return due


def _is_later(message: Message, epoch: int, height: int | None) -> bool:
    """Whether a message may still be needed after this round (height None: after this epoch) has been opened."""
    of, at = _place(message)
    return of > epoch or (of == epoch and at != height and (height is None or at is None or at > height))


def _place(message: Message) -> tuple[int, int | None]:
    return message.epoch, message.height if isinstance(message, ABOUT_A_ROUND) else None
