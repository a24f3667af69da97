import hashlib
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.coordinator.round.witness import quorum
from psyche_core.errors import WireError
from psyche_core.interfaces.transport import Opened
from psyche_core.p2p.message_log import PREFIX_BYTES, LogLimits, MessageLog, Verdict

ALICE, BOB = b"a" * 32, b"b" * 32


def test_a_message_is_read_once_however_often_it_comes() -> None:
    log = MessageLog()
    assert log.add_from(ALICE, b"one", tag=1, relayed=False) == (Verdict.NEW, hashlib.sha256(b"one").digest())
    assert log.add_from(BOB, b"one", tag=9, relayed=True)[0] is Verdict.KNOWN
    entry = log.read()
    assert entry is not None
    assert (entry.message, entry.via) == (b"one", ALICE)
    assert log.read() is None
    log.expire(2)
    assert log.add_from(BOB, b"one", tag=9, relayed=True)[0] is Verdict.KNOWN


def test_our_own_message_is_not_read_and_not_added_twice() -> None:
    log = MessageLog()
    assert log.add_own(b"mine", tag=1) is not None
    assert log.add_own(b"mine", tag=1) is None
    assert log.add_from(BOB, b"mine", tag=1, relayed=True)[0] is Verdict.KNOWN
    assert not log.has_unread


def test_expired_messages_are_dropped_and_refused() -> None:
    log = MessageLog()
    log.add_from(ALICE, b"old", tag=4, relayed=False)
    log.add_from(ALICE, b"new", tag=5, relayed=False)
    log.expire(5)
    assert [entry.message for entry in log.lacking(())] == [b"new"]
    assert log.add_from(ALICE, b"older", tag=4, relayed=False)[0] is Verdict.EXPIRED
    assert log.add_own(b"own", tag=4) is None
    log.expire(3)
    assert log.add_from(ALICE, b"older", tag=4, relayed=False)[0] is Verdict.EXPIRED


def test_a_message_that_expired_unread_may_come_again() -> None:
    log = MessageLog(limits=LogLimits(tag_ahead=1))
    log.expire(0)
    log.add_from(ALICE, b"early", tag=100, relayed=False)  # tag lowered to 1: our view is behind
    log.expire(90)
    assert not log.has_unread
    assert log.add_from(ALICE, b"early", tag=100, relayed=False)[0] is Verdict.NEW


def test_tags_far_ahead_are_lowered_also_those_that_came_before_ours() -> None:
    log = MessageLog(limits=LogLimits(tag_ahead=10))
    log.add_from(ALICE, b"before", tag=2**60, relayed=False)
    log.add_own(b"mine", tag=100)
    log.add_from(ALICE, b"after", tag=2**60, relayed=False)
    assert {entry.message: entry.tag for entry in log.lacking(())} == {b"mine": 100, b"before": 110, b"after": 110}
    log.expire(111)
    assert len(log) == 0


def test_own_share_is_an_offence_and_relayed_share_is_not() -> None:
    log = MessageLog(limits=LogLimits(own_messages=2, relayed_messages=3, own_bytes=100, relayed_bytes=100))
    own = [log.add_from(ALICE, bytes([n]), tag=1, relayed=False)[0] for n in range(3)]
    relayed = [log.add_from(ALICE, bytes([n]), tag=1, relayed=True)[0] for n in range(10, 14)]
    assert own == [Verdict.NEW, Verdict.NEW, Verdict.OFFENCE]
    assert relayed == [Verdict.NEW] * 3 + [Verdict.IGNORED]
    assert log.add_from(BOB, bytes([2]), tag=1, relayed=False)[0] is Verdict.NEW
    log.expire(2)
    assert log.add_from(ALICE, b"room again", tag=2, relayed=False)[0] is Verdict.NEW


def test_shares_count_bytes() -> None:
    log = MessageLog(limits=LogLimits(own_bytes=10))
    assert log.add_from(ALICE, b"x" * 10, tag=1, relayed=False)[0] is Verdict.NEW
    assert log.add_from(ALICE, b"y", tag=1, relayed=False)[0] is Verdict.OFFENCE


def test_memory_of_past_ids_is_bounded() -> None:
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
def test_two_logs_that_exchange_what_the_other_lacks_agree(
    left: list[tuple[bytes, int]], right: list[tuple[bytes, int]], before: int
) -> None:
    logs = MessageLog(), MessageLog()
    for log, messages in zip(logs, (left, right), strict=True):
        log.expire(0)
        for message, tag in messages:
            log.add_own(message, tag=tag)
    tags: dict[bytes, set[int]] = {}
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


def test_what_came_is_given_once_to_be_told_to_others_and_is_bounded_where_nobody_asks() -> None:
    log = MessageLog(limits=LogLimits(own_messages=20_000, own_bytes=2**30))
    for n in range(10_000):
        log.add_from(ALICE, n.to_bytes(4, "big"), tag=1, relayed=False)
    came = log.take_received()
    assert len(came) == 8192
    assert came[-1].message == (9_999).to_bytes(4, "big")
    assert log.take_received() == []


def test_what_expired_before_it_was_told_is_not_told() -> None:
    log = MessageLog()
    log.add_from(ALICE, b"old", tag=1, relayed=False)
    log.add_from(ALICE, b"new", tag=2, relayed=False)
    log.expire(2)
    assert [entry.message for entry in log.take_received()] == [b"new"]


def test_messages_are_found_by_their_short_ids_while_they_live() -> None:
    log = MessageLog()
    _, message_id = log.add_from(ALICE, b"one", tag=1, relayed=False)
    entry = log.find(message_id[:PREFIX_BYTES])
    assert entry is not None
    assert entry.message == b"one"
    log.expire(2)
    assert log.find(message_id[:PREFIX_BYTES]) is None


# ------------------------------------------------------------------------------------------------------ with a check

US, CAROL, STRANGER = b"u" * 32, b"c" * 32, b"s" * 32


def signed(author: bytes, text: bytes) -> bytes:
    return author + b"signed " + text


def check_signed(message: bytes) -> Opened:
    if message[32:39] != b"signed ":
        error = "nobody signed it"
        raise WireError(error)

    return Opened(message[:32], message[39:])


def checked(*members: bytes, check: Callable[[bytes], Opened] = check_signed, **limits: int) -> MessageLog:
    log = MessageLog(own=US, limits=LogLimits(**limits))
    log.check_with(check)
    log.set_members(members)
    return log


def dated(author: bytes, tag: int, text: bytes = b"", *, until: int | None = None) -> bytes:
    """A message whose content allows one tag, or all `until` another."""
    return signed(author, b"%d to %d " % (tag, tag if until is None else until) + text)


def check_dated(message: bytes) -> Opened:
    first, _, last, *_ = message[39:].split(b" ")
    return Opened(message[:32], None, (int(first), int(last)))


def passed(log: MessageLog) -> list[bytes]:
    return [entry.message for entry in log.lacking(())]


def test_what_is_read_was_opened_by_the_check() -> None:
    log = checked(ALICE)
    log.add_from(ALICE, signed(ALICE, b"hello"), tag=1, relayed=False)
    entry = log.read()
    assert entry is not None
    assert entry.opened == Opened(ALICE, b"hello")


def test_false_messages_are_kept_by_nobody_and_several_are_an_offence_whoever_else_is_right() -> None:
    log = checked(ALICE, BOB, false_messages=2)
    assert log.add_from(ALICE, b"junk", tag=1, relayed=True)[0] is Verdict.FALSE
    assert log.add_from(BOB, b"junk", tag=1, relayed=True)[0] is Verdict.FALSE
    assert log.add_from(ALICE, signed(BOB, b"mine, says Alice"), tag=1, relayed=False)[0] is Verdict.OFFENCE
    assert log.offence == "it sent 2 false messages; the last: it sent as its own a message that another key signed"
    assert len(log) == 0
    assert log.prefixes(9) == []
    assert not log.has_unread
    assert log.take_received() == []


def test_a_peer_whose_share_is_full_costs_no_check() -> None:
    log = checked(ALICE, relayed_messages=1, own_messages=1)
    log.add_from(ALICE, signed(ALICE, b"own"), tag=1, relayed=False)
    assert log.add_from(ALICE, b"junk", tag=1, relayed=False)[0] is Verdict.OFFENCE
    assert "share" in log.offence
    assert log.add_from(BOB, signed(ALICE, b"passed on"), tag=1, relayed=True)[0] is Verdict.NEW
    assert log.add_from(BOB, b"junk", tag=1, relayed=True)[0] is Verdict.IGNORED


def test_who_says_its_own_messages_to_be_of_others_uses_up_its_own_share() -> None:
    log = checked(ALICE, own_messages=2)
    verdicts = [log.add_from(ALICE, signed(ALICE, b"%d" % n), tag=1, relayed=True)[0] for n in range(3)]
    assert verdicts == [Verdict.NEW, Verdict.NEW, Verdict.OFFENCE]


def test_messages_of_unknown_keys_wait_to_be_passed_on_and_little_of_them_is_kept() -> None:
    log = checked(ALICE, BOB, unknown_messages=2)
    empty = log.digest()
    first, second, third = (signed(STRANGER, b"%d" % n) for n in range(3))
    verdicts = [log.add_from(ALICE, message, tag=1, relayed=True)[0] for message in (first, second, third)]
    assert verdicts == [Verdict.NEW, Verdict.NEW, Verdict.IGNORED]
    assert log.add_from(ALICE, b"junk", tag=1, relayed=True)[0] is Verdict.IGNORED, "not even checked"
    assert log.add_from(BOB, third, tag=1, relayed=True)[0] is Verdict.NEW
    assert passed(log) == []
    assert log.take_received() == []
    assert log.digest() == empty
    assert len(log.prefixes(9)) == 3, "what we hold need not be given to us"
    log.set_members((ALICE, BOB, STRANGER))
    assert sorted(passed(log)) == [first, second, third]
    assert sorted(entry.message for entry in log.take_received()) == [first, second, third]
    assert log.digest() != empty
    assert log.add_from(ALICE, signed(CAROL, b"room again"), tag=1, relayed=True)[0] is Verdict.NEW


def test_who_has_left_counts_as_a_member_until_its_time_has_expired() -> None:
    log = checked(ALICE, BOB)
    log.add_own(signed(US, b"now"), tag=5)
    log.add_from(ALICE, signed(BOB, b"before"), tag=5, relayed=True)
    log.set_members((ALICE,))
    log.add_from(ALICE, signed(BOB, b"testament"), tag=5, relayed=True)
    assert len(passed(log)) == 3
    log.expire(6)
    log.add_from(ALICE, signed(BOB, b"long gone"), tag=6, relayed=True)
    assert passed(log) == []


def test_our_own_messages_that_come_back_after_a_restart_are_passed_on() -> None:
    log = checked(ALICE)
    log.add_from(ALICE, signed(US, b"before the crash"), tag=1, relayed=True)
    assert len(passed(log)) == 1


def test_an_author_is_passed_on_up_to_its_share_whoever_hands_it_over() -> None:
    """What is over it is read all the same."""
    log = checked(ALICE, BOB, CAROL, passed_messages=3)
    for n in range(4):
        assert log.add_from(ALICE, signed(ALICE, b"direct %d" % n), tag=n, relayed=False)[0] is Verdict.NEW
    assert log.add_from(BOB, signed(ALICE, b"by Bob"), tag=5, relayed=True)[0] is Verdict.NEW
    assert log.add_from(BOB, signed(CAROL, b"of another"), tag=5, relayed=True)[0] is Verdict.NEW
    assert passed(log) == [*(signed(ALICE, b"direct %d" % n) for n in range(3)), signed(CAROL, b"of another")]
    read = []
    while (entry := log.read()) is not None:
        read.append(entry.message)
    assert len(read) == 6
    log.expire(1)
    assert signed(ALICE, b"direct 3") in passed(log), "there is room again"


def test_who_gives_each_of_us_other_messages_without_end_does_not_keep_us_comparing() -> None:
    logs = [checked(ALICE, BOB, CAROL, passed_messages=3) for _ in range(2)]
    for index, log in enumerate(logs):
        log.add_from(CAROL, signed(CAROL, b"for all"), tag=1, relayed=False)
        for n in range(5):
            log.add_from(ALICE, signed(ALICE, b"%d for %d" % (n, index)), tag=1, relayed=False)
    assert logs[0].digest() == logs[1].digest()
    logs[0].add_from(CAROL, signed(CAROL, b"another"), tag=1, relayed=False)
    assert logs[0].digest() != logs[1].digest()


def test_each_member_that_says_to_have_a_message_is_asked_once_and_only_a_few_are() -> None:
    log = MessageLog()
    assert [log.claim_request(b"x" * 16, ALICE) for _ in range(4)] == [True, False, False, False]
    assert [log.claim_request(b"x" * 16, peer) for peer in (BOB, CAROL, STRANGER)] == [True, True, False]


def test_in_a_large_run_more_than_a_third_are_asked_for_the_same_message() -> None:
    """As many liars as a quorum bears cannot, by saying to have it, prevent that an honest member is asked."""
    for count in range(1, 33):
        members = [bytes([n]) * 32 for n in range(count)]
        log = MessageLog(own=members[-1])
        log.set_members(members)
        liars = count - quorum(count)
        asked = sum(log.claim_request(b"x" * 16, peer) for peer in members[:-1])
        assert asked > liars or asked == count - 1
        assert asked <= max(3, count // 3 + 1)


# ------------------------------------------------------------------------------------------------ tags that are signed


def test_an_old_message_handed_over_with_a_new_tag_is_expired_though_its_id_was_forgotten() -> None:
    """Two liars flood a member with messages of each other, so that it forgets, and then replay an honest one's."""
    log = checked(ALICE, BOB, CAROL, check=check_dated, remembered=4, passed_messages=8)
    old = [dated(CAROL, n // 2, b"%d" % n) for n in range(20)]
    for message in old:
        assert log.add_from(CAROL, message, tag=9, relayed=False)[0] is Verdict.NEW
    while log.read() is not None:
        pass
    log.expire(10)
    for n in range(8):
        assert log.add_from(ALICE, dated(BOB, 10, b"%d" % n), tag=10, relayed=True)[0] is Verdict.NEW
    while log.read() is not None:
        pass
    log.expire(11)
    replayed = [log.add_from(ALICE, message, tag=70, relayed=True)[0] for message in old]
    assert replayed == [Verdict.EXPIRED] * 20, "none is read or counted again"
    _, fresh = log.add_from(CAROL, dated(CAROL, 11), tag=11, relayed=False)
    assert log.may_pass_on(fresh)


def test_a_new_process_takes_no_old_messages_once_it_knows_the_time() -> None:
    log = checked(ALICE, CAROL, check=check_dated, passed_messages=8)
    early = [log.add_from(ALICE, dated(CAROL, n), tag=1000, relayed=True)[0] for n in range(8)]
    assert early == [Verdict.NEW] * 8
    _, fresh = log.add_from(CAROL, dated(CAROL, 1000), tag=1000, relayed=False)
    assert not log.may_pass_on(fresh)
    log.expire(1000)
    assert [log.add_from(ALICE, dated(CAROL, n), tag=1064, relayed=True)[0] for n in range(8)] == [Verdict.EXPIRED] * 8
    assert passed(log) == [dated(CAROL, 1000)]


@pytest.mark.parametrize(("given", "kept"), [(3, 5), (5, 5), (7, 7), (9, 9), (60, 9)])
def test_a_tag_is_brought_between_those_that_the_content_allows(given: int, kept: int) -> None:
    log = checked(ALICE, check=check_dated)
    log.expire(1)
    log.add_from(ALICE, dated(ALICE, 5, until=9), tag=given, relayed=False)
    assert [entry.tag for entry in log.lacking(())] == [kept]


def test_what_names_a_time_far_ahead_is_lowered_as_before() -> None:
    log = checked(ALICE, check=check_dated, tag_ahead=10)
    log.expire(1)
    log.add_from(ALICE, dated(ALICE, 2**60), tag=5, relayed=False)
    assert [entry.tag for entry in log.lacking(())] == [11]


def test_who_hands_over_expired_messages_with_new_tags_is_soon_ignored_unchecked_until_time_goes_on() -> None:
    checks = Counter[bytes]()

    def check(message: bytes) -> Opened:
        checks[message] += 1
        return check_dated(message)

    log = checked(ALICE, BOB, CAROL, check=check, unknown_messages=3)
    log.expire(10)
    for _ in range(5):
        log.add_from(ALICE, dated(CAROL, 1), tag=20, relayed=True)
    assert checks == {dated(CAROL, 1): 3}
    assert log.add_from(ALICE, dated(CAROL, 10), tag=10, relayed=True)[0] is Verdict.IGNORED
    assert log.add_from(BOB, dated(CAROL, 10), tag=10, relayed=True)[0] is Verdict.NEW
    log.expire(10)
    assert log.add_from(ALICE, dated(CAROL, 11), tag=11, relayed=True)[0] is Verdict.IGNORED
    log.expire(11)
    assert log.add_from(ALICE, dated(CAROL, 11), tag=11, relayed=True)[0] is Verdict.NEW


@pytest.mark.parametrize("relayed", [True, False])
def test_who_sends_expired_messages_of_its_own_with_new_tags_loses_its_connection(relayed: bool) -> None:
    log = checked(ALICE, BOB, check=check_dated, false_messages=2)
    log.expire(10)
    assert log.add_from(ALICE, dated(ALICE, 9), tag=9, relayed=relayed)[0] is Verdict.EXPIRED, (
        "it may know the time later than we"
    )
    assert log.add_from(ALICE, dated(ALICE, 9), tag=20, relayed=relayed)[0] is Verdict.FALSE
    assert log.add_from(ALICE, dated(ALICE, 9), tag=20, relayed=relayed)[0] is Verdict.OFFENCE
    assert "an expired message of its own with a higher tag" in log.offence


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from([ALICE, BOB]), st.sampled_from([ALICE, BOB, CAROL, STRANGER]), st.integers(0, 9), st.booleans()
        ),
        max_size=40,
    ),
    before=st.integers(0, 10),
)
def test_the_shares_are_free_again_when_all_has_expired(steps: list[tuple[bytes, bytes, int, bool]], before: int) -> None:
    log = checked(ALICE, BOB, passed_messages=4, unknown_messages=4, false_messages=1000)
    for n, (via, author, tag, relayed) in enumerate(steps):
        log.add_from(via, signed(author, b"%d" % n), tag=tag, relayed=relayed)
        if n == 20:
            log.set_members((ALICE, CAROL))
    log.expire(before)
    log.expire(10**6)
    assert len(log) == 0
    shares = log._shares
    assert not any((shares._passed, shares._unknown, shares._messages, shares._bytes, log._by_prefix))
