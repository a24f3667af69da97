from collections.abc import Iterable

from psyche_core.client.machine.replica.digests import DigestTracker
from psyche_core.client.machine.replica.resync_state import OfferedModel, Resync
from psyche_core.client.machine.replica.snapshot_offers import SnapshotRequests
from psyche_core.wire.messages import ModelDigest, ModelOffer

RIGHT, WRONG = b"r" * 32, b"w" * 32


def offer(manifest_hash: bytes) -> ModelOffer:
    return ModelOffer(0, 3, 0, manifest_hash, 100, b"d" * 32, 10)


def asking(*, alike: Iterable[int] = frozenset(), unlike: Iterable[int] = frozenset()) -> Resync:
    repair = Resync(matching=frozenset(alike), differing=frozenset(unlike))
    repair.begin("changed by itself", diverged=True)
    assert repair.register_request(3, 0.0)
    return repair


def choice(
    repair: Resync, healthy: Iterable[int], members: Iterable[int], *, waited: bool = False, plurality_suffices: bool = False
) -> OfferedModel | None:
    return repair.choose(
        frozenset(healthy), frozenset(members), now=1.0, waited=waited, plurality_suffices=plurality_suffices and waited
    )


def test_who_changed_by_itself_believes_those_that_had_its_masters_though_they_are_healthy_no_more() -> None:
    repair = asking(alike={0, 1, 3}, unlike={4})
    repair.add_offer(4, offer(WRONG))
    assert choice(repair, {4}, {0, 1, 3, 4}, waited=True, plurality_suffices=True) is None
    repair.add_offer(0, offer(RIGHT))
    assert choice(repair, {4}, {0, 1, 3, 4}) is None, "one of three is not most of them"
    repair.add_offer(3, offer(RIGHT))
    found = choice(repair, {4}, {0, 1, 3, 4})
    assert found is not None
    assert (found.manifest_hash, found.slots) == (RIGHT, (0, 3))


def test_the_only_healthy_member_is_not_believed_before_the_others_had_time_to_speak() -> None:
    repair, members = asking(), {0, 1, 3, 4}
    repair.add_offer(4, offer(WRONG))
    assert choice(repair, {4}, members) is None
    repair.add_offer(0, offer(RIGHT))
    repair.add_offer(1, offer(RIGHT))
    repair.add_offer(3, offer(RIGHT))
    for waited in (False, True):
        found = choice(repair, {4}, members, waited=waited)
        assert found is not None
        assert found.manifest_hash == RIGHT


def test_when_the_others_stay_silent_the_healthy_ones_are_enough() -> None:
    repair = asking()
    repair.add_offer(4, offer(RIGHT))
    assert choice(repair, {4}, {0, 1, 3, 4}) is None
    found = choice(repair, {4}, {0, 1, 3, 4}, waited=True)
    assert found is not None
    assert found.manifest_hash == RIGHT


def test_the_others_have_time_from_our_question_and_from_the_first_answer() -> None:
    repair = asking()
    assert not repair.waited(100.0, seconds=10.0), "nobody has offered anything"
    repair.add_offer(4, offer(WRONG))
    assert not repair.waited(105.0, seconds=10.0)
    assert not repair.waited(115.0, seconds=10.0)
    assert repair.waited(115.1, seconds=10.0)
    repair.add_offer(1, offer(RIGHT))
    assert repair.waited(115.2, seconds=10.0), "later answers begin no other wait"


def test_an_old_offer_is_no_answer() -> None:
    repair = asking()
    repair.add_offer(4, ModelOffer(0, 2, 0, WRONG, 100, b"d" * 32, 10))
    assert not repair.waited(5.0, seconds=10.0)
    assert not repair.waited(50.0, seconds=10.0)


def test_who_was_ejected_has_no_voice() -> None:
    repair = asking()
    for slot in (0, 1, 3):
        repair.add_offer(slot, offer(WRONG))
    assert choice(repair, {4}, {4}, waited=True) is None


def test_what_was_known_of_others_is_forgotten_with_the_repair() -> None:
    repair = asking(alike={0}, unlike={4})
    repair.end()
    assert (repair.matching, repair.differing) == (frozenset(), frozenset())


SEED = 11


def said(book: DigestTracker, digest: bytes, *, ended: bool) -> None:
    book.ours = digest
    book.record_own(0, ended=ended, seed=SEED)


def test_digests_say_who_had_the_same_when_we_said_it() -> None:
    book = DigestTracker()
    book.add(1, ModelDigest(0, False, RIGHT, SEED))
    book.add(2, ModelDigest(0, True, RIGHT, SEED))
    book.add(3, ModelDigest(0, True, WRONG, SEED))
    assert book.matching_and_differing(RIGHT) == (frozenset(), frozenset()), "we have not said it"
    said(book, RIGHT, ended=False)
    assert book.matching_and_differing(RIGHT) == (frozenset({1}), frozenset())
    said(book, RIGHT, ended=True)
    assert book.matching_and_differing(RIGHT) == (frozenset({2}), frozenset({3}))


def test_what_was_said_in_a_history_that_the_coordinator_forgot_is_not_compared() -> None:
    book = DigestTracker()
    for peer in (1, 2, 3):
        book.add(peer, ModelDigest(0, True, WRONG, SEED - 1))
    said(book, RIGHT, ended=True)
    assert not book.outvoted(4)
    assert book.disagreements() == []
    assert not book.senders(ended=True)
    book.add(1, ModelDigest(0, True, RIGHT, SEED))
    book.add(1, ModelDigest(0, True, WRONG, SEED - 1))  # told once more, late
    assert book.matching_count(ended=True) == 2
    assert book.senders(ended=True) == {1}


def test_one_peer_s_digests_of_many_seeds_are_bounded() -> None:
    book = DigestTracker()
    for seed in range(100):
        book.add(1, ModelDigest(0, True, RIGHT, seed))
    said(book, RIGHT, ended=True)
    assert not book.senders(ended=True)
    book.add(1, ModelDigest(0, True, RIGHT, SEED))
    assert book.senders(ended=True) == {1}


def test_digests_of_another_step_say_nothing_about_who_is_right() -> None:
    book = DigestTracker()
    for peer in (1, 2, 3):
        book.add(peer, ModelDigest(0, False, RIGHT, SEED))
    said(book, RIGHT, ended=False)
    assert book.matching_and_differing(b"after a step".ljust(32)) == (frozenset(), frozenset())


def test_where_nobody_said_the_same_nobody_is_disbelieved() -> None:
    book = DigestTracker()
    book.add(1, ModelDigest(0, True, RIGHT, SEED))
    said(book, WRONG, ended=True)
    assert book.matching_and_differing(WRONG) == (frozenset(), frozenset())


def test_who_asked_for_our_model_is_waited_for_until_it_has_had_request_and_offer_for_a_while() -> None:
    requests = SnapshotRequests()
    requests.add(1, 9, now=10.0)
    requests.add(2, 8, now=10.0)
    assert requests.awaited_by({1, 2}, 9, since=50.0), "nothing was offered yet"
    requests.offered_at[9] = 20.0
    requests.add(1, 9, now=30.0)
    requests.add(3, 9, now=40.0)
    assert [requests.awaited_by({1, 2}, 9, since=since) for since in (20.0, 21.0)] == [True, False]
    assert [requests.awaited_by({3}, 9, since=since) for since in (40.0, 41.0)] == [True, False]
    assert requests.awaited_by({1, 2}, 9), "however long ago"
    assert not requests.awaited_by({2}, 9)
    assert not requests.awaited_by({1}, 7)


def test_of_masters_that_nobody_signed_and_that_few_offer_against_others_none_are_taken() -> None:
    """As many liars as an epoch may have could offer theirs; after a death of all members they outnumbered who had the model."""
    members = {0, 1, 2, 3, 4, 5, 6}
    repair = asking()
    repair.add_offer(4, offer(WRONG))
    repair.add_offer(5, offer(WRONG))
    repair.add_offer(0, offer(RIGHT))
    assert choice(repair, set(), members, waited=True, plurality_suffices=True) is None
    assert repair.contested
    repair.add_offer(1, offer(RIGHT))
    repair.add_offer(2, offer(RIGHT))
    found = choice(repair, set(), members, waited=True, plurality_suffices=True)
    assert found is not None
    assert found.manifest_hash == RIGHT
    assert not repair.contested


def test_masters_that_could_not_be_had_are_tried_at_once_when_another_member_offers_them() -> None:
    """A liar offered them first and told falsely how the model is built; honest members came later, within the pause."""
    repair, members = asking(), {0, 1, 5}

    def chosen(now: float) -> OfferedModel | None:
        return repair.choose(frozenset(), frozenset(members), now=now, waited=True, plurality_suffices=True)

    def failed(slot: int, now: float) -> None:
        repair.add_offer(slot, offer(RIGHT))
        found = chosen(now)
        assert found is not None
        repair.begin_attempt(found)
        repair.fetch_failed(now, pause=10.0)

    failed(5, 1.0)
    assert chosen(2.0) is None, "nobody else offers them"
    failed(0, 3.0)
    assert chosen(3.5) is None
    again = repair.choose(frozenset(), frozenset(members), now=14.0, waited=True, plurality_suffices=True)
    assert again is not None
    repair.begin_attempt(again)
    repair.add_offer(1, offer(RIGHT))
    repair.fetch_failed(15.0, pause=10.0)
    assert chosen(16.0) is None, "half of the attempts are used up: from here on offers end no pause, or liars could use up all"
    assert chosen(26.0) is not None


def test_an_offer_that_comes_while_the_masters_are_fetched_ends_the_pause_too() -> None:
    repair, members = asking(), frozenset({0, 1, 5})
    repair.add_offer(5, offer(RIGHT))
    found = repair.choose(frozenset(), members, now=1.0, waited=True, plurality_suffices=True)
    assert found is not None
    repair.begin_attempt(found)
    repair.add_offer(0, offer(RIGHT))
    repair.fetch_failed(2.0, pause=10.0)
    found = repair.choose(frozenset(), members, now=2.0, waited=True, plurality_suffices=True)
    assert found is not None
    assert found.slots == (0, 5)


def test_of_masters_with_a_signed_digest_any_may_be_tried_and_what_led_astray_is_not_taken_again() -> None:
    repair, members = asking(), frozenset({0, 4, 5})
    repair.add_offer(4, offer(WRONG))
    repair.add_offer(5, offer(WRONG))
    repair.add_offer(0, offer(RIGHT))

    def chosen() -> OfferedModel | None:
        return repair.choose(frozenset(), members, now=1.0, waited=True, plurality_suffices=True, signed=frozenset({3}))

    first = chosen()
    assert first is not None
    assert first.manifest_hash == WRONG
    repair.last_tried = WRONG
    repair.reject_last()
    second = chosen()
    assert second is not None
    assert second.manifest_hash == RIGHT
