"""Which published addresses are dialled, and how often. The clock is a number."""

import ipaddress
import logging
import socket
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.testing.transport import connected, until
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.addresses.peer_address import PeerAddress
from psyche_p2p_quic.connections import dial_budget
from psyche_p2p_quic.connections.dial_budget import HOUR, LIBRARY_SECONDS, PROVEN_SECONDS, DialBudget
from psyche_p2p_quic.connections.dial_ranges import may_dial
from psyche_p2p_quic.settings import QuicSettings
from psyche_p2p_quic.transport import QuicTransport

PEER, OTHER = b"p" * 32, b"o" * 32
GOOD = "203.0.113.1:4433"
FALSE = [f"198.51.100.{n}:4433" for n in range(15)]
PUBLIC, LAN, CLOUD, CARRIER, SITE, LOOPBACK = (
    "8.8.8.8",
    "192.168.1.7",
    "10.128.0.2",
    "100.64.3.4",
    "fd12:3456:789a:1::5",
    "127.0.0.1",
)


@pytest.mark.parametrize(
    ("text", "own", "expected"),
    [
        ("9.9.9.9", [LAN], True),
        ("9.9.9.9", [LOOPBACK], True),
        ("2620:fe::fe", [LAN], True),
        ("192.168.1.1", [LAN], True),
        ("192.168.77.1", [LAN], True),
        ("192.168.1.1", [PUBLIC], False),
        ("192.168.1.1", [CLOUD], False),
        ("10.0.0.1", [CLOUD, PUBLIC], True),
        ("10.0.0.1", [LAN], False),
        ("172.31.0.1", [LAN, CLOUD], False),
        ("172.32.0.1", [PUBLIC], True),
        ("100.100.0.1", [CARRIER], True),
        ("100.100.0.1", [LAN, PUBLIC], False),
        ("169.254.169.254", [LAN, PUBLIC], False),
        ("fd12:3456:789a:ffff::1", [SITE], True),
        ("fd12:3456:789b::1", [SITE], False),
        ("fe80::1", [LAN, SITE], False),
        ("127.0.0.1", [LAN, PUBLIC], False),
        ("127.8.8.8", [LOOPBACK], True),
        ("::1", [LOOPBACK], True),
        ("::1", [LAN], False),
        ("192.168.1.1", [LOOPBACK], False),
        ("::ffff:192.168.1.1", [PUBLIC], False),
        ("::ffff:192.168.1.1", [LAN], True),
        ("::ffff:127.0.0.1", [LAN], False),
        ("2002:c0a8:0101::1", [PUBLIC], False),
        ("64:ff9b::10.0.0.1", [PUBLIC], False),
        ("2001:0:7f00:1::1", [PUBLIC], False),
        ("255.255.255.255", [LAN], False),
        ("240.0.0.1", [PUBLIC], False),
        ("192.0.2.1", [PUBLIC], False),
        ("0.1.2.3", [PUBLIC], False),
        ("239.1.1.1", [PUBLIC], False),
        ("8.8.8.8", [], True),
        ("10.0.0.1", [], False),
    ],
)
def test_private_addresses_are_dialled_only_from_within(text: str, own: list[str], expected: bool) -> None:
    assert may_dial(text, [ipaddress.ip_address(ip) for ip in own]) is expected


@given(st.ip_addresses())
def test_who_is_public_dials_nothing_but_what_is_public(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    if may_dial(str(ip), [ipaddress.ip_address(PUBLIC)]):
        assert (getattr(ip, "ipv4_mapped", None) or ip).is_global


class Dialler:
    """Dials as the mesh does, as often as it may, at addresses of which none answers; counts what the library sends to."""

    def __init__(self, budget: DialBudget) -> None:
        self.budget = budget
        self.sent: Counter[str] = Counter()
        self.now = 0.0
        self._remembered: dict[bytes, dict[str, float]] = {}

    def dial(self, peer: bytes, addresses: Sequence[str]) -> list[str]:
        chosen, wait = self.budget.take(peer, addresses, now=self.now)
        if not chosen:
            assert wait > 0
            return []

        known = self._remembered.setdefault(peer, {})
        for address, at in list(known.items()):
            if self.now - at > LIBRARY_SECONDS / 2:  # as long as the library really remembers
                del known[address]
        known.update(dict.fromkeys(chosen, self.now))
        for address in known:
            known[address] = self.now
            self.sent[address] += 1
        return chosen


def test_a_members_addresses_are_tried_an_hours_worth_however_often_it_is_dialled() -> None:
    dialler = Dialler(DialBudget(per_peer=64, per_host=1000))
    while dialler.now < HOUR:
        dialler.dial(PEER, FALSE)
        dialler.now += 5.0
    assert 64 <= dialler.sent.total() <= 2 * 64 + len(FALSE)


def test_publishing_others_each_time_gives_no_more_tries() -> None:
    """Nor do those that the library still sends to count for nothing."""
    dialler = Dialler(DialBudget(per_peer=64, per_host=1000))
    number = 0
    while dialler.now < HOUR:
        number += 1
        dialler.dial(PEER, [f"198.51.100.{number % 200}:{number}"])
        dialler.now += 5.0
    assert 64 <= dialler.sent.total() <= 2 * 64 + 16


def test_a_host_is_tried_no_more_often_for_many_members_or_ports() -> None:
    dialler = Dialler(DialBudget(per_peer=64, per_host=100))
    while dialler.now < HOUR:
        for number in range(50):
            dialler.dial(bytes([number]) * 32, [f"198.51.100.7:{1 + port}" for port in range(number, number + 16)])
        dialler.now += 60.0
    assert 100 <= dialler.sent.total() <= 200 + 50 * 16


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("198.51.100.7:1", "198.51.100.7:2", True),
        ("198.51.100.7:1", "198.51.100.8:1", False),
        ("[::ffff:198.51.100.7]:1", "198.51.100.7:1", True),
        ("[2001:db8:1:2::1]:1", "[2001:db8:1:2:9::9]:7", True),
        ("[2001:db8:1:2::1]:1", "[2001:db8:1:3::1]:1", False),
    ],
)
def test_what_counts_as_one_host(one: str, other: str, same: bool) -> None:
    budget = DialBudget(per_peer=64, per_host=1)
    assert budget.take(PEER, [one], now=0.0) == ([one], 0.0)
    assert bool(budget.take(OTHER, [other], now=0.0)[0]) is not same


def test_tries_come_back_with_time_and_the_wait_is_told() -> None:
    budget = DialBudget(per_peer=2, per_host=1000)
    assert budget.take(PEER, FALSE[:2], now=0.0)[0] == FALSE[:2]
    chosen, wait = budget.take(PEER, FALSE[:2], now=0.0)
    assert chosen == []
    assert wait <= LIBRARY_SECONDS + 1, "then the library has forgotten them"
    now = wait
    chosen, wait = budget.take(PEER, FALSE[:2], now=now)
    assert chosen == []
    assert now + wait == pytest.approx(HOUR / 2)
    assert budget.take(PEER, FALSE[:2], now=now + wait + 0.01)[0] == FALSE[:1]


def test_an_address_that_proved_its_key_is_dialled_freely_and_alone() -> None:
    budget = DialBudget(per_peer=20, per_host=1000)
    addresses = [*FALSE, GOOD]
    now = 0.0
    assert budget.take(PEER, addresses, now=now)[0] == addresses
    budget.proved(PEER, GOOD, now=now)
    budget.ended(PEER, now=now)
    now += LIBRARY_SECONDS + 1
    for _ in range(1000):
        assert budget.take(PEER, addresses, now=now)[0] == [GOOD]
        budget.proved(PEER, GOOD, now=now)
        budget.ended(PEER, now=now)
        now += 0.1


def test_what_the_library_still_sends_to_is_counted_when_the_proven_one_is_dialled() -> None:
    """A member that answers at one address and hangs up again and again has us send to fifteen others each time."""
    dialler = Dialler(DialBudget(per_peer=64, per_host=1000))
    while dialler.now < HOUR:
        if dialler.dial(PEER, [*FALSE, GOOD]):
            dialler.budget.proved(PEER, GOOD, now=dialler.now)
            dialler.budget.ended(PEER, now=dialler.now)
        dialler.now += 1.0
    false = sum(count for address, count in dialler.sent.items() if address != GOOD)
    assert false <= 2 * 64 + len(FALSE)
    assert dialler.sent[GOOD] > 1000


def test_a_long_connection_does_not_make_the_library_forget() -> None:
    budget = DialBudget(per_peer=64, per_host=1000)
    budget.take(PEER, [*FALSE, GOOD], now=0.0)
    budget.proved(PEER, GOOD, now=0.0)
    budget.ended(PEER, now=10 * HOUR)
    for _ in range(4):
        assert budget.take(PEER, [GOOD], now=10 * HOUR)[0] == [GOOD], "an hour without answer has not passed"
        budget.proved(PEER, GOOD, now=10 * HOUR)
    assert budget.take(PEER, [GOOD], now=10 * HOUR)[0] == [], "fifteen others were sent to four times"


def test_when_the_proven_one_does_not_answer_the_others_are_tried_too() -> None:
    budget = DialBudget(per_peer=64, per_host=1000)
    budget.proved(PEER, GOOD, now=0.0)
    assert budget.take(PEER, [FALSE[0], GOOD], now=1.0)[0] == [GOOD]
    assert budget.take(PEER, [FALSE[0], GOOD], now=2.0)[0] == [GOOD, FALSE[0]]


def test_a_proof_lapses() -> None:
    budget = DialBudget(per_peer=1, per_host=1000)
    budget.proved(PEER, GOOD, now=0.0)
    assert budget.take(PEER, [GOOD], now=PROVEN_SECONDS)[0] == [GOOD]
    assert budget.take(PEER, [GOOD], now=PROVEN_SECONDS + 1)[0] == [GOOD]
    assert budget.take(PEER, [GOOD], now=PROVEN_SECONDS + 2)[0] == []


def test_a_connection_gives_back_what_was_spent_on_its_address() -> None:
    """A run with hundreds of members at one host, all honest, waits for nobody."""
    budget = DialBudget(per_peer=2, per_host=2)
    for number in range(500):
        peer, address = number.to_bytes(32, "big"), f"203.0.113.1:{1000 + number}"
        assert budget.take(peer, [address], now=0.0)[0] == [address]
        budget.proved(peer, address, now=0.0)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial_budget, "REMEMBERED_PEERS", 10)
    monkeypatch.setattr(dial_budget, "REMEMBERED_HOSTS", 20)
    budget = DialBudget(per_peer=64, per_host=64)
    for number in range(100):
        peer = number.to_bytes(32, "big")
        budget.take(peer, [f"198.51.{number}.1:1"], now=0.0)
        for port in range(100):
            budget.proved(peer, f"198.51.{number}.1:{1 + port}", now=0.0)
    assert (len(budget._peers), len(budget._hosts)) == (10, 20)
    assert all(len(state.proven) <= 16 for state in budget._peers.values())


@given(
    st.lists(
        st.tuples(
            st.sampled_from([PEER, OTHER]), st.sampled_from(["take", "proved", "ended"]), st.integers(0, 15), st.floats(0, 400)
        ),
        max_size=60,
    )
)
def test_never_more_than_the_hours_worth_and_never_stuck(actions: list[tuple[bytes, str, int, float]]) -> None:
    dialler = Dialler(DialBudget(per_peer=10, per_host=10_000))
    addresses = [*FALSE, GOOD]
    false: Counter[bytes] = Counter()
    for peer, action, choice, passed in actions:
        dialler.now += passed
        before = dialler.sent.total() - dialler.sent[GOOD]
        if action == "take":
            dialler.dial(peer, addresses[choice:])
        elif action == "proved":
            dialler.budget.proved(peer, GOOD, now=dialler.now)
        else:
            dialler.budget.ended(peer, now=dialler.now)
        false[peer] += dialler.sent.total() - dialler.sent[GOOD] - before
    assert all(count <= 10 + 10 * dialler.now / HOUR + 16 for count in false.values())
    chosen, wait = dialler.budget.take(PEER, addresses, now=dialler.now)
    while not chosen:
        assert wait > 0
        dialler.now += wait
        chosen, wait = dialler.budget.take(PEER, addresses, now=dialler.now)
    assert dialler.now < 100 * HOUR


def attempts(victim: socket.socket) -> set[bytes]:
    """The connections somebody tried to make to a socket, by the ids in their first packets."""
    found = set()
    with suppress(BlockingIOError):
        while True:
            packet = victim.recv(65536)
            if packet[0] & 0x80:  # a long header: flags, version, length and bytes of the destination's id
                found.add(packet[6 : 6 + packet[5]])
    return found


@pytest.mark.quic
async def test_others_that_a_member_names_are_left_in_peace_after_a_few_tries(caplog: pytest.LogCaptureFixture) -> None:
    """Real packets to a socket of somebody who knows nothing of it, also when the member publishes them again and again."""
    caplog.set_level(logging.DEBUG)
    settings = QuicSettings(handshake_seconds=0.1, retry_seconds=0.01, dial_grace_seconds=0.0, dials_per_peer=3)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as victim:
        victim.bind(("127.0.0.3", 0))
        victim.setblocking(False)
        member = SecretKey.generate().public
        tried = set()
        async with QuicTransport("run", SecretKey.generate(), settings=settings) as transport:
            for number in range(1, 4):
                published = PeerAddress((("127.0.0.3", victim.getsockname()[1]), ("127.0.0.4", number)))
                caplog.clear()
                await transport.set_peers({member: published.encode()})
                await until(lambda: "tried too often" in caplog.text)
                tried |= attempts(victim)
        assert 1 <= len(tried) <= 3


@pytest.mark.quic
async def test_a_network_we_are_not_in_is_not_dialled_and_the_peer_comes_to_us(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        QuicTransport("run", SecretKey.generate()) as one,
        QuicTransport("run", SecretKey.generate()) as other,
    ):
        await one.set_peers({other.peer_id: PeerAddress((("192.168.1.1", 80), ("169.254.169.254", 80))).encode()})
        await until(lambda: "is not dialled: it published only addresses of private networks" in caplog.text)
        await other.set_peers({one.peer_id: one.address})
        await connected((one, other))


@pytest.mark.quic
async def test_a_peer_behind_a_relay_that_is_not_ours_is_not_dialled_and_one_is_told_which(
    caplog: pytest.LogCaptureFixture,
) -> None:
    published = PeerAddress((("192.168.1.1", 80),), "http://127.0.0.1:9", bytes(8))
    async with QuicTransport("run", SecretKey.generate()) as one:
        await one.set_peers({SecretKey.generate().public: published.encode()})
        await until(lambda: "and its relay http://127.0.0.1:9 is none of ours" in caplog.text)


@pytest.mark.quic
async def test_relays_that_are_named_a_moment_after_the_members_are_in_time(caplog: pytest.LogCaptureFixture) -> None:
    published = PeerAddress((("192.168.1.1", 80),), "http://127.0.0.1:9", bytes(8))
    settings = QuicSettings(retry_seconds=100.0, retry_most_seconds=100.0, dial_grace_seconds=0.0, relay_seconds=0.1)
    async with QuicTransport("run", SecretKey.generate(), settings=settings) as one:
        await one.set_peers({SecretKey.generate().public: published.encode()})
        await one.use_relays(["http://127.0.0.1:9"])
        assert "is not dialled" not in caplog.text


@pytest.mark.quic
async def test_a_member_that_answers_is_dialled_again_however_often_it_hangs_up() -> None:
    """Four tries for ten connections: on a busy machine one may end before we have read where it came from."""
    settings = QuicSettings(dial_grace_seconds=0.0, retry_seconds=0.01, dials_per_peer=4, dials_per_host=4)
    async with (
        QuicTransport("run", SecretKey.generate(), settings=settings) as dialler,
        QuicTransport("run", SecretKey.generate()) as other,
    ):
        await other.set_peers({dialler.peer_id: b""})
        await dialler.set_peers({other.peer_id: other.address})
        for _ in range(10):
            await connected((dialler, other))
            assert dialler._mesh is not None
            assert other._mesh is not None
            session = dialler._mesh.sessions[other.peer_id]
            assert session.dialled
            other._mesh.sessions[dialler.peer_id].close(0, "enough for now")
            await session.ended.wait()
