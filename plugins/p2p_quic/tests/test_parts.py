"""The rooms without I/O: frames, addresses, conversations, reputation."""

import hashlib
from collections.abc import Collection
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.errors import WireError
from psyche_core.interfaces.transport import MAX_MESSAGE_BYTES, Opened
from psyche_core.p2p.message_log import LogEntry, LogLimits, MessageLog
from psyche_core.wire import codec
from psyche_p2p_quic.addresses.peer_address import MAX_ADDRESS_BYTES, PeerAddress
from psyche_p2p_quic.blobs.frames import BLOB_HEAD_BYTES, BLOB_REQUEST_BYTES, BlobHead, BlobRequest
from psyche_p2p_quic.connections import control_frames
from psyche_p2p_quic.connections.control_frames import Have, Hello, IHave, Inventory, IWant, Message, Ping, Pong
from psyche_p2p_quic.connections.control_protocol import ControlProtocol, PeerSilent
from psyche_p2p_quic.connections.reputation import Reputation
from psyche_p2p_quic.connections.which_stays import newer_stays
from psyche_p2p_quic.settings import QuicSettings

NUMBERS = st.integers(0, 2**63 - 1)
FRAMES = st.one_of(
    st.builds(Hello, st.text(max_size=40), st.binary(min_size=8, max_size=8)),
    st.builds(Message, NUMBERS, st.binary(max_size=200), st.booleans()),
    st.builds(Inventory, st.lists(st.binary(min_size=16, max_size=16), max_size=20).map(tuple)),
    st.builds(Ping, NUMBERS, st.none() | st.binary(min_size=32, max_size=32)),
    st.builds(Pong, NUMBERS),
    st.builds(IHave, st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=20).map(tuple)),
    st.builds(IWant, st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=20).map(tuple)),
    st.builds(Have, st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=20).map(tuple)),
)


@given(FRAMES)
def test_frames_come_out_as_they_went_in(frame: control_frames.Frame) -> None:
    assert control_frames.decode(control_frames.encode(frame), max_bytes=10_000) == frame


@given(st.binary(max_size=200))
def test_garbage_is_a_wire_error_and_nothing_else(data: bytes) -> None:
    try:
        frame = control_frames.decode(data, max_bytes=10_000)
    except WireError:
        return
    assert control_frames.encode(frame) == data


@pytest.mark.parametrize(
    "value",
    [
        [1, -1, b"", False],
        [1, True, b"", False],
        [1, 2**63, b"", False],
        [1, 1, b"x" * (MAX_MESSAGE_BYTES + 1), False],
        [1, 1, b"x", 0],
        [2, b"x" * 17],
        [2, b"x" * 16 * (control_frames.MAX_INVENTORY + 1)],
        [3, 1, b"x" * 31],
        [0, 1, "run", b"short"],
        [5, b"x" * 17],
        [5, b"x" * 16 * (control_frames.MAX_IDS + 1)],
        [6, b"x" * 15],
        [6, b"x" * 16 * (control_frames.MAX_IDS + 1)],
        [7],
        [7, b"x" * 17],
        [7, b"x" * 16 * (control_frames.MAX_IDS + 1)],
        [8, b"x" * 16],
        [],
        {},
        7,
    ],
)
def test_frames_against_the_rules_are_refused(value: control_frames.Frame) -> None:
    with pytest.raises(WireError):
        control_frames.decode(codec.encode(value), max_bytes=10**6)


def test_a_blob_request_of_another_version_is_refused_with_both_versions() -> None:
    request = BlobRequest(bytes(32), 1).encode()
    with pytest.raises(WireError, match="version 2 came to a program of version 3; update the older one"):
        BlobRequest.decode(b"\x02" + request[1:])
    with pytest.raises(WireError, match="has 41 bytes, got 40"):
        BlobRequest.decode(request[:-1])


@pytest.mark.parametrize("kind", [IHave, IWant, Have])
def test_a_list_of_no_ids_is_refused(kind: type[IHave | IWant | Have]) -> None:
    with pytest.raises(WireError):
        control_frames.decode(control_frames.encode(kind(())), max_bytes=100)


def test_an_announcement_of_results_counts_for_many_frames() -> None:
    ids = tuple(bytes([number % 256]) * 16 for number in range(control_frames.MAX_IDS))
    assert control_frames.cost(control_frames.encode(Have(ids[:1]))) == 16
    assert control_frames.cost(control_frames.encode(Have(ids))) == 16 + 8192 // 64
    for frame in (IHave(ids), Pong(7), Inventory(ids), Message(7, bytes(100), False)):
        assert control_frames.cost(control_frames.encode(frame)) == 1
    assert control_frames.cost(b"") == 1


def test_another_version_is_named() -> None:
    for other in (2, 4):
        with pytest.raises(WireError, match=f"transport version {other} came to a program of version 3; update the older one"):
            control_frames.decode(codec.encode([0, other, "run", b"12345678", "more"]), max_bytes=1000)


@given(st.binary(min_size=32, max_size=32), st.integers(0, 2**64 - 1), st.booleans())
def test_blob_requests_and_heads_come_out_as_they_went_in(blob_hash: bytes, number: int, found: bool) -> None:
    request = BlobRequest(blob_hash, number)
    assert len(request.encode()) == BLOB_REQUEST_BYTES
    assert BlobRequest.decode(request.encode()) == request
    head = BlobHead(found, number)
    assert len(head.encode()) == BLOB_HEAD_BYTES
    assert BlobHead.decode(head.encode()) == head


@pytest.mark.parametrize("data", [b"", b"\2" + bytes(40), b"\3" + bytes(39), b"\3" + bytes(41)])
def test_malformed_blob_requests_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        BlobRequest.decode(data)


def test_malformed_blob_heads_are_refused() -> None:
    for data in (b"", b"\2" + bytes(8), bytes(8)):
        with pytest.raises(WireError):
            BlobHead.decode(data)


# ------------------------------------------------------------------------------------------------------------- addresses


def test_addresses_are_opaque_short_and_dialable() -> None:
    address = PeerAddress((("192.0.2.1", 4433), ("2001:db8::1", 1)))
    assert len(address.encode()) <= MAX_ADDRESS_BYTES
    assert PeerAddress.decode(address.encode()) == address
    assert address.dialable() == ["192.0.2.1:4433", "[2001:db8::1]:1"]


@pytest.mark.parametrize(
    "value",
    [
        [2, [], None],
        [1, [["192.0.2.1", 0]], None],
        [1, [["192.0.2.1", 65536]], None],
        [1, [["192.0.2.1", True]], None],
        [1, [["example.org", 1]], None],
        [1, [["239.255.255.250", 1900]], None],
        [1, [["0.0.0.0", 1]], None],
        [1, [["fe80::1%eth0", 1]], None],
        [1, [["192.0.2.1", 1]] * 17, None],
        [1, [["192.0.2.1", 1]], "https://relay.example"],
        [1, [["192.0.2.1"]], None],
        "192.0.2.1:1",
    ],
)
def test_addresses_against_the_rules_are_refused(value: control_frames.Frame) -> None:
    with pytest.raises(WireError):
        PeerAddress.decode(codec.encode(value))


@given(st.binary(max_size=100))
def test_any_bytes_as_address_are_at_most_a_wire_error(data: bytes) -> None:
    try:
        PeerAddress.decode(data)
    except WireError:
        return


# --------------------------------------------------------------------------------------------------------- conversations


def own_entry(log: MessageLog, message: bytes, *, tag: int) -> LogEntry:
    entry = log.add_own(message, tag=tag)
    assert entry is not None
    return entry


def next_message(log: MessageLog) -> bytes:
    entry = log.read()
    assert entry is not None
    return entry.message


def pair(**limits: int) -> tuple[tuple[MessageLog, MessageLog], tuple[ControlProtocol, ControlProtocol]]:
    settings = QuicSettings(silent_beats=3, inventory_beats=2)
    logs = MessageLog(limits=LogLimits(**limits)), MessageLog(limits=LogLimits(**limits))
    return logs, (ControlProtocol(b"b" * 32, logs[0], settings=settings), ControlProtocol(b"a" * 32, logs[1], settings=settings))


def exchange(one: ControlProtocol, other: ControlProtocol, frames: list[bytes]) -> int:
    """Carry frames, and the answers to them, to and fro until nobody has anything to say; returns how many were carried."""
    carried = 0
    while frames:
        carried += len(frames)
        other.note_received()
        frames, one, other = [answer for data in frames for answer in other.receive(data)], other, one
    return carried


def test_after_the_opening_both_hold_the_same() -> None:
    logs, (one, other) = pair()
    for n in range(5):
        logs[0].add_own(b"left %d" % n, tag=n)
        logs[1].add_own(b"right %d" % n, tag=n)
    exchange(one, other, one.opening())
    exchange(other, one, other.opening())
    assert logs[0].digest() == logs[1].digest()
    assert len(logs[0]) == 10


def test_nothing_is_sent_twice_on_one_connection() -> None:
    logs, (one, other) = pair()
    entry = own_entry(logs[0], b"once", tag=1)
    assert len(one.announce(entry)) == 1
    assert one.announce(entry) == []
    assert one.receive(other.opening()[0]) == []


def test_a_message_that_came_from_the_peer_is_not_given_back() -> None:
    logs, (one, other) = pair()
    (data,) = one.announce(own_entry(logs[0], b"ours", tag=1))
    other.receive(data)
    assert other.receive(control_frames.encode(Inventory(()))) == []


def test_who_lacks_a_message_gets_it_after_a_few_beats_though_nobody_connects() -> None:
    logs, (one, other) = pair()
    exchange(one, other, one.opening())
    logs[0].add_from(b"c" * 32, b"from a third", tag=1, relayed=False)
    for _ in range(4):
        exchange(one, other, one.beat())
        exchange(other, one, other.beat())
    assert next_message(logs[1]) == b"from a third"


def test_who_is_told_of_a_message_asks_for_it_and_gets_it_without_a_beat() -> None:
    logs, (one, other) = pair()
    logs[0].add_from(b"c" * 32, b"from a third", tag=1, relayed=False)
    assert exchange(one, other, one.announce_known(logs[0].take_received())) == 3  # told, asked for, given
    assert next_message(logs[1]) == b"from a third"
    assert logs[0].take_received() == []


def test_who_has_a_message_does_not_ask_for_it_and_is_not_told_of_it_again() -> None:
    logs, (one, other) = pair()
    for log in logs:
        log.add_from(b"c" * 32, b"from a third", tag=1, relayed=False)
    assert exchange(one, other, one.announce_known(logs[0].take_received())) == 1
    assert other.announce_known(logs[1].take_received()) == []


def test_who_says_to_have_a_message_and_keeps_it_is_not_the_only_one_asked() -> None:
    logs, (one, other) = pair()
    message_id = hashlib.sha256(b"kept back").digest()
    told = control_frames.encode(IHave((message_id[:16],)))
    (asked,) = ControlProtocol(b"r" * 32, logs[0], settings=QuicSettings()).receive(told)
    assert control_frames.decode(asked, max_bytes=1000) == IWant((message_id[:16],))
    logs[1].add_from(b"c" * 32, b"kept back", tag=1, relayed=False)
    exchange(other, one, other.announce_known(logs[1].take_received()))
    assert next_message(logs[0]) == b"kept back"


def test_few_are_asked_for_the_same_message() -> None:
    log = MessageLog()
    several = [ControlProtocol(bytes([n]) * 32, log, settings=QuicSettings()) for n in range(5)]
    told = control_frames.encode(IHave((b"x" * 16,)))
    assert [len(peer.receive(told)) for peer in several] == [1, 1, 1, 0, 0]


def test_who_tells_of_a_message_again_and_again_is_asked_once_and_others_still_are() -> None:
    log = MessageLog()
    rogue, other = (ControlProtocol(peer * 32, log, settings=QuicSettings()) for peer in (b"r", b"o"))
    asked = [answer for _ in range(3) for answer in rogue.receive(control_frames.encode(IHave((b"x" * 16,) * 3)))]
    assert [control_frames.decode(answer, max_bytes=1000) for answer in asked] == [IWant((b"x" * 16,))]
    assert len(other.receive(control_frames.encode(IHave((b"x" * 16,))))) == 1


def signed(author: bytes, text: bytes) -> bytes:
    """A message of the tests below: `read_signed` opens it."""
    return author + b"signed " + text


def read_signed(message: bytes) -> Opened:
    if message[32:39] != b"signed ":
        error = "nobody signed it"
        raise WireError(error)

    return Opened(message[:32], message[39:])


def checked(own: bytes, members: Collection[bytes], **limits: int) -> MessageLog:
    log = MessageLog(own=own, limits=LogLimits(**limits))
    log.check_with(read_signed)
    log.set_members(members)
    return log


ROGUE, MEMBER, US, STRANGER = (letter * 32 for letter in (b"r", b"m", b"u", b"s"))


Frame = TypeVar("Frame")


def read(data: bytes, kind: type[Frame]) -> Frame:
    frame = control_frames.decode(data, max_bytes=10**6)
    assert isinstance(frame, kind)
    return frame


def everything_told(log: MessageLog, *others: bytes) -> list[bytes]:
    """All that a member gives to or tells one that has nothing."""
    one = ControlProtocol(b"n" * 32, log, settings=QuicSettings())
    told = [read(data, IHave).prefixes for data in one.announce_known(log.take_received())]
    listed = one.receive(control_frames.encode(Inventory(())))
    one = ControlProtocol(b"n" * 32, log, settings=QuicSettings())
    ids = tuple(hashlib.sha256(message).digest()[:16] for message in others)
    asked = one.receive(control_frames.encode(IWant(ids)))
    assert {prefix for prefixes in told for prefix in prefixes} <= set(ids)
    assert listed == asked
    return [read(data, Message).message for data in asked]


def test_what_nobody_signed_is_neither_told_nor_given_and_costs_the_connection() -> None:
    log = checked(US, (ROGUE, MEMBER))
    rogue = ControlProtocol(ROGUE, log, settings=QuicSettings())
    junk = [b"junk %d" % n for n in range(3)]
    for message in junk[:2]:
        assert rogue.receive(control_frames.encode(Message(1, message, True))) == []
    with pytest.raises(WireError, match="3 false messages; the last: nobody signed it"):
        rogue.receive(control_frames.encode(Message(1, junk[2], True)))
    assert everything_told(log, *junk) == []
    assert log.digest() == MessageLog().digest()
    assert not log.has_unread


def test_what_a_member_signed_is_told_and_given_whoever_brings_it() -> None:
    log = checked(US, (ROGUE, MEMBER))
    message = signed(MEMBER, b"hello")
    ControlProtocol(ROGUE, log, settings=QuicSettings()).receive(control_frames.encode(Message(1, message, True)))
    assert everything_told(log, message) == [message]


def test_what_an_unknown_key_signed_is_read_and_passed_on_once_the_key_is_a_members() -> None:
    log = checked(US, (ROGUE, MEMBER))
    message = signed(STRANGER, b"I am new")
    relayer = ControlProtocol(MEMBER, log, settings=QuicSettings())
    for n in range(10):  # no offence: it may have learned of the member before us
        relayer.receive(control_frames.encode(Message(1, signed(STRANGER, b"%d" % n), True)))
    relayer.receive(control_frames.encode(Message(1, message, True)))
    assert everything_told(log, message) == []
    assert log.digest() == MessageLog().digest()
    log.set_members((ROGUE, MEMBER, STRANGER))
    newcomer = ControlProtocol(b"n" * 32, log, settings=QuicSettings())
    (told,) = newcomer.announce_known(log.take_received())
    assert len(read(told, IHave).prefixes) == 11
    assert len(newcomer.receive(control_frames.encode(Inventory(())))) == 11


def test_a_message_that_came_and_went_may_be_asked_for_again() -> None:
    logs, (one, _) = pair()
    told = control_frames.encode(IHave((hashlib.sha256(b"again").digest()[:16],)))
    for _ in range(4):
        one.receive(told)
    logs[0].add_own(b"again", tag=1)
    assert one.receive(told) == []
    logs[0].expire(2)
    assert len(one.receive(told)) == 1


def test_ids_of_messages_that_nobody_has_are_asked_for_a_bounded_number_of_times() -> None:
    _, (one, _) = pair()

    def asked() -> int:
        ids = (
            tuple(batch.to_bytes(8, "big") + n.to_bytes(8, "big") for n in range(control_frames.MAX_IDS)) for batch in range(20)
        )
        answers = [answer for batch in ids for answer in one.receive(control_frames.encode(IHave(batch)))]
        wants = [control_frames.decode(answer, max_bytes=10**5) for answer in answers]
        return sum(len(want.prefixes) for want in wants if isinstance(want, IWant))

    assert asked() == 2048
    assert asked() == 0
    one.beat()
    assert 0 < asked() <= 2048


def test_what_is_asked_for_is_given_once_and_what_is_not_there_is_not() -> None:
    logs, (one, _) = pair()
    logs[0].add_from(b"c" * 32, b"here", tag=1, relayed=False)
    entry = logs[0].take_received()[0]
    asked = control_frames.encode(IWant((entry.id[:16], b"x" * 16)))
    assert one.receive(asked) == [control_frames.encode(Message(1, b"here", True))]
    assert one.receive(asked) == []


def test_what_a_peer_asks_for_within_a_beat_is_a_few_megabytes() -> None:
    logs, (one, _) = pair(own_messages=1000, own_bytes=2**25)
    entries = [own_entry(logs[0], n.to_bytes(2, "big") * (MAX_MESSAGE_BYTES // 2), tag=1) for n in range(600)]  # 9.6 MB

    def given() -> int:
        asked = (IWant(tuple(entry.id[:16] for entry in entries[at : at + 100])) for at in range(0, 600, 100))
        return sum(len(answer) for frame in asked for answer in one.receive(control_frames.encode(frame)))

    assert 4 * 2**20 <= given() < 4 * 2**20 + 2**16
    assert given() == 0
    one.beat()
    assert 4 * 2**20 <= given() < 4 * 2**20 + 2**16


def test_members_that_agree_only_ping() -> None:
    logs, (one, other) = pair()
    exchange(one, other, one.announce(own_entry(logs[0], b"agreed", tag=1)))
    for _ in range(10):
        assert exchange(one, other, one.beat()) == 2


def test_a_silent_peer_is_dead_after_some_beats_and_any_byte_revives_it() -> None:
    _, (one, _) = pair()
    one.beat()
    one.beat()
    one.note_received()
    one.beat()
    one.beat()
    one.beat()
    with pytest.raises(PeerSilent):
        one.beat()


def test_own_messages_over_the_share_break_the_rules_and_relayed_ones_do_not() -> None:
    logs, (_, other) = pair(own_messages=2, relayed_messages=2)
    for n in range(5):
        other.receive(control_frames.encode(Message(1, b"relayed %d" % n, True)))
    for n in range(2):
        other.receive(control_frames.encode(Message(1, b"own %d" % n, False)))
    with pytest.raises(WireError, match="share"):
        other.receive(control_frames.encode(Message(1, b"own 3", False)))
    assert len(logs[1]) == 4


def test_lists_in_quick_succession_are_not_all_answered() -> None:
    logs, (one, _) = pair()
    answers = []
    for n in range(6):
        logs[0].add_own(b"new %d" % n, tag=1)
        answers.append(len(one.receive(control_frames.encode(Inventory(())))))
    assert answers == [1, 1, 0, 0, 0, 0]


def test_one_list_is_answered_with_few_megabytes_and_the_rest_comes_later() -> None:
    """A peer that says to hold nothing, and reads nothing, would else make us copy all that is live at every connection."""
    logs, (one, other) = pair(own_messages=1000, own_bytes=2**25)
    for n in range(600):  # 9.6 MB
        logs[0].add_own(n.to_bytes(2, "big") * (MAX_MESSAGE_BYTES // 2), tag=1)
    given = one.receive(control_frames.encode(Inventory(())))
    assert 4 * 2**20 <= sum(map(len, given)) < 4 * 2**20 + 2**16
    for data in given:
        other.receive(data)
    for _ in range(12):
        exchange(one, other, one.beat())
        exchange(other, one, other.beat())
    assert logs[0].digest() == logs[1].digest()


def test_a_second_hello_breaks_the_rules() -> None:
    _, (one, _) = pair()
    with pytest.raises(WireError):
        one.receive(control_frames.encode(Hello("run", b"12345678")))


def test_forgets_what_expired() -> None:
    logs, (one, _) = pair()
    (data,) = one.announce(own_entry(logs[0], b"again", tag=1))
    logs[0].expire(2)
    one.beat()
    entry = own_entry(logs[0], b"again", tag=2)
    assert entry.id == hashlib.sha256(b"again").digest()
    assert one.announce(entry) not in ([], [data])


@pytest.mark.parametrize("smaller_saw_its_own_first", [True, False])
@pytest.mark.parametrize("larger_saw_its_own_first", [True, False])
def test_after_crossing_dials_both_ends_keep_the_one_the_smaller_key_dialled(
    smaller_saw_its_own_first: bool, larger_saw_its_own_first: bool
) -> None:
    small, large = b"a" * 32, b"b" * 32
    kept = []
    for own, peer, own_first in ((small, large, smaller_saw_its_own_first), (large, small, larger_saw_its_own_first)):
        newer = newer_stays(own, peer, old_dialled=own_first, new_dialled=not own_first)
        kept_one_we_dialled = own_first != newer
        kept.append(own if kept_one_we_dialled else peer)
    assert kept == [small, small]


def test_who_dials_again_has_lost_the_older_connection() -> None:
    for own, peer in ((b"a", b"b"), (b"b", b"a")):
        assert newer_stays(own, peer, old_dialled=True, new_dialled=True)
        assert newer_stays(own, peer, old_dialled=False, new_dialled=False)


def test_standing_refuses_for_a_while_and_forgets_strangers() -> None:
    reputation = Reputation(penalty_seconds=10, false_blobs=2)
    assert not reputation.served_false(b"a", now=0)
    assert reputation.served_false(b"a", now=1)
    assert reputation.refused_for(b"a", now=2) == 9
    assert reputation.refused_for(b"a", now=11) == 0
    assert reputation.refused_for(b"b", now=2) == 0
    assert set(reputation.doubted) == {b"a"}
    reputation.keep_only(frozenset((b"b",)))
    assert not reputation.doubted
    assert reputation.refused_for(b"a", now=2) == 0
