"""Payloads asked for and messages that came before the state they belong to. Bounded, whatever peers send.

Decided here: a peer may be one state update ahead of us, so its messages for the next rounds wait, a bounded number per sender;
after a start, all live messages of the last rounds may come before the first state.
"""

from __future__ import annotations

from psyche_core.wire.messages import Finished, Message, Result

MAX_EARLY_PER_SENDER = 24
MAX_EARLY_SENDERS = 512

ABOUT_A_ROUND = (Result, Finished)
"""Messages that belong to a round; the others belong to an epoch."""


class Inbox:
    """One epoch's payload bookkeeping."""

    def __init__(self) -> None:
        self.valid: set[bytes] = set()
        self.invalid: set[bytes] = set()
        self._asked: set[bytes] = set()

    def __len__(self) -> int:
        return len(self.valid) + len(self.invalid) + len(self._asked)

    def wants(self, payload_hash: bytes) -> bool:
        """True once per payload until its fetch fails: the caller then fetches it."""
        if payload_hash in self._asked or payload_hash in self.valid or payload_hash in self.invalid:
            return False

        self._asked.add(payload_hash)
        return True

    def fetch_failed(self, payload_hash: bytes) -> None:
        """Allow the payload to be asked for again."""
        self._asked.discard(payload_hash)

    def checked(self, payload_hash: bytes, *, valid: bool) -> None:
        """A payload arrived and was checked."""
        self._asked.discard(payload_hash)
        (self.valid if valid else self.invalid).add(payload_hash)


class EarlyMessages:
    """Messages about rounds and epochs we have not heard of yet, kept across epochs until they are due."""

    def __init__(self) -> None:
        self._held: dict[bytes, list[Message]] = {}

    def hold(self, origin: bytes, message: Message) -> None:
        """Keep a message; silently drops what exceeds the sender's share."""
        if origin not in self._held and len(self._held) >= MAX_EARLY_SENDERS:
            return

        waiting = self._held.setdefault(origin, [])
        if len(waiting) < MAX_EARLY_PER_SENDER and message not in waiting:
            waiting.append(message)

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in self._held.values())

    def take(self, epoch: int, height: int | None) -> list[tuple[bytes, Message]]:
        """Take out what waited for this round (height None: for this epoch as a whole), and drop what is older."""
        due: list[tuple[bytes, Message]] = []
        for origin, waiting in self._held.items():
            due.extend((origin, message) for message in waiting if _place(message) == (epoch, height))
            waiting[:] = [message for message in waiting if message.epoch >= epoch and _place(message) != (epoch, height)]
        self._held = {origin: waiting for origin, waiting in self._held.items() if waiting}
        return due


def _place(message: Message) -> tuple[int, int | None]:
    return message.epoch, message.height if isinstance(message, ABOUT_A_ROUND) else None
