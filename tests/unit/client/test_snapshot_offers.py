"""Who asks for models keeps them from nobody else: few are offered at a time, and each member has its share of the places."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.client.machine.epoch import masters_due
from psyche_core.client.machine.replica.snapshot_offers import (
    FIRST_OFFERS,
    MAX_OFFERED,
    MAX_OFFERED_TO_ONE,
    MAX_REQUESTED,
    ROUNDS_PER_OFFER,
    SnapshotOffer,
    SnapshotOffers,
    SnapshotRequests,
)
from psyche_core.simulator.script import Fault
from psyche_core.telemetry.events import ModelLost, Resynced
from psyche_core.types import RunState
from psyche_core.wire.messages import ModelWanted
from stage import Member, Stage

EPOCH, LATER = (100, 7), (200, 8)


def offer(step: int, *slots: int, epoch: tuple[int, int] = EPOCH) -> SnapshotOffer:
    return SnapshotOffer(step, 8 + step, epoch, frozenset(slots))


def test_a_slot_s_newest_requests_count() -> None:
    requests = SnapshotRequests()
    for step in range(20):
        requests.add(1, step, now=float(step))
    requests.add(2, 3, now=30.0)
    assert [step for step in range(20) if 1 in requests.entitled(step, rounds=0)] == [*range(20 - MAX_REQUESTED, 20)]
    assert requests.entitled(3, rounds=0) == {2}


def test_offers_of_an_epoch_are_counted_and_come_back_with_its_rounds() -> None:
    requests = SnapshotRequests()
    requests.add(1, 5, now=0.0)
    requests.offers[1] = FIRST_OFFERS
    assert not requests.entitled(5, rounds=ROUNDS_PER_OFFER - 1)
    assert requests.entitled(5, rounds=ROUNDS_PER_OFFER) == {1}
    requests.offered_at[5] = 1.0
    assert not requests.entitled(5, rounds=1000), "offered already"


def test_who_asks_again_makes_room_for_itself_and_then_who_had_most() -> None:
    offers, made = SnapshotOffers(), Counter[int]()
    for step in range(MAX_OFFERED_TO_ONE):
        assert offers.add(offer(step, 3), made) == ()
        made[3] += 1
    assert offers.add(offer(10, 3), made) == (8,), "its oldest"
    made[3] += 1
    assert offers.add(offer(11, 1), made) == ()
    made[1] += 1
    assert offers.add(offer(12, 2), made) == (9,), "3 has had most, and this is its oldest"
    made[2] += 1
    assert offers.add(offer(13, 1), made) == (10,), "3 still has, and 1 has had one"
    made[1] += 1
    assert {known.step for known in offers.offered} == {10, 11, 12, 13}
    assert offers.add(offer(14, 1), made) == (18,), "the last of 3"
    made[1] += 1
    assert offers.add(offer(15, 2), made) == (19,)
    assert offers.add(offer(16, 4), made) is not None, "who has had none finds a place"


def test_where_all_had_as_much_a_place_is_waited_for() -> None:
    offers, made = SnapshotOffers(), Counter(dict.fromkeys(range(9), 1))
    for step in range(MAX_OFFERED):
        assert offers.add(offer(step, step), made) == ()
    assert offers.add(offer(9, 8), made) is None
    assert offers.add(offer(9, 8, 7), made) is None
    offers.expire(9)
    assert offers.add(offer(9, 8), made) == ()


def test_offers_of_an_earlier_epoch_make_room_first() -> None:
    offers = SnapshotOffers()
    for step in range(MAX_OFFERED):
        offers.add(offer(step, step), Counter())
    assert offers.add(offer(20, 5, epoch=LATER), Counter({5: 99})) == (8,)
    assert offers.add(offer(2, 6, epoch=LATER), Counter()) == (), "the same step, the same tag here: it takes the place of itself"
    offers.failed(20)
    assert {known.step for known in offers.offered} == {1, 2, 3}


@given(st.lists(st.tuples(st.sets(st.integers(0, 5), min_size=1, max_size=3), st.booleans()), max_size=60))
def test_places_are_bounded_and_who_had_fewest_is_never_turned_away(asked: list[tuple[set[int], bool]]) -> None:
    offers, made = SnapshotOffers(), Counter[int]()
    for step, (slots, new_epoch) in enumerate(asked):
        if new_epoch:
            made.clear()
        before = {known.tag for known in offers.offered}
        withdrawn = offers.add(offer(step, *slots, epoch=EPOCH if step < 30 else LATER), made)
        after = {known.tag for known in offers.offered}
        assert len(after) <= MAX_OFFERED
        if withdrawn is None:
            assert after == before
            least = min((made[slot] for known in offers.offered for slot in known.slots), default=0)
            limited = all(
                sum(slot in known.slots for known in offers.offered) >= MAX_OFFERED_TO_ONE or made[slot] >= least
                for slot in slots
            )
            assert limited
        else:
            assert after == before - set(withdrawn) | {8 + step}
            made.update(slots)


def accepted_later(world: Stage, member: Member, *, since: int) -> tuple[int, int]:
    """In how many rounds from a step on the member's result was accepted, and of how many."""
    slot = world.state.slot_of(member.identity)
    later = [event for event in world.settled() if event.step >= since]
    return sum(slot in event.accepted for event in later), len(later)


@pytest.mark.parametrize("seed", range(3))
def test_a_liar_that_asks_for_every_model_locks_out_nobody(seed: int) -> None:
    """Seen: four requests took the four places for twelve rounds, and a member that came back with nothing never got a model."""
    lie = Fault(kind="model-requests", start=1.0, nodes=(3,))
    world = Stage(4, total_steps=80, rounds_per_epoch=80, seed=seed, epoch_time=4000, faults=(lie,))
    member = world.members[2]
    world.run(until=lambda: world.state.progress.step == 12)
    world.kill(member)
    world.run(until=lambda: world.state.progress.step >= 20)
    member.away = False
    member.boot()
    world.run(limit=4000)
    accepted, rounds = accepted_later(world, member, since=40)
    assert accepted >= 0.8 * rounds, f"{accepted} of {rounds}"
    assert world.counts["snapshots"] > 30, "the liar did ask"


@pytest.mark.parametrize("ahead", [2, 3, 4, 5])
def test_four_requests_at_the_right_time_lock_out_nobody(ahead: int) -> None:
    """Seen: they take all places when the member begins to ask, and it asks for nothing else until it may ask no more."""
    world = Stage(4, total_steps=100, rounds_per_epoch=100, epoch_time=4000)
    world.train_delay = lambda member: world.random.uniform(0.3, 0.5)
    member, liar = world.members[2:]
    liar.liar = True
    world.run(until=lambda: world.state.progress.step == 20)
    world.kill(member)
    notes, due = liar.machine.notes, masters_due(world.state)
    assert notes is not None
    for step in range(due + ahead, due + ahead + MAX_OFFERED):
        world.network.broadcast(liar, ModelWanted(notes.number, step, notes.seed), notes.tag(notes.newest))
    world.run(until=lambda: world.state.progress.step >= 26)
    member.away = False
    member.boot()
    world.run(limit=4000)
    accepted, rounds = accepted_later(world, member, since=40)
    assert accepted >= 0.9 * rounds, f"{accepted} of {rounds}"


def test_offers_of_the_epoch_before_do_not_keep_newcomers_from_the_model() -> None:
    """Seen, without any liar: the places were taken by steps that nobody wanted any more, and the run's model counted as lost."""
    world = Stage(4, total_steps=40, rounds_per_epoch=20, min_clients=1)
    keeper, liar, *others = world.members
    liar.liar = True
    asked: set[int] = set()

    def ask() -> bool:
        notes, due = liar.machine.notes, masters_due(world.state)
        if notes is not None and 12 <= due <= 20 and world.state.run_state is not RunState.Warmup and due not in asked:
            asked.add(due)
            for step in (due, due + 1):
                world.network.broadcast(liar, ModelWanted(notes.number, step, notes.seed), notes.tag(max(notes.newest, 0)))
        return world.state.run_state is RunState.WaitingForMembers and world.state.progress.epoch == 1

    world.run(until=ask)
    assert len(keeper.machine._state.snapshot_offers.offered) >= MAX_OFFERED_TO_ONE
    for member in others:
        world.restart(member)
    world.run(until=lambda: world.state.run_state is RunState.RoundTrain and world.state.progress.epoch == 1)
    assert not [told for member in world.members for told in member.told if isinstance(told, ModelLost)]
    for member in others:
        assert Resynced(1, 20) in member.told
    world.run(limit=2000)


def test_a_member_with_a_slow_line_that_is_away_twice_gets_the_model_twice() -> None:
    """Seen, without any liar: it asked for a new step in each round, also while it fetched, until it had no requests left."""
    world = Stage(4, total_steps=120, rounds_per_epoch=120, epoch_time=4000)
    member = world.members[2]
    for step in (12, 50):
        world.run(until=lambda step=step: world.state.progress.step >= step)  # type: ignore[misc]
        world.kill(member)
        world.run(until=lambda step=step: world.state.progress.step >= step + 8)  # type: ignore[misc]
        member.away = False
        member.boot()
        member.downlinks.append(8.0)
        world.run(until=lambda step=step: world.state.progress.step >= step + 30)  # type: ignore[misc]
        member.downlinks.clear()
    world.run(limit=4000)
    accepted, rounds = accepted_later(world, member, since=90)
    assert accepted >= 0.8 * rounds, f"{accepted} of {rounds}"


@pytest.mark.parametrize("length", [1, 2, 3])
def test_epochs_of_few_rounds_forget_what_is_over(length: int) -> None:
    """Seen: nothing ever expired, so after a hundred epochs members ended connections because of too many live messages."""
    world = Stage(3, total_steps=40 * length, rounds_per_epoch=length, cooldown_time=1)
    world.run(limit=4000)
    for member in world.members:
        assert {packet.tag >> 20 for packet in member.packets.values()} <= {38, 39, 40}
        assert all(tag >> 20 >= 38 for tag, _ in member.payloads.values())
