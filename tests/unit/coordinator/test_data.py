"""No sample is skipped, none applied twice (F2, F14); shares, acceptance, consensus and health from statements."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.coordinator import apply
from psyche_core.coordinator.commands import ClientsExited, HealthCheck, Pause, Resume, RoundSettled, Tick
from psyche_core.coordinator.round.bloom_filter import BroadcastBloom, bloom_keys
from psyche_core.coordinator.round.merkle_root import merkle_root
from psyche_core.coordinator.round.requeue import MAX_INTERVALS, added, merged, taken
from psyche_core.coordinator.round.witness import accepted_slots, choose_commitment, quorum
from psyche_core.errors import WireError
from psyche_core.types import BatchId, ClientState, RunState


def numbers(batches: Any) -> list[int]:
    return [sample for batch in batches for sample in range(batch.first, batch.last + 1)]


def test_f2_a_run_with_losses_pauses_and_exits_applies_every_sample_once(play: Any, members: Any) -> None:
    """Clients lag, die and come back, epochs end in three ways; at the end every sample is applied, queued or counted lost."""
    run = play(4, rounds_per_epoch=4, total_steps=40, global_batch_size_end=24, global_batch_size_warmup_tokens=6400)
    turn = itertools.count()
    while run.phase != "Finished":
        count = next(turn)
        assert count < 2000
        if run.state.run_state in (RunState.RoundTrain, RunState.RoundWitness):
            before = run.shares(run.round.height - 1)
            run.play_round(seen=[slot for slot in before if (slot + count) % 5])
            if count % 17 == 3:
                run.withdraw(run.state.healthy_slots[0])
                run.join(100 + count)
            if count == 20:
                run.do(Pause())
            run.tick(after=31)
        elif run.phase == "Paused":
            run.do(Resume())
        elif run.phase == "Warmup":
            for slot in run.state.healthy_slots:
                if run.phase == "Warmup":
                    run.do(run.ready(slot))
        else:
            run.tick(after=6)
    applied = numbers(run.applied)
    assert len(applied) == len(set(applied)) > 300
    assert sorted([*applied, *numbers(run.state.requeue)]) == list(range(run.state.progress.data_index))
    assert any(event.refused for event in run.seen_events(RoundSettled))
    trained = [event.step for event in run.seen_events(RoundSettled)]
    assert sorted(set(trained)) == list(range(1, 41))


def test_f14_what_was_not_accepted_is_assigned_again_before_fresh_samples(play: Any) -> None:
    run = play(2)
    lost = run.shares(0)[1]
    run.play_round()
    run.play_round(seen=[0])
    assert run.state.requeue == ()
    assert run.round.height == 2
    assert run.round.batches[0] == lost[0]
    assert sum(len(batch) for batch in run.round.batches) == 8
    assert run.state.progress.data_index == 8 + 8 + 4
    assert any(len(share) > 1 for share in run.shares(2).values()) or len(run.shares(2)) == 2


def test_f14_a_full_queue_counts_what_it_gives_up(play: Any) -> None:
    run = play(2)
    queue = tuple(BatchId(10_000 + 10 * place, 10_000 + 10 * place + 4) for place in range(MAX_INTERVALS))
    run.state = replace(run.state, requeue=queue, progress=replace(run.state.progress, data_index=20_000))
    lost, kept = added(queue, [BatchId(0, 7), BatchId(20, 21)])[::-1]
    assert (lost, len(kept)) == (8 + 2, MAX_INTERVALS)
    run.now += 30
    state, _ = apply(run.state, Tick(), run.now, 1)  # RoundWitness
    state, _ = apply(state, Tick(), run.now + 11, 1)  # nobody stated: round 0 comes back, into a full queue
    assert state.lost_samples == 8
    assert state.requeue == queue


_intervals = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6)), max_size=30)


def _batches(gaps: list[tuple[int, int]]) -> list[BatchId]:
    found, first = [], 0
    for gap, size in gaps:
        first += gap
        found.append(BatchId(first, first + size - 1))
        first += size
    return found


@settings(deadline=None)
@given(_intervals, st.integers(0, 80), st.randoms())
def test_queue_keeps_samples(gaps: list[tuple[int, int]], wanted: int, random: Any) -> None:
    batches = _batches(gaps)
    shuffled = list(batches)
    random.shuffle(shuffled)
    queue = merged(shuffled)
    assert numbers(queue) == numbers(batches)
    assert all(later.first > earlier.last + 1 for earlier, later in itertools.pairwise(queue))
    front, rest = taken(queue, wanted)
    assert numbers(front) + numbers(rest) == numbers(queue)
    assert len(numbers(front)) == min(wanted, len(numbers(queue)))
    assert added(rest, front) == (queue, 0)


def test_queue_refuses_a_sample_twice() -> None:
    with pytest.raises(ValueError, match="share samples"):
        merged([BatchId(0, 4), BatchId(4, 6)])


def test_f10_a_slot_without_samples_is_never_unhealthy(play: Any) -> None:
    run = play(5, global_batch_size_start=3, global_batch_size_end=3)
    idle = sorted(set(range(5)) - set(run.shares(0)))
    assert len(idle) == 2
    working = sorted(run.shares(0))
    run.play_round()
    run.play_round(seen=working[:2])
    reporter = run.state.epoch.rounds[-2].statements[0].index
    sender = run.state.epoch.clients[reporter].id
    for slot in idle:
        run.refused(HealthCheck(sender=sender, slots=(slot,)), "InvalidHealthCheck")
    assert run.do(HealthCheck(sender=sender, slots=(working[2],))) == [ClientsExited(epoch=0, slots=(working[2],))]


def test_health_check_drops_who_was_not_seen_and_sweeps_before_the_next_round(play: Any, members: Any, joins: Any) -> None:
    run = play(4)
    run.play_round()
    run.play_round(seen=[0, 1, 2])
    reporter = run.state.epoch.clients[0].id
    run.refused(HealthCheck(sender=reporter, slots=(3, 1)), "InvalidHealthCheck")
    run.do(HealthCheck(sender=reporter, slots=(3,)))
    client = run.state.epoch.clients[3]
    assert (client.state, client.exited_height) == (ClientState.Dropped, 2)
    assert run.do(HealthCheck(sender=reporter, slots=(3,))) == []  # known already
    assert members(3) not in run.state.pending
    assert run.round.slots == (0, 1, 2, 3)
    run.do(joins(members(3)))
    run.play_round()
    assert run.round.slots == (0, 1, 2)


def test_acceptance_needs_a_quorum_of_the_elected(play: Any) -> None:
    run = play(4)
    run.play_round()
    votes = {0: [0, 1, 2, 3], 1: [0, 1, 2], 2: [0, 1], 3: [0]}
    for slot in range(4):
        run.do(run.statement(slot, seen=votes[slot]))
    assert run.round.height == 2
    first = run.state.epoch.rounds[0]
    assert accepted_slots(run.state, first) == {0, 1}  # 4 and 3 of 4, quorum 3
    assert run.seen_events(RoundSettled)[-1] == RoundSettled(epoch=0, height=0, step=1, accepted=(0, 1), refused=(2, 3))
    assert accepted_slots(run.state, run.round) == frozenset()


def test_f5_quorum() -> None:
    assert [quorum(elected) for elected in range(1, 8)] == [1, 2, 2, 3, 4, 4, 5]
    assert quorum(32) == 22
    assert all(3 * quorum(n) >= 2 * n > 3 * (quorum(n) - 1) for n in range(1, 257))


def test_consensus_on_a_commitment(play: Any, commitments: Any) -> None:
    run = play(3)
    run.play_round()
    for slot in run.elected:
        run.do(run.statement(slot))
    first = run.state.epoch.rounds[0]
    assert choose_commitment(run.state, first, 1, [bytes(32), commitments(1, 0)]) == commitments(1, 0)
    assert choose_commitment(run.state, first, 1, [bytes(32)]) is None
    assert choose_commitment(run.state, first, 1, []) is None
    assert choose_commitment(run.state, run.round, 1, [commitments(1, 2)]) is None


def test_a_witness_that_did_not_see_a_slot_has_no_vote_on_it(play: Any, commitments: Any) -> None:
    run = play(3)
    run.play_round()
    bloom = BroadcastBloom(run.round.seed)
    bloom.add(commitments(1, 0))
    for slot in run.elected:
        run.do(run.statement(slot, seen=[0, 2], broadcast_bloom=bloom.to_bytes()))
    assert choose_commitment(run.state, run.state.epoch.rounds[0], 1, [commitments(1, 0)]) is None


@settings(deadline=None)
@given(st.randoms())
def test_f7_consensus_does_not_depend_on_arrival(play_once: Any, random: Any) -> None:
    """Two candidates with as many votes, in every order of candidates and statements: the smallest hash."""
    state, round_, slot, candidates = play_once
    shuffled = list(candidates)
    random.shuffle(shuffled)
    attesting = state.round_at(round_.height + 1)
    statements = list(attesting.statements)
    random.shuffle(statements)
    rounds = tuple(
        replace(stored, statements=tuple(statements)) if stored is attesting else stored for stored in state.epoch.rounds
    )
    reordered = replace(state, epoch=replace(state.epoch, rounds=rounds))
    assert choose_commitment(reordered, round_, slot, shuffled) == min(candidates)


@pytest.fixture(scope="module")
def play_once(started: Any) -> Any:
    """A round whose trainer equivocated: the filters of all witnesses hold both hashes."""
    run = started(3)
    run.play_round()
    candidates = (b"\x02" * 32, b"\x01" * 32, b"\x03" * 32)
    bloom = BroadcastBloom(run.round.seed)
    for candidate in candidates:
        bloom.add(candidate)
    for slot in run.elected:
        run.do(run.statement(slot, broadcast_bloom=bloom.to_bytes()))
    return run.state, run.state.epoch.rounds[0], 1, candidates


def test_f6_bloom_keys_come_from_the_seed_and_256_entries_stay_under_one_percent() -> None:
    assert len(set(bloom_keys(1)) | set(bloom_keys(2))) == 16
    bloom = BroadcastBloom(99)
    entries = [number.to_bytes(32, "big") for number in range(256)]
    for entry in entries:
        bloom.add(entry)
    assert all(entry in bloom for entry in entries)
    strangers = [number.to_bytes(32, "big") for number in range(1000, 11_000)]
    assert sum(stranger in bloom for stranger in strangers) < 100
    again = BroadcastBloom.from_bytes(99, bloom.to_bytes())
    assert len(again.to_bytes()) == 320
    assert all(entry in again for entry in entries)
    assert entries[0] not in BroadcastBloom.from_bytes(98, bloom.to_bytes())
    with pytest.raises(WireError, match="320 bytes"):
        BroadcastBloom.from_bytes(1, bytes(319))


def test_without_trainers_all_samples_come_back(play: Any) -> None:
    """Where everybody recomputes nobody trains: nothing may be lost by it."""
    run = play(3)
    run.state = replace(run.state, epoch=replace(run.state.epoch, rounds=(replace(run.round, recomputing=(0, 1, 2)),)))
    assert run.shares(0) == {}
    run.play_round()
    run.play_round()
    assert run.round.batches[0] == BatchId(0, 7)


def test_merkle_roots_of_equal_sets_are_equal_when_sorted() -> None:
    assert merkle_root(sorted([b"b", b"a", b"c"])) == merkle_root(sorted([b"c", b"b", b"a"]))
    assert merkle_root([b"b", b"a"]) != merkle_root([b"a", b"b"])
