"""The relay's decisions in virtual time: one client's life, who gets what, and the accounts that must always balance."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from nacl.signing import SigningKey
from websockets.frames import Frame, Opcode

from plugins.p2p_quic.tests.relay_parts import answer
from psyche_p2p_quic.relay.access import Access, MemberAccess, OpenAccess, TokenAccess
from psyche_p2p_quic.relay.admission import AddressCounter, Waiting
from psyche_p2p_quic.relay.connection import Client, Phase
from psyche_p2p_quic.relay.limits import RelayLimits, TokenBucket
from psyche_p2p_quic.relay.metrics import Counters, prometheus_text
from psyche_p2p_quic.relay.router import Router

KEYS = [SigningKey(bytes((number,)) * 32) for number in range(1, 5)]
ALICE, BOB = (bytes(key.verify_key) for key in KEYS[:2])
SMALL = RelayLimits(queue_packets=4, queue_bytes=4000, total_queue_bytes=6000, message_bytes=2000, clients=6)


def make_router(access: Access | None = None, limits: RelayLimits = SMALL) -> Router:
    numbers = itertools.count()
    return Router(
        access or OpenAccess(), limits=limits, now=0.0, nonce=lambda: next(numbers).to_bytes(16, "big"), jitter=lambda: 0.5
    )


def upgrade_request(version: str = "iroh-relay-v2", token: str = "") -> bytes:
    return (
        "GET /relay HTTP/1.1\r\nHost: relay\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: {version}\r\n"
        f"{f'Authorization: Bearer {token}' if token else 'X-Nothing: x'}\r\n\r\n"
    ).encode()


def message(payload: bytes) -> memoryview:
    return memoryview(Frame(Opcode.BINARY, payload).serialize(mask=True))


def phase_of(client: Client) -> Phase:
    """Its phase now; mypy believes that it stays what it was compared with."""
    return client.phase


def taken(client: Client) -> list[bytes]:
    """What waits for a client: its WebSocket messages' payloads; a close frame's with an x before."""
    data = client.take(10**9)
    found = []
    while data:
        size, at = data[1], 2
        if size == 126:
            size, at = int.from_bytes(data[2:4], "big"), 4
        found.append((b"x" if data[0] == 0x88 else b"") + data[at : at + size])
        data = data[at + size :]
    return found


def greet(router: Router, key: SigningKey, now: float = 0.0, *, version: str = "iroh-relay-v2", token: str = "") -> Client:
    """A client that has answered the challenge."""
    client = Client(router, "192.0.2.1", now)
    client.receive(memoryview(upgrade_request(version, token)), now)
    response, _, rest = client.take(10**9).partition(b"\r\n\r\n")
    assert response.startswith(b"HTTP/1.1 101 "), response
    client.receive(message(answer(key, rest[2:])), now)
    return client


def batch(to: bytes, size: int = 100) -> memoryview:
    return message(b"\x05" + to + b"\x00\x04\xb0" + bytes(size))


# ------------------------------------------------------------------------------------------------------- one client's life


def test_from_the_request_to_a_forwarded_frame() -> None:
    router = make_router()
    alice, bob = greet(router, KEYS[0]), greet(router, KEYS[1])
    assert taken(alice) == taken(bob) == [b"\x02"]
    alice.receive(batch(BOB), 1.0)
    assert router.dirty == [alice, bob]
    assert taken(bob) == [b"\x07" + ALICE + b"\x00\x04\xb0" + bytes(100)]
    assert taken(alice) == []


def test_frames_that_arrive_with_the_answer_are_taken_in() -> None:
    router = make_router()
    bob = greet(router, KEYS[1])
    alice = Client(router, "192.0.2.1", 0.0)
    alice.receive(memoryview(upgrade_request()), 0.0)
    challenge = alice.take(10**9).partition(b"\r\n\r\n")[2][2:]
    alice.receive(memoryview(bytes(message(answer(KEYS[0], challenge))) + bytes(batch(BOB))), 0.0)
    assert taken(bob)[-1].startswith(b"\x07" + ALICE)


def test_a_wrong_signature_is_denied_in_words_and_closed() -> None:
    router = make_router()
    client = Client(router, "192.0.2.1", 0.0)
    client.receive(memoryview(upgrade_request()), 0.0)
    client.take(10**9)
    client.receive(message(answer(KEYS[0], b"\x00" + bytes(15) + b"\xff")), 0.0)
    denial, close = taken(client)
    assert denial[2:] == b"the signature of the challenge is wrong"
    assert close.startswith(b"x\x03\xf0")
    assert phase_of(client) is Phase.CLOSING
    assert router.counters.logins_failed == 1


def test_nothing_but_the_answer_may_come_before_admission() -> None:
    router = make_router(MemberAccess())
    client = greet(router, KEYS[0])
    assert phase_of(client) is Phase.WAITING
    client.receive(batch(BOB), 0.0)
    assert phase_of(client) is Phase.CLOSING
    assert router.counters.protocol_errors == 1

    chatty = Client(router, "192.0.2.1", 0.0)
    chatty.receive(memoryview(upgrade_request()), 0.0)
    for _ in range(50):
        chatty.receive(memoryview(Frame(Opcode.PING, bytes(100)).serialize(mask=True)), 0.0)
    assert phase_of(chatty) is Phase.CLOSING


def test_a_slow_handshake_ends() -> None:
    router = make_router()
    silent, half = Client(router, "192.0.2.1", 0.0), Client(router, "192.0.2.1", 0.0)
    half.receive(memoryview(upgrade_request()), 9.0)
    for client in (silent, half):
        assert not client.tick(9.9)
        assert phase_of(client) is not Phase.CLOSING
        assert not client.tick(10.0)
        assert phase_of(client) is Phase.CLOSING
        assert client.tick(11.0)
    assert router.counters.handshake_timeouts == 2


def test_a_member_that_comes_before_the_coordinator_knows_it_waits_a_little() -> None:
    members = MemberAccess()
    router = make_router(members)
    early, stranger = greet(router, KEYS[0]), greet(router, KEYS[2])
    assert taken(early) == []
    members.replace([ALICE])
    router.reconsider([early, stranger], 2.0)
    assert taken(early) == [b"\x02"]
    assert phase_of(early) is Phase.CONNECTED
    stranger.tick(5.1)
    denial, _ = taken(stranger)
    assert denial[2:].decode() == members.refusal
    assert router.counters.logins_denied == 1


def test_who_is_no_member_any_more_is_closed_and_its_queue_dropped() -> None:
    members = MemberAccess()
    members.replace([ALICE, BOB])
    router = make_router(members)
    alice, bob = greet(router, KEYS[0]), greet(router, KEYS[1])
    alice.receive(batch(BOB), 0.0)
    members.replace([ALICE])
    router.reconsider([alice, bob], 1.0)
    assert [frame[:3] for frame in taken(bob)] == [b"x\x03\xf0"]
    assert phase_of(bob) is Phase.CLOSING
    assert phase_of(alice) is Phase.CONNECTED
    assert not router.is_connected(BOB)
    bob.receive(batch(ALICE), 1.0)
    assert taken(alice) == [b"\x02"]


@pytest.mark.parametrize(("token", "phase"), [("one", Phase.CONNECTED), ("two", Phase.CLOSING), ("", Phase.CLOSING)])
def test_a_token_admits(token: str, phase: Phase) -> None:
    access = TokenAccess(["one", "other"])
    router = make_router(access)
    client = greet(router, KEYS[0], token=token)
    assert client.phase is phase
    access.replace(["other"])
    router.reconsider([client], 1.0)
    assert phase_of(client) is Phase.CLOSING


def test_a_silent_client_is_pinged_and_then_closed() -> None:
    router = make_router()
    client, talker = greet(router, KEYS[0]), greet(router, KEYS[1])
    taken(client)
    talker.receive(batch(ALICE), 10.0)
    taken(client)
    client.tick(17.4)
    assert taken(client) == []
    for each in (client, talker):
        each.tick(17.5)
    (ping,) = taken(client)
    assert (ping[0], len(ping)) == (9, 9)
    assert taken(talker) == [b"\x02"]

    client.receive(message(b"\x0a" + ping[1:]), 20.0)
    client.tick(37.5)
    assert taken(client)[0][0] == 9
    client.tick(42.4)
    assert phase_of(client) is Phase.CONNECTED
    client.tick(42.5)
    assert phase_of(client) is Phase.CLOSING
    assert router.counters.ping_timeouts == 1


def test_a_ping_is_answered_with_its_bytes() -> None:
    client = greet(make_router(), KEYS[0])
    taken(client)
    client.receive(message(b"\x0912345678"), 1.0)
    assert taken(client) == [b"\x0a12345678"]


def test_a_client_that_only_asks_and_never_reads_takes_bounded_memory() -> None:
    router = make_router()
    client = greet(router, KEYS[0])
    for _ in range(3000):
        client.receive(memoryview(bytes(message(b"\x0912345678")) + Frame(Opcode.PING, bytes(125)).serialize(mask=True)), 1.0)
    assert router.queued_bytes == client.out_bytes < 16_000


def test_a_client_that_takes_nothing_is_closed_at_once() -> None:
    router = make_router()
    client = greet(router, KEYS[0])
    client.blocked_since = 1.0
    assert not client.tick(2.9)
    assert client.tick(3.0)
    assert router.counters.write_timeouts == 1


@pytest.mark.parametrize("frame", [b"", b"\x3f" + bytes(40), b"\x04" + bytes(20), b"\x02", b"\x09short"])
def test_a_frame_that_no_client_may_send_closes_it(frame: bytes) -> None:
    router = make_router()
    client = greet(router, KEYS[0])
    taken(client)
    client.receive(message(frame), 1.0)
    assert taken(client)[0].startswith(b"x\x03\xea")
    assert router.counters.protocol_errors == 1
    assert router.client_count == 0


# --------------------------------------------------------------------------------------------------------- who gets what


def test_the_newest_connection_of_an_id_gets_its_traffic() -> None:
    router = make_router()
    older, newer, bob = greet(router, KEYS[0]), greet(router, KEYS[0], version="iroh-relay-v1"), greet(router, KEYS[1])
    assert taken(older) == [b"\x02", b"\x0d\x01"]
    bob.receive(batch(ALICE), 1.0)
    assert taken(older) == []
    assert [frame[:1] for frame in taken(newer)] == [b"\x02", b"\x07"]

    third = greet(router, KEYS[0])
    assert taken(newer) == [b"\x0bsame endpoint id connected"]
    assert phase_of(older) is Phase.CLOSING, "a third connection closes the oldest"
    assert router.counters.replaced == 1
    third.lost()
    assert taken(newer) == [b"\x0b"]
    bob.receive(batch(ALICE), 1.0)
    assert [frame[:1] for frame in taken(newer)] == [b"\x07"]


def test_an_older_connection_that_ends_changes_nothing() -> None:
    router = make_router()
    older, newer = greet(router, KEYS[0]), greet(router, KEYS[0])
    taken(newer)
    older.lost()
    assert taken(newer) == []
    assert (router.client_count, router.id_count) == (1, 1)


def test_who_was_written_to_hears_that_the_writer_is_gone() -> None:
    router = make_router()
    alice, bob, carol = (greet(router, key) for key in KEYS[:3])
    alice.receive(batch(BOB), 1.0)
    for client in (bob, carol):
        taken(client)
    alice.lost()
    assert taken(bob) == [b"\x08" + ALICE]
    assert taken(carol) == []


def test_frames_for_nobody_are_dropped_and_counted() -> None:
    router = make_router()
    alice = greet(router, KEYS[0])
    alice.receive(batch(BOB), 1.0)
    assert router.counters.frames_without_receiver == 1
    assert phase_of(alice) is Phase.CONNECTED


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


def test_a_bucket_without_a_rate_never_pauses() -> None:
    assert TokenBucket(None, burst_seconds=1.0, now=0.0).take(10**12, 0.0) == 0.0


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


def test_the_text_for_prometheus() -> None:
    text = prometheus_text(Counters(logins=3), [("clients", "connected now", 2)])
    assert "# TYPE psyche_relay_logins_total counter\npsyche_relay_logins_total 3\n" in text
    assert "# HELP psyche_relay_clients connected now\n# TYPE psyche_relay_clients gauge\npsyche_relay_clients 2\n" in text
    assert all(line.startswith(("# ", "psyche_relay_")) for line in text.splitlines())


# ------------------------------------------------------------------------------------------------------------- any order


class AnyOrder(RuleBasedStateMachine):
    """Clients come, speak, read, stall and go in any order; the accounts always balance."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.members = MemberAccess()
        self.members.replace(bytes(key.verify_key) for key in KEYS)
        self.router = make_router(self.members)
        self.clients: list[Client] = []

    def alive(self) -> Iterable[Client]:
        return [client for client in self.clients if client.phase is Phase.CONNECTED]

    @rule(key=st.sampled_from(KEYS), version=st.sampled_from(["iroh-relay-v1", "iroh-relay-v2"]))
    def come(self, key: SigningKey, version: str) -> None:
        client = Client(self.router, "192.0.2.1", self.now)
        self.clients.append(client)
        client.receive(memoryview(upgrade_request(version)), self.now)
        rest = client.take(10**9).partition(b"\r\n\r\n")[2]
        if client.phase is Phase.CHALLENGED:
            client.receive(message(answer(key, rest[2:])), self.now)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), to=st.sampled_from(KEYS), size=st.integers(1, 1900))
    def speak(self, data: st.DataObject, to: SigningKey, size: int) -> None:
        data.draw(st.sampled_from(self.clients)).receive(batch(bytes(to.verify_key), size), self.now)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), frame=st.binary(max_size=60))
    def rave(self, data: st.DataObject, frame: bytes) -> None:
        data.draw(st.sampled_from(self.clients)).receive(message(frame), self.now)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), most=st.integers(1, 5000))
    def read(self, data: st.DataObject, most: int) -> None:
        client = data.draw(st.sampled_from(self.clients))
        waiting = client.out_bytes
        assert bool(client.take(most)) == bool(waiting)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        client.lost()
        self.clients.remove(client)

    @rule(seconds=st.floats(0, 30))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for client in list(self.clients):
            if client.tick(self.now):
                client.lost()
                self.clients.remove(client)

    @rule(keys=st.sets(st.sampled_from(KEYS)))
    def change_members(self, keys: set[SigningKey]) -> None:
        self.members.replace(bytes(key.verify_key) for key in keys)
        self.router.reconsider(self.clients, self.now)
        assert all(client.key in self.members.members for client in self.alive())

    @invariant()
    def accounts_balance(self) -> None:
        connected = list(self.alive())
        assert self.router.client_count == len(connected) <= SMALL.clients
        assert self.router.id_count == len({client.key for client in connected})
        assert all(sum(other.key == client.key for other in connected) <= 2 for client in connected)
        assert self.router.queued_bytes == sum(client.out_bytes for client in self.clients)
        assert self.router.queued_bytes <= SMALL.total_queue_bytes + 20_000 * max(1, len(self.clients))
        for client in self.clients:
            assert bool(client.ending) == (client.phase is Phase.CLOSING)
            assert client.out_bytes <= SMALL.queue_bytes + 70 * 250


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
