"""To whom a message is sent on: everybody gets it, from few, whoever writes it."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.p2p.overlay import FULL_MESH, Overlay
from psyche_core.p2p.spread import SENDERS, Spread


def keys(count: int) -> list[bytes]:
    return [hashlib.sha256(b"%d" % number).digest() for number in range(count)]


def arrivals(overlay: Overlay, origin: bytes, message_id: bytes, *, senders: int) -> tuple[dict[bytes, int], Counter[bytes]]:
    """When each member has the message, in hops, and how many copies it gets, if each sends it on once, at once."""
    spreads = {key: Spread(overlay, key, senders=senders) for key in overlay.members}
    when, copies = {origin: 0}, Counter[bytes]()
    edge, hops = [origin], 0
    while edge:
        hops += 1
        reached = [peer for key in edge for peer in spreads[key].receivers(origin, message_id)]
        copies.update(reached)
        edge = [peer for peer in dict.fromkeys(reached) if peer not in when]
        when.update(dict.fromkeys(edge, hops))
    return when, copies


graphs = st.builds(
    lambda count, seed, degree, full_mesh: Overlay(keys(count), seed, degree=degree, full_mesh=full_mesh),
    st.integers(1, 60),
    st.integers(0, 2**64 - 1),
    st.sampled_from((2, 4, 8)),
    st.sampled_from((0, FULL_MESH)),
)


@given(graphs, st.integers(0, 10**6), st.integers(1, 4), st.binary(min_size=32, max_size=32))
def test_everybody_gets_a_message_on_a_shortest_way_from_few(
    overlay: Overlay, place: int, senders: int, message_id: bytes
) -> None:
    origin = overlay.members[place % len(overlay.members)]
    when, copies = arrivals(overlay, origin, message_id, senders=senders)
    assert when == {key: overlay.hops(origin, key) for key in overlay.members}
    for key, hops in when.items():
        assert copies[key] <= (hops if hops < 2 else senders)
        if hops >= 2:
            nearer, level = (
                sum(overlay.hops(origin, other) == wanted for other in overlay.neighbours(key)) for wanted in (hops - 1, hops)
            )
            assert copies[key] == min(senders, nearer + level)


def test_the_message_decides_who_sends_it() -> None:
    """Else a member behind one that drops everything would lack all messages of some authors at first."""
    overlay = Overlay(keys(128), 3)
    origin = overlay.members[0]
    far = next(key for key in overlay.members if overlay.hops(origin, key) == 3)
    spreads = {key: Spread(overlay, key) for key in overlay.neighbours(far)}
    came: Counter[bytes] = Counter()
    for number in range(200):
        message_id = hashlib.sha256(b"message %d" % number).digest()
        senders = [key for key, spread in spreads.items() if far in spread.receivers(origin, message_id)]
        assert len(senders) == SENDERS
        came.update(senders)
    nearer = [key for key in overlay.neighbours(far) if overlay.hops(origin, key) == 2]
    assert set(came) == set(nearer)
    assert max(came.values()) < 4 * 200 * SENDERS / len(nearer)


def test_a_stranger_s_message_is_sent_to_nobody_at_once() -> None:
    overlay = Overlay(keys(40), 1)
    assert Spread(overlay, overlay.members[0]).receivers(b"s" * 32, b"m" * 32) == ()
    assert Spread(overlay, b"s" * 32).receivers(overlay.members[0], b"m" * 32) == ()


def test_without_a_sender_nothing_would_arrive() -> None:
    with pytest.raises(ValueError, match="at least one sender of a message, got 0"):
        Spread(Overlay(keys(3), 1), keys(3)[0], senders=0)


def test_the_senders_of_a_message_stay_who_they_are() -> None:
    """Members of different versions must compute the same ones."""
    overlay = Overlay(keys(64), 5)
    said = [b"".join(Spread(overlay, key).receivers(overlay.members[0], b"m" * 32)) for key in overlay.members]
    assert hashlib.sha256(b"|".join(said)).hexdigest()[:16] == "73c7380f57b57496"
