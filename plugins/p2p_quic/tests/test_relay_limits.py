"""The relay's limits in virtual time: queues, rates, places and addresses."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from plugins.p2p_quic.tests.relay_steps import (
    ALICE,
    BOB,
    KEYS,
    SMALL,
    batch,
    greet,
    make_router,
    phase_of,
    taken,
    upgrade_request,
)
from psyche_p2p_quic.relay.access import MemberAccess
from psyche_p2p_quic.relay.admission import AddressCounter, Waiting
from psyche_p2p_quic.relay.connection import Client, Phase
from psyche_p2p_quic.relay.limits import RelayLimits


def test_a_full_queue_drops_the_newest_packets_and_the_total_is_bounded() -> None:
    router = make_router()
    alice, bob, carol, dave = (greet(router, key) for key in KEYS)
    for client in (alice, bob, carol, dave):
        taken(client)
    for _ in range(10):
        alice.receive(batch(BOB, 10), 1.0)
    assert router.counters.frames_dropped == 6, "four packets may wait"
    taken(bob)
    for other in (BOB, bytes(KEYS[2].verify_key), bytes(KEYS[3].verify_key)):
        for _ in range(3):
            alice.receive(batch(other, 1200), 1.0)
    assert router.queued_bytes <= SMALL.total_queue_bytes
    assert taken(bob)
    assert taken(carol)


def test_a_full_relay_closes_newcomers_after_the_upgrade() -> None:
    router = make_router(limits=RelayLimits(clients=1))
    greet(router, KEYS[0])
    client = Client(router, "192.0.2.1", 0.0)
    client.receive(memoryview(upgrade_request()), 0.0)
    assert phase_of(client) is Phase.CLOSING
    assert client.take(10**9).endswith(b"too many clients")


def test_handshakes_that_run_together_do_not_overfill_a_relay() -> None:
    members = MemberAccess()
    router = make_router(members, limits=RelayLimits(clients=1))
    waiting = [greet(router, key) for key in KEYS[:2]]
    members.replace(bytes(key.verify_key) for key in KEYS)
    router.reconsider(waiting, 1.0)
    assert [client.phase for client in waiting] == [Phase.CONNECTED, Phase.CLOSING]


# ---------------------------------------------------------------------------------------------------------------- limits
def test_a_rate_pauses_reading_for_as_long_as_was_sent_too_much() -> None:
    router = make_router(limits=RelayLimits(client_rate=1000.0, burst_seconds=1.0))
    alice = greet(router, KEYS[0])
    taken(alice)
    alice.receive(batch(BOB, 700), 0.0)
    assert alice.paused_until == 0.0
    alice.receive(batch(BOB, 700), 0.0)
    assert 0.3 < alice.paused_until < 0.8
    assert taken(alice) == [b"\x0d\x02"]
    alice.receive(batch(BOB, 2000), 10.0)
    assert 11.0 < alice.paused_until < 11.5
    assert taken(alice) == [], "said once"
    alice.tick(alice.paused_until - 0.01)
    assert taken(alice) == []


def test_the_total_rate_pauses_everybody() -> None:
    router = make_router(limits=RelayLimits(total_rate=1000.0, burst_seconds=1.0))
    alice, bob = greet(router, KEYS[0]), greet(router, KEYS[1])
    alice.receive(batch(BOB, 1500), 0.0)
    bob.receive(batch(ALICE, 100), 0.0)
    assert 0.0 < alice.paused_until < bob.paused_until < 1.0


def test_addresses_are_counted_by_household() -> None:
    addresses = AddressCounter(most=5, most_per_address=2)
    first = addresses.enter("192.0.2.1", 0.0)
    assert first is not None
    assert addresses.enter("::ffff:192.0.2.1", 0.0) == first
    assert addresses.enter("192.0.2.1", 0.0) is None
    assert addresses.enter("2001:db8::1", 0.0) == addresses.enter("2001:db8::ffff", 0.0) != first
    assert addresses.enter("2001:db8:0:0:1::", 0.0) is None
    assert addresses.enter("2001:db8:0:ff::", 0.0) is None, "a household may have a network of 56 bits"
    assert addresses.enter("2001:db8:0:100::", 0.0) is not None
    assert addresses.enter("192.0.2.2", 0.0) is None, "five are the most"
    addresses.leave(first)
    assert addresses.enter("192.0.2.1", 0.0) == first


def test_excused_connections_leave_their_places_to_others_of_the_address() -> None:
    addresses = AddressCounter(most=9, most_per_address=1)
    for _ in range(3):
        key = addresses.enter("192.0.2.1", 0.0)
        assert key is not None
        assert addresses.is_full("192.0.2.1")
        addresses.excuse(key)
        assert not addresses.is_full("192.0.2.1")
    assert addresses.total == 3
    assert key is not None
    addresses.leave_excused(key)
    assert addresses.total == 2


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 4))))
def test_the_oldest_of_the_largest_crowd_goes_first(steps: list[tuple[bool, int, int]]) -> None:
    waiting: Waiting[int] = Waiting()
    there: list[tuple[int, str]] = []
    for comes, name, number in steps:
        place = str(number)
        if comes and all(name != each for each, _ in there):
            waiting.add(name, place)
            there.append((name, place))
        elif not comes:
            assert waiting.remove(name, place) == ((name, place) in there)
            there = [each for each in there if each != (name, place)]
        counts = Counter(place for _, place in there)
        assert len(waiting) == len(there)
        first = waiting.oldest_of_most()
        if first is None:
            assert not there
        else:
            home = dict(there)[first]
            assert counts[home] == max(counts.values())
            assert first == next(each for each, place in there if place == home) == waiting.oldest(home)


def test_an_address_that_comes_and_goes_too_fast_waits() -> None:
    addresses = AddressCounter(most=5, most_per_address=2, rate=10.0)

    def come_and_go(now: float) -> bool:
        key = addresses.enter("192.0.2.1", now)
        if key is not None:
            addresses.leave(key)
        return key is not None

    assert [come_and_go(0.0) for _ in range(21)] == [True] * 20 + [False]
    assert [come_and_go(0.11) for _ in range(2)] == [True, False]
    assert addresses.enter("192.0.2.2", 0.11) is not None
    assert all(come_and_go(10.0) for _ in range(20))


def test_addresses_that_are_gone_are_forgotten() -> None:
    addresses = AddressCounter(most=5, most_per_address=2)
    stays = addresses.enter("192.0.2.1", 0.0)
    assert stays is not None
    for number in range(10_000):
        key = addresses.enter(f"2001:db8:{number:x}::1", number / 100)
        assert key is not None
        addresses.leave(key)
        assert len(addresses._places) <= 2 * 5 + 1024
    addresses.leave(stays)
    assert addresses.total == 0
