"""Messages that come before their round: bounded, and nobody takes the place of the run's members."""

from __future__ import annotations

import pytest

from psyche_core.client.machine.buffers import MAX_EARLY_PER_SENDER, MAX_EARLY_SENDERS, EarlyMessages
from psyche_core.wire.messages import Finished, ModelWanted


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


@pytest.mark.parametrize("member", [True, False])
def test_early_messages_are_bounded(member: bool) -> None:
    early = EarlyMessages()
    for sender in range(MAX_EARLY_SENDERS + 50):
        for height in range(50):
            early.add(key(sender), Finished(0, height, 0), member=member)
    assert len(early) == MAX_EARLY_SENDERS * MAX_EARLY_PER_SENDER
    assert not early.take(0, 49 - MAX_EARLY_PER_SENDER), "the newest are kept"
    held = sum(len(early.take(0, height)) for height in range(50 - MAX_EARLY_PER_SENDER, 50))
    assert held == MAX_EARLY_SENDERS * MAX_EARLY_PER_SENDER
    assert len(early) == 0


def test_what_came_early_about_a_round_that_was_never_opened_is_dropped() -> None:
    """States came late for a dozen rounds: messages about those rounds took the place of all later ones until the epoch's end."""
    early = EarlyMessages()
    for height in range(20):
        early.add(key(1), Finished(0, height, 0), member=True)
    early.add(key(1), ModelWanted(0, 5, 0), member=True)
    assert early.take(0, 15) == [(key(1), Finished(0, 15, 0))]
    assert len(early) == 5
    assert early.take(0, None) == [(key(1), ModelWanted(0, 5, 0))]
    assert [early.take(0, height) != [] for height in (3, 17, 19)] == [False, True, True]


def test_made_up_keys_take_no_place_of_members() -> None:
    """Seen on a running system: 77 kB of one member filled everybody's buffer for good, and every round ran to its time-out."""
    early = EarlyMessages()
    early.add(b"m" * 32, Finished(1, 0, 0), member=True)
    early.add(b"n" * 32, Finished(1, 0, 0), member=False)
    for sender in range(MAX_EARLY_SENDERS):
        early.add(key(sender), Finished(4, 0, 0), member=False)
    early.add(b"o" * 32, Finished(1, 0, 0), member=True)
    early.add(b"p" * 32, Finished(1, 0, 0), member=False)
    assert [origin[:1] for origin, _ in early.take(1, 0)] == [b"m", b"o", b"p"], "the oldest stranger made room"


def test_who_becomes_a_member_keeps_what_it_said_before() -> None:
    early = EarlyMessages()
    early.add(b"n" * 32, Finished(1, 0, 0), member=False)
    early.add(b"n" * 32, Finished(1, 1, 0), member=True)
    for sender in range(MAX_EARLY_SENDERS + 1):
        early.add(key(sender), Finished(2, 0, 0), member=False)
    assert early.take(1, 0) == [(b"n" * 32, Finished(1, 0, 0))]
    assert early.take(1, 1) == [(b"n" * 32, Finished(1, 1, 0))]
