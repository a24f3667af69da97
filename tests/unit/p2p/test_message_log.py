import hashlib

from hypothesis import given
from hypothesis import strategies as st

from psyche_core.p2p.message_log import PREFIX_BYTES, LogLimits, MessageLog, Verdict

ALICE, BOB = b"a" * 32, b"b" * 32


def test_a_message_is_read_once_however_often_it_comes():
    log = MessageLog()
    assert log.add_from(ALICE, b"one", tag=1, relayed=False) == (Verdict.NEW, hashlib.sha256(b"one").digest())
    assert log.add_from(BOB, b"one", tag=9, relayed=True)[0] is Verdict.KNOWN
    entry = log.read()
    assert entry is not None
    assert (entry.message, entry.via) == (b"one", ALICE)
    assert log.read() is None
    log.expire(2)
    assert log.add_from(BOB, b"one", tag=9, relayed=True)[0] is Verdict.KNOWN


def test_our_own_message_is_not_read_and_not_added_twice():
    log = MessageLog()
    assert log.add_own(b"mine", tag=1) is not None
    assert log.add_own(b"mine", tag=1) is None
    assert log.add_from(BOB, b"mine", tag=1, relayed=True)[0] is Verdict.KNOWN
    assert not log.has_unread


def test_expired_messages_are_dropped_and_refused():
    log = MessageLog()
    log.add_from(ALICE, b"old", tag=4, relayed=False)
    log.add_from(ALICE, b"new", tag=5, relayed=False)
    log.expire(5)
    assert [entry.message for entry in log.lacking(())] == [b"new"]
    assert log.add_from(ALICE, b"older", tag=4, relayed=False)[0] is Verdict.EXPIRED
    assert log.add_own(b"own", tag=4) is None
    log.expire(3)
    assert log.add_from(ALICE, b"older", tag=4, relayed=False)[0] is Verdict.EXPIRED


def test_a_message_that_expired_unread_may_come_again():
    log = MessageLog(limits=LogLimits(tag_ahead=1))
    log.expire(0)
    log.add_from(ALICE, b"early", tag=100, relayed=False)  # tag lowered to 1: our view is behind
    log.expire(90)
    assert not log.has_unread
    assert log.add_from(ALICE, b"early", tag=100, relayed=False)[0] is Verdict.NEW


def test_tags_far_ahead_are_lowered_also_those_that_came_before_ours():
    log = MessageLog(limits=LogLimits(tag_ahead=10))
    log.add_from(ALICE, b"before", tag=2**60, relayed=False)
    log.add_own(b"mine", tag=100)
    log.add_from(ALICE, b"after", tag=2**60, relayed=False)
    assert {entry.message: entry.tag for entry in log.lacking(())} == {b"mine": 100, b"before": 110, b"after": 110}
    log.expire(111)
    assert len(log) == 0


def test_own_share_is_an_offence_and_relayed_share_is_not():
    log = MessageLog(limits=LogLimits(own_messages=2, relayed_messages=3, own_bytes=100, relayed_bytes=100))
    own = [log.add_from(ALICE, bytes([n]), tag=1, relayed=False)[0] for n in range(3)]
    relayed = [log.add_from(ALICE, bytes([n]), tag=1, relayed=True)[0] for n in range(10, 14)]
    assert own == [Verdict.NEW, Verdict.NEW, Verdict.OFFENCE]
    assert relayed == [Verdict.NEW] * 3 + [Verdict.IGNORED]
    assert log.add_from(BOB, bytes([2]), tag=1, relayed=False)[0] is Verdict.NEW
    log.expire(2)
    assert log.add_from(ALICE, b"room again", tag=2, relayed=False)[0] is Verdict.NEW


def test_shares_count_bytes():
    log = MessageLog(limits=LogLimits(own_bytes=10))
    assert log.add_from(ALICE, b"x" * 10, tag=1, relayed=False)[0] is Verdict.NEW
    assert log.add_from(ALICE, b"y", tag=1, relayed=False)[0] is Verdict.OFFENCE


def test_memory_of_past_ids_is_bounded():
    log = MessageLog(limits=LogLimits(remembered=2))
    for n in range(3):
        log.add_from(ALICE, bytes([n]), tag=n, relayed=False)
        log.read()
    log.expire(3)
    verdicts = [log.add_from(ALICE, bytes([n]), tag=5, relayed=False)[0] for n in (2, 1, 0)]
    assert verdicts == [Verdict.KNOWN, Verdict.KNOWN, Verdict.NEW]


@given(
    left=st.lists(st.tuples(st.binary(min_size=1, max_size=4), st.integers(0, 50)), max_size=20),
    right=st.lists(st.tuples(st.binary(min_size=1, max_size=4), st.integers(0, 50)), max_size=20),
    before=st.integers(0, 50),
)
def test_two_logs_that_exchange_what_the_other_lacks_agree(left, right, before):
    logs = MessageLog(), MessageLog()
    for log, messages in zip(logs, (left, right), strict=True):
        log.expire(0)
        for message, tag in messages:
            log.add_own(message, tag=tag)
    tags = {}
    for message, tag in (*left, *right):
        tags.setdefault(message, set()).add(tag)
    one, two = logs
    for giver, taker in ((one, two), (two, one)):
        for entry in giver.lacking(taker.prefixes(1000)):
            assert taker.add_from(ALICE, entry.message, tag=entry.tag, relayed=True)[0] is Verdict.NEW
    assert one.digest() == two.digest()
    assert len(one) == len({message for message, _ in (*left, *right)})
    one.expire(before)
    assert all(entry.tag >= before for entry in one.lacking(()))
    assert len(one.prefixes(3)) == min(3, len(one))
    assert all(len(prefix) == PREFIX_BYTES for prefix in one.prefixes(3))


def test_what_came_is_given_once_to_be_told_to_others_and_is_bounded_where_nobody_asks():
    log = MessageLog(limits=LogLimits(own_messages=20_000, own_bytes=2**30))
    for n in range(10_000):
        log.add_from(ALICE, n.to_bytes(4, "big"), tag=1, relayed=False)
    came = log.take_received()
    assert len(came) == 8192
    assert came[-1].message == (9_999).to_bytes(4, "big")
    assert log.take_received() == []


def test_what_expired_before_it_was_told_is_not_told():
    log = MessageLog()
    log.add_from(ALICE, b"old", tag=1, relayed=False)
    log.add_from(ALICE, b"new", tag=2, relayed=False)
    log.expire(2)
    assert [entry.message for entry in log.take_received()] == [b"new"]


def test_messages_are_found_by_their_short_ids_while_they_live():
    log = MessageLog()
    _, message_id = log.add_from(ALICE, b"one", tag=1, relayed=False)
    entry = log.find(message_id[:PREFIX_BYTES])
    assert entry is not None
    assert entry.message == b"one"
    log.expire(2)
    assert log.find(message_id[:PREFIX_BYTES]) is None
