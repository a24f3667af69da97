"""The relay's decisions in virtual time: one client's life, who gets what, and the accounts that must always balance."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from nacl.signing import SigningKey
from websockets.frames import Frame, Opcode

from plugins.p2p_quic.tests.relay_parts import answer
from plugins.p2p_quic.tests.relay_steps import (
    ALICE,
    BOB,
    KEYS,
    SMALL,
    batch,
    greet,
    make_router,
    message,
    phase_of,
    taken,
    upgrade_request,
)
from psyche_p2p_quic.relay.access import MemberAccess, TokenAccess
from psyche_p2p_quic.relay.connection import Client, Phase
from psyche_p2p_quic.relay.metrics import Counters, prometheus_text


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
